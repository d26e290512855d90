"""Whether the window that the model chooses is the best one: measured sweeps of windows 2 to 64, predicted anew."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.derive import derive
from perfkit.profiles import load_gpu, load_measured
from perfkit.profiles.measured import windows_folder
from perfkit.refit import case_of
from perfkit.roofline import shipped_roofs
from perfkit.summary import window_choice

#: Of which the preset ``windows`` is the sweep.
WINDOWS = (2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 40, 48, 64)
#: What ships of them: decode of these models at B = 256.
MODELS = ("nemotron-3-super-120b-a12b", "qwen3.5-122b-a10b", "qwen3.5-4b")
Row = dict[str, Any]


def swept(model: str) -> list[Row]:
    """Return the rows of a model's sweep of windows, with predictions by the fits that ship now."""
    rows = load_measured(model, directory=windows_folder())
    gpu = load_gpu("h200-sxm")
    cases = {row["case_id"]: case_of(row) for row in rows}
    return [row | new for row, new in zip(rows, derive(rows, cases, gpu, shipped_roofs(gpu)), strict=True)]


@pytest.mark.parametrize("model", MODELS)
def test_every_window_was_checked_and_timed(model: str) -> None:
    rows = {row["window"]: row for row in swept(model)}
    assert tuple(sorted(window for window in rows if window)) == WINDOWS
    for row in rows.values():
        assert (row["status"], row["phase"], row["batch"], row["checked"]) == ("ok", "decode", 256, "gpu")
        assert row["spill_bytes"] == 0 and row["time_us_hi"] - row["time_us_lo"] < 0.01 * row["time_us"]
        assert row["manifest"]["left_out"]  # its verify steps, and why


@pytest.mark.parametrize("model", MODELS)
def test_windows_beyond_32_are_inside_intervals_that_say_how_little_is_known_of_them(model: str) -> None:
    spans = {row["window"]: row["predicted_hi"] / row["predicted_us"] for row in swept(model) if row["window"]}
    assert spans[16] == pytest.approx(spans[32]) and all(spans[window] > 1.05 * spans[32] for window in (40, 48, 64))
    for row in swept(model):
        if row["window"] in (40, 48, 64):
            assert row["predicted_lo"] <= row["time_us"] <= row["predicted_hi"]


@pytest.mark.parametrize("model", MODELS)
def test_the_chosen_window_is_the_fastest(model: str) -> None:
    rows = swept(model)
    found = window_choice(rows)
    assert found is not None and found["groups"] == 1
    assert found["chosen"] == found["fastest"] == 16 and found["cost"] == 0.0
    # It can fail: were L = 64 predicted to be the fastest, it would cost more.
    lured = {"predicted_lo": 0.9, "predicted_us": 1.0, "predicted_hi": 1.1}
    wrong = [row | (lured if row["window"] == 64 else {}) for row in rows]
    worst = window_choice(wrong)
    assert worst is not None and worst["chosen"] == 64 and worst["cost"] > 0.5
