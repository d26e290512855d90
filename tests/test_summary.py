"""The last lines of a sweep: every figure comes from the rows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from perfkit import cases, derive, lastlines, results, summary
from perfkit.progress import PlainProgress, duration
from perfkit.roofline.roof import datasheet_roofs
from perfkit.shape import Shape

SUPER = Shape("mamba2", 128, 8, 64, 128)
GPU = SimpleNamespace(
    key="h200", bandwidth_gb_s=4800.0, fp32_tflops=67.0, bf16_tflops=989.4, l2_mb=50.0, boost_clock_mhz=1980.0
)
ROOFS = datasheet_roofs("h200", 4800.0)
FACTS = {"key": "h200", "name": "NVIDIA H200", "uuid": "GPU-1a2b3c4d-0000", "driver": "580.159", "sm_clock_mhz": 1980}
#: Times on an H200 in microseconds, by batch: conventional, then replay at windows 8, 16, 32.
TIMES = {1: (4.6, 6.4, 6.3, 6.3), 4: (11.1, 10.5, 10.2, 10.3), 256: (559.0, 320.0, 302.0, 305.0)}


def rows(times=TIMES, source="measured", half_width=0.003, spec=None, **columns) -> tuple[list[dict], dict]:
    axes = cases.parse_spec(batch=",".join(map(str, times)), window="8,16,32", **(spec or {}))
    groups = cases.build_groups(SUPER, axes)
    table = {case.id: case for group in groups for case in group.cases}
    made = []
    for group in groups:
        for case, time in zip(group.cases, times[group.cases[0].batch], strict=True):
            ok = isinstance(time, float)
            more = {"time_us": time, "time_us_lo": time * (1 - half_width), "time_us_hi": time * (1 + half_width),
                    "n_throttled": 0, "l2_state": "cold"} if ok else {"reason": "other process 61 GB"}  # fmt: skip
            status = "ok" if ok else time
            made.append(results.make_row(case, model="m", gpu="h200", source=source, status=status, **more, **columns))
    return derive.derive(made, table, GPU, ROOFS), table


def text(made: list[dict], table: dict, tuned: bool = False) -> list[str]:
    return lastlines.lines(summary.summarize(made, table, GPU, ROOFS), FACTS, ROOFS, tuned=tuned)


def test_the_lines_of_a_measured_sweep():
    made, table = rows()
    for row in made:
        if row["method"] == "conventional":
            row["time_default_us"] = row["time_us"] * 1.0125
            row["aa_difference"] = -0.003 if row["batch"] == 256 else 0.021
    lines = text(made, table, tuned=True)
    assert lines[0].split() == ["B1", "L16", "replay", "6.30", "us", "[6.28,6.32]", "0.73x", *lines[0].split()[7:]]
    assert lines[2].startswith("B256 L16 replay")
    assert "302 us [301,303]  1.85x" in lines[2]
    assert "% roof  DRAM" in lines[2]
    assert lines[3] == "12/12 ok; 0 samples throttled; A/A floor 0.3% at B=256, 2.1% at worst"
    assert lines[4] == "MEASURED  NVIDIA H200 GPU-1a2b, driver 580, SM 1980 MHz, cold L2"
    assert lines[5] == "control   tuned conventional 559 us at B=256; default configuration 566 us"
    assert lines[6].startswith("best L    measured 16 of 8, 16, 32, exact model ")
    assert "Eq. 16 12.9 (would cost " in lines[6]
    assert lines[7] == "choice    the model's L is the fastest that was timed, in 3 cases"
    assert lines[8] == "roofs     datasheet, uncalibrated"
    assert lines[9].startswith("model     median error ")
    assert lines[10].startswith("break-even batch ")


def test_what_the_models_window_costs_is_measured():
    made, table = rows()
    for row in made:
        if row["batch"] == 256 and row["window"] == 32:
            row["time_us"] = 0.96 * min(r["time_us"] for r in made if r["batch"] == 256 and r["window"] == 16)
    found = summary.window_choice(made)
    assert found is not None
    assert (found["chosen"], found["fastest"], found["batch"], found["groups"]) == (16, 32, 256, 3)
    assert found["cost"] == pytest.approx(1 / 0.96 - 1)
    line = next(line for line in text(made, table) if line.startswith("choice"))
    assert line == ("choice    the model's L costs 4.2% at most over the fastest that was timed, in 3 cases "
                    "(16 for 32 at B=256)")  # fmt: skip
    # Two windows say nothing, nor does a prediction of itself.
    assert summary.window_choice([row for row in made if row["window"] != 8]) is None
    assert summary.window_choice([row | {"source": "predicted"} for row in made]) is None


def test_break_even_lies_between_the_batches_that_lose_and_win():
    made, table = rows()
    found = summary.summarize(made, table, GPU, ROOFS)["break_even"]
    # 0.730 at 1 and 1.088 at 4, linear in log2: 2 ** (2 * 0.270 / 0.358)
    assert found["batch"] == pytest.approx(2.84, abs=0.02)
    assert 2 < found["lo"] <= found["batch"] <= found["hi"] < 4


def test_always_faster_and_never_faster():
    always, table = rows({1: (9.0, 8.0, 7.0, 7.5), 4: (20.0, 12.0, 11.0, 11.5)})
    assert text(always, table)[-1] == "break-even at most batch 1"
    never, table = rows({1: (4.0, 8.0, 7.0, 7.5), 4: (9.0, 12.0, 11.0, 11.5)})
    assert text(never, table)[-1] == "break-even none up to 4"


def test_a_predicted_break_even_is_as_unsure_as_its_times():
    made, table = rows({1: (9.0, 8.0, 7.5, 7.6), 256: (559.0, 330.0, 305.0, 310.0)}, "predicted", half_width=0.3)
    assert text(made, table)[-1].startswith("break-even predicted at most batch 1 [1,")


def test_a_break_even_names_the_rows_that_it_is_of():
    fast = {1: (9.0, 8.0, 7.5, 7.6), 256: (559.0, 330.0, 305.0, 310.0)}
    predicted, table = rows(fast, "predicted")
    recorded, _ = rows(source="recorded")
    lines = text(predicted + recorded, table)
    assert lines[-1].startswith("break-even recorded batch 2.84 [")
    assert "; predicted at most batch 1" in lines[-1]
    assert any(line.startswith("best L    recorded 16 of 8, 16, 32, predicted 16 of 8, 16, 32, ") for line in lines)
    assert "control   conventional ~559 us at B=256; recorded 559 us" in lines


def test_not_every_kernel_was_checked():
    made, table = rows(source="predicted", checked="interpreter")
    made[0]["checked"] = "no"
    assert any(line.endswith("; not all kernels checked in the interpreter") for line in text(made, table))


def test_failures_are_counted_with_a_reason():
    made, table = rows({4: (11.1, 10.5, "oom", 10.3), 256: (559.0, "oom", "crashed", 305.0)})
    line = next(line for line in text(made, table) if "ok" in line)
    assert line == ("5/8 ok, 2 oom (other process 61 GB), 1 crashed (other process 61 GB); "
                    "0 samples throttled; A/A floor unknown")  # fmt: skip


def test_nothing_that_ran_gives_no_figures():
    made, table = rows({4: ("oom", "oom", "oom", "oom")})
    assert text(made, table) == [
        "0/4 ok, 4 oom (other process 61 GB); 0 samples throttled; A/A floor unknown",
        "MEASURED  NVIDIA H200 GPU-1a2b, driver 580, SM 1980 MHz",
    ]


def test_predictions_are_marked():
    made, table = rows(source="predicted", half_width=0.2, checked="interpreter")
    lines = text(made, table)
    assert "~302 us" in lines[2]
    assert "roof  " not in lines[2]
    assert (
        "PREDICTED NVIDIA H200: nothing was timed here; bytes over datasheet roofs, efficiencies fitted on h200-sxm; "
        "kernels checked in the interpreter" in lines
    )
    assert not any(line.startswith("MEASURED") for line in lines)
    assert not any(line.startswith("model") for line in lines)  # nothing to be wrong against
    assert any(line.startswith("control   conventional ~559 us") for line in lines)


def predicted_line(made: list[dict], table: dict, gpu: str) -> str:
    roofs = datasheet_roofs(gpu, 4800.0)
    lines = lastlines.lines(summary.summarize(made, table, GPU, roofs), FACTS, roofs)
    return next(line for line in lines if line.startswith("PREDICTED"))


def test_efficiencies_of_another_gpu_are_said(monkeypatch: pytest.MonkeyPatch):
    made, table = rows(source="predicted", checked="interpreter")
    assert "; bytes over datasheet roofs and fitted efficiencies; " in predicted_line(made, table, "h200-sxm")
    assert "; bytes over datasheet roofs, efficiencies fitted on h200-sxm; " in predicted_line(made, table, "b200")
    monkeypatch.setattr("perfkit.roofline.efficiency_for", lambda *args: None)
    assert "; bytes over datasheet roofs, a bound; " in predicted_line(made, table, "b200")


def test_a_method_without_a_fit_is_named(monkeypatch: pytest.MonkeyPatch):
    made, table = rows(source="predicted", checked="interpreter")
    fit = SimpleNamespace(gpu="h200-sxm", lender=None)
    monkeypatch.setattr(
        "perfkit.roofline.efficiency_for", lambda family, method, *args: fit if method == "replay" else None
    )
    line = predicted_line(made, table, "h200-sxm")
    assert "; bytes over datasheet roofs and fitted efficiencies (none for conventional: a bound); " in line
    fit.lender = "mamba2"
    line = predicted_line(made, table, "h200-sxm")
    assert " (none for conventional: a bound; replay after mamba2's kernels); " in line


def test_recorded_rows_are_apart():
    predicted, table = rows(source="predicted")
    recorded, _ = rows(source="recorded")
    found = summary.summarize(predicted + recorded, table, GPU, ROOFS)
    assert (found["total"], found["recorded"]) == (12, 12)
    assert found["model"]["source"] == "recorded"
    lines = lastlines.lines(found, FACTS, ROOFS)
    assert "RECORDED  12 shipped rows of this model and GPU stand beside them" in lines
    assert any(
        line.startswith("model     median") and "against the recorded rows, which the model is fitted to" in line
        for line in lines
    )


def test_above_the_roof_is_flagged():
    made, _ = rows({256: (559.0, 150.0, 150.0, 150.0)})
    line = lastlines.result_line(made[1])
    assert made[1]["roof_fraction"] > 1
    assert "(above its roof)" in line


def test_aa_floor_of_a_self_check():
    spec = cases.parse_spec(batch="1,4", window="8", self_check=True)
    made = []
    for group, times in zip(cases.build_groups(SUPER, spec), ((10.0, 10.3, 8.0), (20.0, 19.9, 15.0)), strict=True):
        made += [results.make_row(case, source="measured", status="ok", time_us=time)
                 for case, time in zip(group.cases, times, strict=True)]  # fmt: skip
    assert summary.aa_floor(made) == pytest.approx(0.03)
    assert summary.aa_floor([row | {"source": "predicted"} for row in made]) is None
    assert [row["method"] for row in summary.best_rows(made)] == ["replay", "replay"]


def test_a_control_that_failed_is_said_where():
    made, table = rows({4: ("crashed", 10.5, 10.2, 10.3), 64: ("crashed", 90.5, 90.2, 90.3), 256: TIMES[256]})
    made[0]["reason"] = made[4]["reason"] = "SIGKILL"
    lines = text(made, table)
    where = [line for line in lines if line.startswith("control")]
    assert where == [
        "control   conventional 559 us at B=256",
        "control   failed at B=4, 64: crashed (SIGKILL); no speedups there",
    ]


def test_the_only_control_failed():
    made, table = rows({256: ("incorrect", 320.0, 302.0, 305.0)})
    made[0]["reason"] = None
    lines = text(made, table)
    assert "control   failed at B=256: incorrect; no speedups there" in lines
    assert "x" not in lines[0].split("%")[0]


def test_times_stand_below_each_other_whatever_the_state():
    made, table = rows({4: TIMES[4], 256: TIMES[256]}, spec={"state_dtype": "fp32,bf16"})
    recorded, _ = rows({256: TIMES[256]}, source="recorded")
    lines = text([*made, *recorded], table)
    shown = [line for line in lines if " us [" in line]
    assert shown[0].startswith("B4 L16 replay        ")
    assert sum("bfloat16" in line for line in shown) == 2 and len(shown) == 5
    assert {line.index(" us [") - len(line.split(" us [")[0].split()[-1]) for line in shown} == {
        len("B256 L16 replay bfloat16") + 2
    }


def test_without_an_optimum_eq_16_is_left_out(monkeypatch: pytest.MonkeyPatch):
    made, table = rows()
    monkeypatch.setattr("perfkit.roofline.l_star", lambda *args: 0.0)
    found = summary.summarize(made, table, GPU, ROOFS)["best_window"]
    assert (found["eq16"], found["cost"]) == (None, None) and found["model"] is not None
    (line,) = [line for line in text(made, table) if line.startswith("best L")]
    assert "Eq. 16" not in line


def test_many_groups_are_cut_and_counted():
    made, table = rows({2**n: (10.0, 9.0, 8.0, 9.0) for n in range(14)})
    lines = text(made, table)
    assert lines[0].startswith("B4 L16 replay")
    assert lines[12] == "… 2 more groups in results.csv"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (59.6, "1 min"), (61, "1 min 1 s"), (3600, "1 h 0 min"), (7500, "2 h 5 min")]
)
def test_duration(seconds, said):
    assert duration(seconds) == said


def test_plain_progress_tells_time_left(capsys):
    progress = PlainProgress()
    progress.begin(3)
    progress.case_done("B1 conventional", "ok", {"time_us": 4.6}, None)
    progress.case_done("B1 replay", "oom", {}, "needs 190 GB")
    lines = capsys.readouterr()[1].splitlines()
    assert lines[0].startswith("[1/3] B1 conventional: 4.6 us, about ")
    assert lines[1].startswith("[2/3] B1 replay: oom: needs 190 GB, about ")
