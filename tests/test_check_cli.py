"""``perfkit check``: what it runs, what it prints, how it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from perfkit import checking, device, samples
from perfkit.cli import check_run
from perfkit.cli.app import run
from perfkit.method import Case
from perfkit.registry import methods
from perfkit.shape import Shape

PLANTED = Path(__file__).with_name("planted_methods.py")
STUB = Path(__file__).with_name("stub_worker.py")

Reply = dict[str, Any]
OK: Reply = {"status": "ok", "reason": None, "row": {"rel_error": 1e-7, "steps": 9, "covered": ["outputs", "bytes"],
                                                   "launch_config": "rows=16 warps=1"}}  # fmt: skip
KERNEL = {"cc": 90, "registers": 66, "spill_stores": 0, "spill_loads": 0}


class Worker:
    """Stands for workers: answers every case, remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Case]] = []
        self.options: list[dict[str, Any]] = []
        self.replies: dict[str, Reply] = {}

    def __call__(self, cases: Any, mode: str, settings: Any, progress: Any, **options: Any) -> Any:
        self.options.append({"mode": mode, "settings": settings, **options})
        for case in cases:
            self.asked.append((mode, case))
            compiled: Reply = {"status": "ok", "reason": None, "row": {"compiled": [KERNEL]}}
            default = compiled if mode == "compile" else OK
            yield case, self.replies.get(f"{mode} {case.method}", default)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    found = Worker()
    monkeypatch.setattr(check_run, "run_cases", found)
    monkeypatch.setattr(device, "usable_gpu", lambda: None)
    return found


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_without_a_gpu_it_interprets_and_compiles(worker: Worker, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--json"]) == 0
    found = document(capsys)
    assert {row["where"] for row in found["cases"]} == {"interpreter", "compile"}
    asked = {(row["method"], row["phase"]) for row in found["cases"]}
    assert asked == {(method.key, method.phase) for method in methods()}
    assert {row["family"] for row in found["cases"]} == {"mamba2", "gdn", "kda"}
    assert {row["tree"] for row in found["cases"] if row["phase"] == "decode"} == {None}
    assert {"0,0,0", None} <= {row["tree"] for row in found["cases"] if row["method"] == "snapshot"}
    assert found["statuses"] == {"ok": len(found["cases"])} and found["exit_code"] == 0
    first = found["cases"][0]
    assert first["rel_error"] == 1e-7 and first["checked"] == ["outputs", "bytes"]
    assert first["shape"] == {"family": "mamba2", "n_v_heads": 2, "n_k_heads": 1, "d_v": 80, "d_k": 16}
    compiled = [case for mode, case in worker.asked if mode == "compile"]
    wanted = {Shape("mamba2", 128, 8, 64, 128), Shape("gdn", 32, 16, 128, 128), Shape("kda", 32, 32, 128, 128)}
    assert {case.shape for case in compiled} == wanted
    assert {case.batch for case in compiled} == {1, 256}
    assert worker.options[0]["settings"] == {"seed": 0, "check_only": True, "tune": False}


def test_lines_say_how_many_drafts_are_verified(worker: Worker, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--method", "snapshot", "--no-compile"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert " T " in header
    at = header.index(" T ") + 1
    shown = {line[at : at + 5].strip() for line in lines[:-1]}
    assert shown == {"2", "3", "4", "5", "7", "8", "16", "tree4", "tree6", "tree8"}
    worker.replies["interpret snapshot"] = {"status": "incorrect", "reason": "step 3", "row": {}}
    assert run(["check", "--method", "snapshot", "--no-compile"]) == 1
    assert "incorrect: interpreter mamba2 snapshot B2 T4 [" in capsys.readouterr().out


def test_one_line_a_case_and_a_count(worker: Worker, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--method", "conventional", "--no-compile", "--seed", "9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(worker.asked)
    assert "conventional" in lines[1] and "2/1" in lines[1] and "80x16" in lines[1] and "1.0e-07" in lines[1]
    assert "float16, float32" in lines[1] and "outputs, bytes" in lines[1]
    assert lines[-1] == f"{len(worker.asked)}/{len(worker.asked)} ok: interpreter"
    assert worker.options[0]["settings"]["seed"] == 9


@pytest.mark.parametrize(
    ("status", "code"), [("incorrect", 1), ("crashed", 3), ("timeout", 3), ("error", 3), ("oom", 3), ("skipped", 0)]
)
def test_exit_codes(worker: Worker, capsys: pytest.CaptureFixture[str], status: str, code: int) -> None:
    worker.replies["interpret replay"] = {"status": status, "reason": "because [of this]", "row": {}}
    assert run(["check", "--no-compile"]) == code
    out = capsys.readouterr().out
    assert f"{status}: interpreter mamba2 replay B3 L3 [" in out and "because [of this]" in out


def test_incorrect_outranks_crashed(worker: Worker, capsys: pytest.CaptureFixture[str]) -> None:
    worker.replies["interpret replay"] = {"status": "crashed", "reason": "SIGSEGV", "row": {}}
    worker.replies["interpret conventional"] = {"status": "incorrect", "reason": "step 3", "row": {}}
    assert run(["check", "--no-compile", "--json"]) == 1
    assert document(capsys)["exit_code"] == 1


def test_a_kernel_that_spills_is_incorrect(worker: Worker, capsys: pytest.CaptureFixture[str]) -> None:
    spilled = {**KERNEL, "cc": 80, "registers": 255, "spill_stores": 24, "spill_loads": 16}
    worker.replies["compile replay"] = {"status": "ok", "reason": None, "row": {"compiled": [KERNEL, spilled]}}
    assert run(["check"]) == 1
    out = capsys.readouterr().out
    assert "spills registers: sm_80 255 registers, 40 bytes spilled" in out
    assert "registers: sm_90 66, sm_80 255" in out


def test_with_a_gpu_the_same_cases_and_more_run_on_it(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Gpu:
        visible, uuid = "GPU-1a2b", "GPU-1a2b"

    monkeypatch.setattr(device, "usable_gpu", lambda: Gpu())
    monkeypatch.setenv("PERFKIT_LOCK_DIR", str(tmp_path))
    locked: list[str] = []

    class Lock:
        def __init__(self, uuid: str) -> None:
            locked.append(uuid)

        def __enter__(self) -> None: ...

        def __exit__(self, *args: object) -> None: ...

    monkeypatch.setattr(device, "gpu_lock", Lock)
    assert run(["check", "--no-compile", "--json"]) == 0
    found = document(capsys)["cases"]
    assert [row["where"] for row in found] == sorted((row["where"] for row in found), key=["interpreter", "gpu"].index)
    on_gpu = [case for mode, case in worker.asked if mode == "cuda"]
    assert {case.input_dtype for case in on_gpu} == {"float32", "float16", "bfloat16"}
    assert {case.state_dtype for case in on_gpu if case.input_dtype == "bfloat16"} == {"float32", "float16", "bfloat16"}
    assert worker.options[1]["visible"] == "GPU-1a2b" and locked == ["GPU-1a2b"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--family", "mamba3"], ["--family", "mamba3", "mamba2, gdn, kda"]),
        (["--method", "replai"], ["--method", "replai", "conventional, replay, ", ", all, FILE.py:METHOD"]),
        (["--method", "replay,nope"], ["--method", "nope"]),
        (["--method", "no/such.py:METHOD"], ["--method", "such.py:METHOD", "no such file"]),
        (["--method", f"{PLANTED}:NOT_A_METHOD"], ["--method", "NOT_A_METHOD", "RIGHT"]),
        (["--model", "no-such-model"], ["no-such-model"]),
        (["--model", "kimi-linear-48b-a3b", "--family", "gdn"], ["--model", "kimi-linear-48b-a3b", "kda", "gdn"]),
        (["--model", "nemotron-nano", "--no-compile"], ["--model", "--no-compile"]),
        (["--seed", "-1"], ["--seed", "-1"]),
    ],
)
def test_bad_input_is_one_line(
    worker: Worker, capsys: pytest.CaptureFixture[str], args: list[str], words: list[str]
) -> None:
    assert run(["check", *args]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    for word in words:
        assert word in err
    assert worker.asked == []


def test_a_file_s_method_is_checked_alone(worker: Worker, capsys: pytest.CaptureFixture[str],
                                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(PLANTED.parent)
    assert run(["check", "--method", "planted_methods.py:RIGHT", "--no-compile"]) == 0
    assert {case.method for _, case in worker.asked} == {f"{PLANTED}:RIGHT"}  # a worker may run elsewhere
    out = capsys.readouterr().out
    assert "planted_methods.py:RIGHT" in out and str(PLANTED.parent) not in out


def test_a_worker_that_does_not_start_is_said_for_each_case(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device, "usable_gpu", lambda: None)
    monkeypatch.setattr(checking, "worker_argv", lambda mode: [sys.executable, str(STUB), "--dead"])
    assert run(["check", "--method", "conventional", "--no-compile", "--json"]) == 3
    out, err = capsys.readouterr()
    rows = json.loads(out)["cases"]
    assert {row["status"] for row in rows} == {"error"} and len(rows) > 3
    assert all("no device here" in row["reason"] for row in rows)
    assert "no device here" in err


def test_a_real_worker_finds_a_planted_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device, "usable_gpu", lambda: None)
    small = Case(Shape("mamba2", 1, 1, 16, 16), "", 1, input_dtype="float32")

    def one(method: Any) -> list[Case]:
        return [samples.replace(small, method=method.key)]

    monkeypatch.setattr(samples, "interpreter_cases", one)
    args = ["check", "--family", "mamba2", "--method", f"conventional,{PLANTED}:FORGETS_SKIP", "--no-compile", "--json"]
    assert run(args) == 1
    rows = document(capsys)["cases"]
    assert [row["status"] for row in rows] == ["ok", "incorrect"]
    assert rows[0]["checked"][0] == "outputs" and rows[0]["rel_error"] < 2e-6 and rows[0]["steps"] == 9
    assert "output error" in rows[1]["reason"] and rows[1]["rel_error"] is None


def test_compiled_cases_cover_small_and_large_batches() -> None:
    for method in methods("mamba2", "decode"):
        cases = samples.compile_cases(method, Shape("mamba2", 96, 8, 80, 128))
        assert [case.batch for case in cases] == [1, 256]
        assert {case.window for case in cases} == {16 if method.windowed else None}


def test_each_case_of_a_check_has_a_name_of_its_own() -> None:
    for method in methods():
        for cases in (samples.interpreter_cases(method), samples.gpu_cases(method)):
            names = [checking.describe(case) for case in cases]
            assert len(set(names)) == len(names)
    case = samples.interpreter_cases(methods("mamba2", "decode")[0])[0]
    name = checking.describe(case)
    assert name.startswith("B3 conventional mamba2 2/1 heads 80x16, float16 inputs, float32 state [rows=")


def test_progress_names_what_differs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(device, "usable_gpu", lambda: None)
    monkeypatch.setattr(checking, "worker_argv", lambda mode: [sys.executable, str(STUB)])
    run(["check", "--method", "conventional", "--no-compile", "--json"])  # the stub answers, with errors
    shown = [line.split("] ", 1)[1] for line in capsys.readouterr().err.splitlines() if line.startswith("[")]
    assert len(shown) > 3 and len({line.split(": ")[0] for line in shown}) == len(shown)
