"""``perfkit traffic``: the JSON that scripts read, the tables that people read, one line for bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from perfkit.cli import traffic as command
from perfkit.cli.app import run
from perfkit.errors import InputError
from perfkit.method import Case, Point, Step
from perfkit.shape import Shape

SUPER_RECORD = 128 * 64 * 2 + 8 * 128 * 2 + 128 * 4  # one token of one layer: x, shared keys, dt


def traffic_json(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    code = run(["traffic", *args, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_super_decode(capsys: pytest.CaptureFixture[str]) -> None:
    data = traffic_json(capsys, "--model", "nemotron-super", "--window", "16")
    assert data["ratio_paper"] == 0.5812  # paper, C.3
    assert data["window_star"] == 12.92  # paper, Eq. 16
    assert data["crossover_tokens"] == 81920  # paper, C.2
    assert data["state_bytes_per_sequence"] == 167772160  # 40 layers of 4 MiB
    assert data["intensity"] == 0.624  # paper, Eq. 12
    assert data["state_bytes_per_layer"] == 4 * 2**20
    assert data["record_bytes_per_head"] == 388
    assert (data["phase"], data["accepted"], data["steps_per_flush"]) == ("decode", 1, 16)
    assert data["window_best_paper"] == 13


def test_super_verify(capsys: pytest.CaptureFixture[str]) -> None:
    data = traffic_json(capsys, "--model", "nemotron-super", "--draft", "4", "--accepted", "3.5")
    assert data["window_star"] == 23.73  # paper, C.5
    assert data["window"] == 16
    assert data["phase"] == "verify"
    assert data["accepted"] == pytest.approx(3.5)
    assert data["window_best_paper"] == 24
    assert 12 < data["tokens_per_flush"] < 16  # paper, C.5: a cycle commits between L - T + 1 and L tokens
    assert data["flops_materialized_per_head"] > 2 * data["flops_output_only_per_head"]


def test_without_an_optimum_eq_16_says_none(capsys: pytest.CaptureFixture[str]) -> None:
    # M_S / r = 4 * 64 * 128 / 388 = 84.5 for Super.
    args = ("--model", "nemotron-super", "--window", "128", "--accepted", "4", "--draft")
    below = traffic_json(capsys, *args, "84")
    assert below["window_star"] == pytest.approx((2 * 4 * (32768 / 388 - 84)) ** 0.5, abs=0.005)
    assert below["window_star_cost"] > 0
    above = traffic_json(capsys, *args, "85")
    assert (above["window_star"], above["window_star_cost"]) == (None, None)
    assert run(["traffic", *args, "85"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("L* ")]
    assert "none (T > M_S/r)" in line and "cost" not in line


def test_a_draft_alone_commits_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    data = traffic_json(capsys, "--model", "nemotron-super", "--draft", "4")
    assert (data["acceptance"], data["accepted"]) == ("T", 4)
    assert data["steps_per_flush"] == 4  # h = 4, 8, 12, 16


def test_exact_bytes_of_the_shipped_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    data = traffic_json(capsys, "--model", "nemotron-super", "--window", "16", "--batch", "256")
    rows = {row["method"]: row for row in data["methods"]}
    conventional, replay = rows["conventional"], rows["replay"]
    state = 256 * 4 * 2**20
    assert (conventional["bytes_read_paper"], conventional["bytes_write_paper"]) == (state, state)
    assert 0 < conventional["bytes_read"] / state - 1 < 0.02  # the token's inputs
    assert replay["bytes_read_paper"] + replay["bytes_write_paper"] == pytest.approx(0.58120 * 2 * state, rel=1e-4)
    # Keys shared by 16 heads: fewer bytes than the paper counts, more than the checkpoint alone.
    assert 17 / 32 < data["ratio_exact"] < data["ratio_paper"]
    records = replay["bytes_read"] - state - 256 * 7.5 * SUPER_RECORD
    assert 0 < records < 0.02 * state  # what is left is the token's inputs and cursors
    assert data["window_best_basis"].startswith("replay's exact bytes")
    assert data["window_best"] >= 13  # shared keys raise it
    assert 0 <= data["window_cost"] < 0.01


def test_exact_best_window_is_the_least_of_a_scan(capsys: pytest.CaptureFixture[str]) -> None:
    best = traffic_json(capsys, "--model", "nemotron-super")["window_best"]
    totals = {}
    for window in (best - 1, best, best + 1):
        rows = {
            row["method"]: row
            for row in traffic_json(capsys, "--model", "nemotron-super", "--window", str(window))["methods"]
        }
        totals[window] = rows["replay"]["bytes_read"] + rows["replay"]["bytes_write"]
    assert min(totals, key=lambda window: totals[window]) == best


def test_other_dtypes(capsys: pytest.CaptureFixture[str]) -> None:
    half = traffic_json(capsys, "--model", "nemotron-super", "--state-dtype", "fp16", "--kv-dtype", "bf16")
    assert half["state_bytes_per_sequence"] == 83886080
    assert half["crossover_tokens"] == 20480
    assert half["intensity"] == 1.248
    assert half["ratio_paper"] > 0.5812
    wide = traffic_json(capsys, "--model", "nemotron-super", "--input-dtype", "fp32")
    assert wide["record_bytes_per_head"] == 772


def test_gdn_and_kda(capsys: pytest.CaptureFixture[str]) -> None:
    data = traffic_json(capsys, "--model", "qwen3.5-4b")
    assert data["family"] == "gdn"
    assert data["ratio_paper"] == 0.5645
    assert data["window_star"] == 15.87
    assert data["state_bytes_per_head"] / data["record_bytes_per_head"] == pytest.approx(127.0, abs=0.05)
    assert data["intensity"] == 0.876  # (7 · 128 · 128 + 128) / (8 · 128 · 128)
    control = by_method(data)["conventional"]
    token = 2 * (32 * 128 + 2 * 16 * 128 + 2 * 32)  # q, k, v, gate and beta
    assert control["bytes_read"] == 2 * 2**20 + token + 4 + 2 * 4 * 32
    assert control["flops"] == 32 * 128 * 897
    kimi = traffic_json(capsys, "--model", "kimi-linear-48b-a3b")
    assert (kimi["family"], kimi["record_bytes_per_head"]) == ("kda", 1024)
    assert (kimi["ratio_paper"], kimi["window_star"]) == (0.5972, 11.22)
    nano = traffic_json(capsys, "--model", "nemotron-nano")
    assert nano["ratio_paper"] == 0.5745
    assert nano["window_star"] == 13.89


def test_a_model_without_attention_has_no_crossover(capsys: pytest.CaptureFixture[str]) -> None:
    assert traffic_json(capsys, "--model", "mamba2-2.7b")["crossover_tokens"] is None


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["traffic", "--model", "nemotron-super"]) == 0
    out = capsys.readouterr().out
    for text in ("81,920", "167,772,160", "0.5812", "12.92", "Eq. 16", "conventional", "replay"):
        assert text in out
    assert "nan" not in out.lower()


def test_tables_of_a_model_without_kernels_or_attention(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_methods", lambda family, phase: [])
    assert run(["traffic", "--model", "nemotron-super", "--draft", "2"]) == 0
    captured = capsys.readouterr()
    assert "no kernels for mamba2 verify" in captured.err
    assert "the paper's bytes over the cursor's real cycle" in captured.out


@pytest.mark.parametrize("dtype", ["fp8", "nvfp4"])
def test_bytes_are_counted_in_dtypes_that_no_kernel_takes(capsys: pytest.CaptureFixture[str], dtype: str) -> None:
    assert run(["traffic", "--model", "nemotron-super", "--state-dtype", dtype]) == 0
    out, err = capsys.readouterr()
    share = {"fp8": 4, "nvfp4": 8}[dtype]
    assert f"{167772160 // share:,}" in out
    assert "no kernels for this dtype (state float" in err.splitlines()[0]
    assert "mamba2 decode" not in err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--model", "nemotron-super", "--window", "0"], "--window: 0"),
        (["--model", "nemotron-super", "--window", "-3"], "--window: -3"),
        (["--model", "nemotron-super", "--window", "10000000"], "--window: 10000000"),
        (["--model", "nemotron-super", "--batch", "9" * 20], "--batch: 9999"),
        (["--model", "nemotron-super", "--draft", "0"], "--draft: 0"),
        (["--model", "nemotron-super", "--batch", "0"], "--batch: 0"),
        (["--model", "nemotron-super", "--window", "4", "--draft", "5"], "--draft: 5"),
        (["--model", "nemotron-super", "--draft", "17"], "L = 16"),
        (["--model", "nemotron-super", "--accepted", "2"], "1..1"),
        (["--model", "nemotron-super", "--draft", "4", "--accepted", "6"], "1..4"),
        (["--model", "nemotron-super", "--draft", "4", "--accepted", "many"], "many"),
        (["--model", "nemotron-super", "--kv-dtype", "int3"], "int3"),
        (["--model", "nemotron-super", "--state-dtype", "int32"], "int32"),
        (["--model", "nemotron-super", "--input-dtype", "fp8"], "--input-dtype: 'fp8'"),
        (["--model", "nemotron-superb"], "nemotron-superb"),
        (["--model", "nemotron-super", "--window", "16.5"], "--window"),
        ([], "--model"),
    ],
)
def test_bad_input(args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["traffic", *args, "--json"])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert says in captured.err


class FakeReplay:
    """A windowed method whose bytes are easy to add up by hand."""

    key, family, phase, source, windowed = "replay", "mamba2", "decode", "by hand", True

    def supports(self, case: Case) -> str | None:
        return "three is too many" if case.batch == 3 else None

    def step(self, shape: Shape, point: Point, h: Any, flush: Any) -> Step:
        return Step(point.batch * (100 + 10 * h), point.batch * np.where(flush, 1000, 1), 5)

    def paper(self, shape: Shape, point: Point) -> Step:
        return Step(7, 8, 9)


def test_a_method_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_methods", lambda family, phase: [FakeReplay()])
    data = command.collect("nemotron-super", window=4, batch=2)
    (row,) = data["methods"]
    assert row["bytes_read"] == 2 * 115
    assert row["bytes_write"] == 2 * (3 + 1000) / 4
    assert (row["bytes_read_paper"], row["bytes_write_paper"]) == (7, 8)
    assert data["ratio_exact"] is None  # no conventional to compare with
    # f(L) = 100 + 5 (L - 1) + 1 + 999 / L is least at L = sqrt(999 / 5) = 14.1.
    assert data["window_best"] == 14
    assert command.collect("nemotron-super", batch=3)["methods"][0]["reason"] == "three is too many"


def test_collect_raises_for_a_caller() -> None:
    with pytest.raises(InputError, match="--window"):
        command.collect("nemotron-super", window=0)


def test_runs_without_torch() -> None:
    code = (
        "import sys; from perfkit.cli.app import run; code = run(['traffic', '--model', 'nemotron-super', '--json']);"
        "print(code, sorted({'torch', 'pandas', 'scipy', 'plotly'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip().splitlines()[-1] == "0 []"
    assert json.loads(done.stdout)["ratio_paper"] == 0.5812


def by_method(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in data["methods"]}


def test_the_table_of_appendix_a1(capsys: pytest.CaptureFixture[str]) -> None:
    rows = by_method(
        traffic_json(capsys, "--model", "nemotron-super", "--draft", "4", "--accepted", "T-1", "--batch", "256")
    )
    state = 256 * 4 * 2**20
    assert list(rows) == ["snapshot", "fused_recovery", "activation_replay", "joint_attainment", "stree",
                          "stree_released", "replay"]  # fmt: skip
    counts = {key: (row["state_reads"], row["state_writes"], row["serial"]) for key, row in rows.items()}
    assert counts == {  # paper, App. A.1, at T = 4 and a = 3
        "snapshot": (1, 4, 4), "fused_recovery": (1, 2, 7), "activation_replay": (3, 3, 8),
        "joint_attainment": (3, 4, 7), "stree": (2, 1, 4), "stree_released": (5, 4, 4), "replay": (1, 0.2, 0),
    }  # fmt: skip
    launches = {key: row["launches"] for key, row in rows.items() if key not in ("stree_released", "replay")}
    assert launches == {"snapshot": 1, "fused_recovery": 1, "activation_replay": 3, "joint_attainment": 2, "stree": 2}
    for key, row in rows.items():
        if key != "replay":
            assert row["bytes_read_paper"] == row["state_reads"] * state, key
            assert row["bytes_write_paper"] == row["state_writes"] * state, key
        if row["registered"]:
            moved = row["bytes_read"] + row["bytes_write"]
            assert 1 < moved / ((row["state_reads"] + row["state_writes"]) * state) < 1.1, key


def test_a_strategy_without_kernels_has_the_papers_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_methods", lambda family, phase: [])
    for accepted, serial in (("1", 5), ("3", 7), ("T", 4), ("p:.88,.62,.40", 4 + 0.12 + 2 * 0.26 + 3 * 0.22)):
        row = by_method(command.collect("nemotron-super", draft_len=4, accepted=accepted, batch=2))["fused_recovery"]
        assert row["serial"] == pytest.approx(serial)
        assert (row["registered"], row["bytes_read"], row["launches"]) == (False, None, 1)
        assert (row["bytes_read_paper"], row["bytes_write_paper"]) == (2 * 4 * 2**20, 4 * 4 * 2**20)
    for accepted, steps in (("1", 13), ("T-1", 5), ("T", 4)):  # L = 16: a flush every floor(12 / a) + 1 steps
        replay = by_method(command.collect("nemotron-super", draft_len=4, accepted=accepted))["replay"]
        assert replay["state_writes"] == pytest.approx(1 / steps)
    delta = command.collect("qwen3.5-4b", draft_len=4)["methods"]  # the table is about Mamba-2
    assert delta and all(row["reason"] and not row["registered"] for row in delta)


def test_a_strategy_that_is_none_for_the_family_has_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["traffic", "--model", "qwen3.5-122b", "--draft", "4"]) == 0
    said = dict(line.split(": ", 1) for line in capsys.readouterr().err.splitlines() if ": " in line)
    assert {"joint_attainment", "stree", "stree_released"} <= set(said)
    assert "by the state before it" in said["stree"]


def test_a_tree(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--model", "nemotron-super", "--tree", "0,0,1,1,2,2,3", "--accepted", "mean:2.5", "--window", "8")
    data = traffic_json(capsys, *args)
    assert (data["draft_len"], data["depth"], data["tree"]) == (8, 4, "0,0,1,1,2,2,3")
    assert data["accepted"] == pytest.approx(2.5)
    assert 2.5 < data["tokens_per_flush"] < 8  # the rule is h + 4 > 8
    rows = by_method(data)
    assert rows["fused_recovery"]["reason"] == rows["joint_attainment"]["reason"] == "takes no draft tree"
    # Nodes 0 to 3 are the parents of two or of one that does not follow: a walk in order comes back to them.
    assert 1 < rows["snapshot"]["state_reads"] <= 5 and rows["snapshot"]["state_writes"] == 8
    assert rows["replay"]["state_reads"] == 1 and rows["replay"]["bytes_read"] > 0
    assert run(["traffic", *args]) == 0
    out, err = capsys.readouterr()
    assert "T = 8 (tree 0,0,1,1,2,2,3, depth 4)" in out and "fused_recovery: takes no draft tree" in err
    assert run(["traffic", *args, "--draft", "8"]) == 0


def recorded(method: str, time: float, **columns: Any) -> dict[str, Any]:
    return {"status": "ok", "method": method, "gpu": "h200-sxm", "phase": "verify", "batch": 256, "window": None,
            "draft_len": 4, "acceptance": "3", "tree": None, "flush_phase": "aligned", "input_dtype": "bfloat16",
            "state_dtype": "float32", "n_layers": 1, "time_us": time, "time_us_lo": time, "time_us_hi": time,
            "manifest": {}} | columns  # fmt: skip


def test_recorded_times_stand_beside(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--model", "nemotron-super", "--draft", "4", "--accepted", "T-1")
    rows = [
        recorded("snapshot", 1380.0), recorded("snapshot", 5.0, acceptance="T"), recorded("snapshot", 6.0, draft_len=8),
        recorded("snapshot", 7.0, batch=64), recorded("snapshot", 8.0, tree="0,0,0"),
        recorded("snapshot", 9.0, status="oom"),
        recorded("replay", 350.0, window=8), recorded("replay", 380.0, window=16),
        recorded("stree", 1234.0, flush_phase="staggered"), recorded("stree", 1235.0, state_dtype="bfloat16"),
        recorded("stree", 1234.0, acceptance="9"),
    ]  # fmt: skip
    monkeypatch.setattr("perfkit.profiles.load_measured", lambda model=None, gpu=None: rows)
    found = by_method(traffic_json(capsys, *args))
    assert [(time["gpu"], time["batch"], time["time_us"]) for time in found["snapshot"]["times"]] == [
        ("h200-sxm", 256, 1380)
    ]
    assert (found["replay"]["times"][0]["window"], found["replay"]["times"][0]["time_us"]) == (16, 380.0)
    assert found["stree"]["times"] == []
    assert by_method(traffic_json(capsys, *args, "--batch", "64"))["snapshot"]["times"][0]["time_us"] == 7.0
    assert by_method(traffic_json(capsys, *args, "--window", "12"))["replay"]["times"][0]["window"] == 8
    assert run(["traffic", *args, "--window", "12"]) == 0
    out = capsys.readouterr().out
    assert "us on h200-sxm at B=256, recorded" in out and "350 (L=8)" in out
    monkeypatch.setattr("perfkit.profiles.load_measured", lambda model=None, gpu=None: [])
    assert run(["traffic", *args]) == 0
    assert "recorded" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--tree", "0,0,1", "--draft", "3"], "--draft: 3: a tree has as many positions"),
        (["--tree", "0,1,2,3", "--window", "4"], "--tree: 5: the longest path does not fit"),
        (["--tree", "0,7"], "--tree: '7': the parent of node 2"),
        (["--draft", "4", "--accepted", "1,T"], "'1,T': not an acceptance"),
        (["--accepted", "T-1"], "'T-1': a step of one position commits it (allowed: 1)"),
        (["--tree", "0,0,1", "--accepted", "4"], "1..3"),
    ],
)
def test_bad_trees_and_lists(args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["traffic", "--model", "nemotron-super", *args]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.strip().splitlines()) == 1 and says in err
