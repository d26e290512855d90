"""Sentences follow the data: change one saved time, and headline, advice and titles change."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from perfkit.reports import findings, header, select
from perfkit.reports.text import interval, join, method_text, microseconds, number, percent, plot_text, times
from tests.reportdata import frame, rows


def group(conventional: float, replay: dict[int, float], batch: int = 256, **changes: object) -> list[dict]:
    """Rows of one group with chosen times and intervals of ±1 %."""
    result = []
    for row in rows(batches=(batch,), windows=tuple(replay)):
        time = conventional if row["window"] is None else replay[row["window"]]
        row |= {"time_us": time, "time_us_lo": 0.99 * time, "time_us_hi": 1.01 * time, "speedup": conventional / time}
        result.append(row | changes)
    return result


def test_headline_and_advice_are_computed() -> None:
    data = pd.DataFrame(group(559.0, {8: 320.0, 16: 297.3, 32: 305.0}) + group(5.0, {16: 6.0}, batch=1))
    said = findings.answer(data)
    assert said.headline == "Replay at L = 16 is 1.88× faster than conventional at B = 256"
    assert said.advice == "Run replay at L = 16 from B = 256 up; keep conventional at B = 1."
    assert (said.verdict, said.source, said.method, said.window, said.batch) == (
        "faster",
        "measured",
        "replay",
        16,
        256,
    )
    assert said.gain == pytest.approx(559 / 297.3)
    # Two independent intervals of ±1 % are one of ±1.4 %.
    assert said.gain_lo == pytest.approx(1.8803 / 1.0142, abs=2e-3)
    assert said.gain_hi == pytest.approx(1.8803 * 1.0142, abs=2e-3)
    assert said.gain_text == "1.88× [1.85, 1.91]"


def test_one_changed_time_changes_headline_advice_and_titles() -> None:
    before = frame()
    after = before.copy()
    after.loc[after["case_id"].eq("c0256008"), ["time_us", "time_us_lo", "time_us_hi"]] = [250.0, 249.0, 251.0]
    old, new = findings.answer(before), findings.answer(after)
    assert "L = 16" in old.headline and "L = 8" in new.headline
    assert old.advice != new.advice
    for title in (
        findings.batch_time_title,
        findings.speedup_title,
        lambda f: findings.window_title(findings.windows(f)),
    ):
        assert title(before) != title(after), title


def test_recorded_rows_have_the_noise_floor_of_their_run(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pd.DataFrame(group(559.0, {16: 297.3}, source="recorded"))
    said = findings.answer(data, 0.5)
    assert said.source == "recorded" and said.aa_floor is None  # of a shipped run that is not there; 0.5 is this run's
    shipped = [
        {"case_id": "c0256016", "manifest": {"aa_floor": 0.0011}},
        {"case_id": "x", "manifest": {"aa_floor": 9.0}},
    ]
    asked = []

    def load(model: str, gpu: str) -> list[dict]:
        asked.append((model, gpu))
        return shipped

    monkeypatch.setattr("perfkit.profiles.load_measured", load)
    assert findings.answer(data).aa_floor == 0.0011
    assert asked == [("nemotron-super", "h200")]
    assert findings.answer(data.assign(aa_difference=-0.002)).aa_floor == 0.002  # the rows' own counts more
    assert findings.answer(pd.DataFrame(group(559.0, {16: 297.3}, source="predicted"))).aa_floor is None


def test_no_change_is_an_answer() -> None:
    said = findings.answer(pd.DataFrame(group(559.0, {16: 557.0})))
    assert said.verdict == "same"
    assert said.headline.startswith("No change: replay at L = 16 is 1.00× conventional's speed at B = 256")
    assert said.advice.startswith("Keep conventional at B = 256")


def test_a_gain_below_the_noise_floor_is_no_gain() -> None:
    data = pd.DataFrame(group(559.0, {16: 540.0}))
    assert findings.answer(data, 0.003).verdict == "faster"
    said = findings.answer(data, 0.05)
    assert said.verdict == "same" and "inside the noise of 5.0 %" in said.headline
    # What the rows themselves say about their noise counts more than the run's floor.
    assert findings.answer(data.assign(aa_difference=-0.06), 0.003).verdict == "same"


def test_slower_methods_are_not_recommended() -> None:
    said = findings.answer(pd.DataFrame(group(559.0, {16: 700.0})))
    assert said.verdict == "slower"
    assert (
        said.headline
        == "Nothing beats conventional at B = 256: replay at L = 16, the best other method, is 0.80× its speed"
    )
    assert "Keep conventional" in said.advice


@pytest.mark.parametrize(
    ("source", "verb"), [("recorded", "was"), ("predicted", "is predicted to be"), ("measured", "is")]
)
def test_the_headline_says_what_kind_of_evidence_it_rests_on(source: str, verb: str) -> None:
    data = pd.DataFrame(rows(source, batches=(64, 256)))
    said = findings.answer(data)
    assert said.source == source
    assert f"Replay at L = {said.window:.0f} {verb} " in said.headline


def test_measured_beats_recorded_beats_predicted_and_they_are_never_mixed() -> None:
    recorded = rows("recorded", batches=(256,))
    measured = [r | {"case_id": "m" + r["case_id"], "baseline": "m" + r["baseline"]} for r in group(600.0, {16: 300.0})]
    said = findings.answer(pd.DataFrame(recorded + measured))
    assert (said.source, said.gain) == ("measured", pytest.approx(2.0))
    lines = select.series(select.prepare(pd.DataFrame(recorded + measured)), "us")
    assert {(line.method, line.window, line.source) for line in lines} == {
        ("conventional", None, "measured"), ("conventional", None, "recorded"), ("replay", 16, "measured"),
        ("replay", 8, "recorded"), ("replay", 16, "recorded"), ("replay", 32, "recorded"),
    }  # fmt: skip
    assert all(set(line.rows["source"]) == {line.source} for line in lines)


def test_a_recorded_baseline_does_not_serve_a_measured_case() -> None:
    data = rows("recorded", batches=(256,), windows=()) + rows("measured", batches=(256,), windows=(16,))[1:]
    prepared = select.prepare(pd.DataFrame(data).assign(speedup=None))
    assert prepared.loc[prepared["method"].eq("replay"), "gain"].isna().all()
    # Their predictions may be compared: both are the byte model's.
    assert prepared.loc[prepared["method"].eq("replay"), "model_gain"].notna().all()


def test_recorded_rows_may_stand_beside_predicted_ones_of_the_same_case() -> None:
    predicted = rows("predicted", batches=(64, 256))
    recorded = [row | {"predicted_us": None} for row in rows("recorded", batches=(64, 256))]
    data = select.prepare(pd.DataFrame(predicted + recorded))
    assert data.loc[data["source"].eq("predicted"), "model_gain"].notna().all()
    assert data.loc[data["source"].eq("recorded"), "gain"].notna().all()
    assert findings.answer(data).source == "recorded"


def test_the_paired_interval_is_used_until_a_time_is_changed() -> None:
    data = pd.DataFrame(group(600.0, {16: 300.0}, speedup_lo=1.999, speedup_hi=2.001))
    said = findings.answer(data)
    assert (said.gain_lo, said.gain_hi) == (1.999, 2.001)
    data.loc[data["window"].eq(16), "time_us"] = 330.0
    assert findings.answer(data).gain_lo != 1.999


@pytest.mark.parametrize("row", ["conventional", "replay"])
def test_an_interval_that_reaches_zero_leaves_that_end_of_the_gain_open(row: str) -> None:
    data = pd.DataFrame(group(600.0, {16: 300.0})).assign(speedup=None)
    data.loc[data["method"].eq(row), "time_us_lo"] = 0.0
    said = findings.answer(data)
    assert said.gain == pytest.approx(2.0) and said.gain_text == "2.00×"
    # A control that may take no time leaves open whether anything is faster; a method that may only gains by it.
    ends = {"conventional": (None, "same"), "replay": (pytest.approx(2.0, abs=0.05), "faster")}
    assert (said.gain_lo, said.verdict) == ends[row]
    assert (said.gain_hi is None) == (row == "replay")


def test_break_even_lies_between_losing_and_winning_batches() -> None:
    data = [row for b, t in ((1, 125.0), (2, 110.0), (4, 90.0), (8, 60.0)) for row in group(100.0, {16: t}, batch=b)]
    even = findings.answer(pd.DataFrame(data)).break_even
    assert even is not None
    assert (even.below, even.above, even.smallest) == (2, 4, 1)
    assert 2 < even.lo <= even.estimate <= even.hi < 4
    always = [row for b in (1, 2, 4) for row in group(100.0, {16: 50.0}, batch=b)]
    assert findings.answer(pd.DataFrame(always)).break_even.text == "B = 1"
    never = [row for b in (1, 2, 4) for row in group(100.0, {16: 150.0}, batch=b)]
    assert findings.answer(pd.DataFrame(never)).break_even.text == "none up to B = 4"


def test_windows_three_ways() -> None:
    data = pd.DataFrame(group(559.0, {8: 320.0, 12: 312.0, 16: 300.0, 32: 305.0}))
    data.loc[data["window"].eq(32), "predicted_us"] = 10.0
    found = findings.windows(data)
    assert found is not None
    assert (found.timed, found.exact, found.source) == (16, 32, "measured")
    assert found.eq16 == pytest.approx(12.92, abs=0.005)  # Source: paper, Eq. 16 at Nemotron-3-Super's shape
    assert found.nearest == 12 and found.cost == pytest.approx(0.04)
    assert findings.window_title(found) == (
        "L = 16 is the fastest measured window, the byte model says 32 and Eq. 16 says 12.9; "
        "L = 12, the nearest one run, would cost 4.0 % (measured)"
    )


@pytest.mark.parametrize("kind", ["failed", "empty"])
def test_nothing_timed(kind: str) -> None:
    said = findings.answer(frame(kind))
    assert said.verdict == "nothing"
    assert said.headline.startswith("No case has a time: 2 error" if kind == "failed" else "The run holds no case")


def test_one_row_has_nothing_to_compare() -> None:
    said = findings.answer(frame("one"))
    assert said.verdict == "alone" and "nothing to compare" in said.headline
    assert said.gain is None and said.break_even is None


def test_workloads_are_told_apart() -> None:
    data = select.prepare(pd.DataFrame(rows() + rows(state_dtype="bfloat16", draft_len=4)))
    assert [name for name, _ in select.workloads(data)] == ["T = 1, float32 state", "T = 4, bfloat16 state"]
    assert [len(part) for _, part in select.workloads(data)] == [40, 40]


def test_warnings_name_what_a_reader_must_know() -> None:
    data = frame()
    data.loc[0, ["n_throttled", "n_samples", "roof_fraction", "stop_reason"]] = [3, 4, 1.12, "max_time"]
    gpu = {"processes": [{"pid": 1}], "is_mig": True}
    text = "\n".join(header.warnings(data, {"case_ids": [*data["case_id"], "never-run"], "gpu": gpu}))
    assert "Not alone: 1 other process on the GPU at the start." in text and "MIG instance" in text
    assert "1 case ended as oom: needs 190 GB, 138 GB free." in text
    assert "Above the roof: 1 case, up to 112 % (conventional, B = 1)" in text
    assert "Throttled: 3 samples in 1 case" in text
    assert "Few samples: 1 case with fewer than 10." in text
    assert "1 case stopped at a limit" in text
    assert "Unfinished run: 1 case of 42 cases did not run yet." in text
    loose = frame("predicted").assign(roof_source="datasheet", predicted_lo=np.nan)
    text = "\n".join(header.warnings(loose))
    assert (
        "Nothing was timed" in text
        and "Uncalibrated: 80 predictions rest on the datasheet" in text
        and "no interval" in text
    )
    assert "Unchecked: the kernels of 80 cases" in "\n".join(header.warnings(loose.assign(checked="no")))
    assert header.warnings(frame("measured").query("status == 'ok'")) == []


def test_the_head_of_a_report_says_which_roofs_the_run_went_by():
    data = frame("measured")
    assert dict(header.facts(data, {"roofs": {"text": "measured here 2026-12-24"}}))["Roofs"] == (
        "measured here 2026-12-24")  # fmt: skip
    assert dict(header.facts(data, {}))["Roofs"] == "measured"  # a run of before it was written down
    assert "Roofs" not in dict(header.facts(data.assign(roof_gb_s=np.nan), {"roofs": None}))


def test_numbers_as_words() -> None:
    assert [number(v) for v in (559.04, 0.0123, 1234567.0, 12.92, 0)] == ["559", "0.0123", "1,234,567", "12.9", "0"]
    assert microseconds(math.nan) == times(None) == percent(pd.NA) == "–"
    assert interval(1.0, math.nan) == "" and interval(1.0, 2.0) == "[1.00, 2.00]"
    assert method_text("replay", 16.0) == "replay at L = 16" and method_text("conventional", math.nan) == "conventional"
    assert join(["a", "b", "c"]) == "a, b and c" and join([]) == ""
    assert plot_text("<b>&") == "&lt;b&gt;&amp;"


def test_a_verify_answer_says_draft_length_and_acceptance() -> None:
    verify = {"phase": "verify", "draft_len": 4, "accepted": 3.0, "acceptance": "3"}
    data = pd.DataFrame(group(1380.0, {16: 364.0}, **verify)).replace({"method": {"conventional": "snapshot"}})
    said = findings.answer(data)
    assert said.headline == "Replay at L = 16 is 3.79× faster than snapshot at B = 256, T = 4, a = 3"
    assert findings.batch_time_title(data).startswith(
        "Replay at L = 16 takes 364 µs per step and layer at B = 256, T = 4, a = 3, snapshot 1,380 µs"
    )
    assert findings.answer(data.assign(tree="0,0,1")).headline.endswith("at B = 256, a tree of 4 nodes, a = 3")
