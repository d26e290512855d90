"""Fitted efficiencies: their form, who lends to whom, the shipped file, and what predictions say with and without."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfkit import derive
from perfkit.errors import InputError
from perfkit.method import Case, Step
from perfkit.profiles import load_efficiency, load_gpu, load_measured, load_model
from perfkit.profiles.measured import EFFICIENCY, MEASURED, load_loan
from perfkit.refit import case_of
from perfkit.roofline import efficiency_for, predict, roofs_for
from perfkit.roofline.efficiency import PRIOR_FREEDOM, Efficiency, borrowed, form, known, loan_width, tile_of
from perfkit.roofline.latency import UNFITTED_FACTOR, UNFITTED_US
from perfkit.roofline.roof import datasheet_roofs

H200 = load_gpu("h200-sxm")
ROOFS = roofs_for(H200)
SUPER, NANO, KIMI = load_model("nemotron-super"), load_model("nemotron-nano"), load_model("kimi-linear")


def fitted(method: str, phase: str = "decode", family: str = "mamba2") -> Efficiency:
    found = efficiency_for(family, method, phase, "h200-sxm")
    assert found is not None
    return found


def test_shipped_parameters_are_physical() -> None:
    conventional, replay = fitted("conventional"), fitted("replay")
    assert conventional.overhead_us == pytest.approx(1.0, abs=0.15)  # one or two trips to memory
    assert conventional.efficiency == pytest.approx(0.977, abs=0.01)
    assert replay.walk_us == pytest.approx(0.88, abs=0.15)  # per tile of 16 rows
    assert replay.efficiency == pytest.approx(0.943, abs=0.03)
    assert 0.05 < replay.record_share < 0.15
    assert replay.flush == pytest.approx(1.3, abs=0.1)
    # The instructions of an update over its ideal mix, in all kernels that make them one after the other.
    for method in ("fused_recovery", "activation_replay", "joint_attainment"):
        assert 3 < fitted(method, "verify").arithmetic < 5.5
    for entry in load_efficiency():
        assert len(form(entry["method"], entry["phase"])) <= 4
        for item in entry["parameters"].values():
            assert item["lo"] <= item["value"] <= item["hi"]


def test_verify_shares_parameters_with_the_decode_kernels_of_its_build() -> None:
    assert fitted("replay", "verify").walk_us == pytest.approx(fitted("replay").walk_us, rel=1e-4)
    # Of Kimi verify was timed at one window, so that its tiles of records are decode's; the others have a share of
    # their own, and Mamba-2's tell it from decode's.
    kimi = fitted("replay", "verify", "kda")
    assert kimi.record_share == pytest.approx(fitted("replay", family="kda").record_share, rel=1e-4)
    assert kimi.intervals["record_share"] == pytest.approx((kimi.record_share, kimi.record_share))
    for family in ("mamba2", "gdn"):
        low, high = fitted("replay", "verify", family).intervals["record_share"]
        assert low < fitted("replay", "verify", family).record_share < high
    assert fitted("replay", "verify").intervals["record_share"][1] < fitted("replay").intervals["record_share"][0]
    for method in ("snapshot", "fused_recovery", "stree"):
        assert fitted(method, "verify").overhead_us == pytest.approx(fitted("conventional").overhead_us, rel=1e-4)


def test_shipped_rows_hold_these_predictions() -> None:
    rows = load_measured(gpu_key="h200-sxm")
    for row in rows[::7]:
        if row["status"] != "ok":
            continue
        assert row["predicted_us"] / row["time_us"] - 1 == pytest.approx(row["prediction_error"], abs=1e-9)
        model = derive.model_case(case_of(row), H200, ROOFS)
        assert model.time is not None
        assert row["predicted_us"] == pytest.approx(model.time.us, rel=1e-9)
        assert row["roof_fraction"] == pytest.approx(model.roof_us / row["time_us"], rel=1e-9)


@pytest.mark.parametrize("model", [SUPER, NANO])
def test_predicted_break_even_is_where_it_was_measured(model: Any) -> None:
    def speedup(batch: int) -> float:
        times = [derive.model_case(Case(model.shape, method, batch, window=window), H200, ROOFS).time
                 for method, window in (("conventional", None), ("replay", 16))]  # fmt: skip
        assert times[0] is not None and times[1] is not None
        return float(times[0].us / times[1].us)

    assert speedup(1) < 0.8
    assert speedup(2) < 1 < speedup(5)
    assert 1.7 < speedup(256) < 1.9


def test_roofs_know_nothing_of_efficiency(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(SUPER.shape, "replay", 16, window=16)
    with_fit = derive.model_case(case, H200, ROOFS)
    monkeypatch.setattr(derive, "efficiency_for", lambda *args: None)
    bare = derive.model_case(case, H200, ROOFS)
    assert bare.roof_us == with_fit.roof_us
    assert bare.time is not None and with_fit.time is not None
    assert bare.time.us < with_fit.time.us
    assert bare.time.lo == pytest.approx(bare.time.us)


def test_without_a_fit_the_interval_starts_at_the_bound_and_holds_every_shipped_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = Step(64 * 2**20, 64 * 2**20, 1e6)
    bare = predict(H200, ROOFS, step)
    assert bare.lo == bare.us == pytest.approx(ROOFS.graph_node_us + ROOFS.time_us(64 * 2**20, 64 * 2**20))
    assert bare.hi == pytest.approx(bare.us * UNFITTED_FACTOR + UNFITTED_US)
    monkeypatch.setattr(derive, "efficiency_for", lambda *args: None)
    outside = []
    for row in load_measured(gpu_key="h200-sxm"):
        if row["status"] == "ok":
            time = derive.model_case(case_of(row), H200, ROOFS).time
            # Re-reads of siblings in a tree hit L2; else roofs are medians of one GPU, which another passes by 1.1 %.
            assert time is not None and time.us < row["time_us"] * (1.11 if row["tree"] else 1.015), row["case_id"]
            outside += [row] if row["time_us"] > time.hi else []
    # The kernel that was written anew because of that.
    assert {(row["family"], row["method"], row["phase"]) for row in outside} == {("kda", "replay", "verify")}
    uncalibrated = predict(H200, datasheet_roofs("x", 4800.0), step)
    assert uncalibrated.lo < uncalibrated.us < uncalibrated.hi


def test_the_form() -> None:
    found = Efficiency("mamba2", "replay", "decode", "g", overhead_us=1.0, walk_us=0.5, efficiency=0.8, width=0.1)
    assert found.time_us(2.0, 8.0) == pytest.approx(2 + 1 + 10)
    assert found.time_us(2.0, 8.0, d_v=81) == pytest.approx(2 + 1 + 3 + 10)  # six tiles of 16 rows
    # Records in tiles of 16, 32, 64; what a flush takes more, by the share of the bytes that such rows move.
    tiled = replace(found, record_share=0.1, flush=1.5)
    assert tiled.time_us(2.0, 8.0, window=16) == tiled.time_us(2.0, 8.0, window=2) == pytest.approx(13)
    assert tiled.time_us(2.0, 8.0, window=17) == pytest.approx(2 + 1.1 * 11)
    assert tiled.time_us(2.0, 8.0, window=64, flush=1) == pytest.approx(2 + 1.3 * 11 * 1.5)
    assert tiled.time_us(2.0, 8.0, flush=0.5) == pytest.approx(2 + 11 * 1.25)
    assert list(tile_of(np.array([1, 16, 17, 33]))) == [16, 16, 32, 64]
    # Without a parameter of its own arithmetic counts only where it takes longer than memory.
    assert found.time_us(2.0, 8.0, alu_us=7.0) == found.time_us(2.0, 8.0)
    assert found.time_us(2.0, 8.0, alu_us=16.0) == pytest.approx(2 + 1 + 20)
    hidden = Efficiency("mamba2", "snapshot", "verify", "g", efficiency=0.8, arithmetic=2.0)
    assert hidden.time_us(2.0, 8.0, alu_us=5.0) == pytest.approx(2 + math.hypot(10, 10))
    # It hides in part, but takes no less than at its rate.
    assert hidden.time_us(0.0, 8.0, alu_us=1e6) >= 1e6
    assert Efficiency("f", "m", "verify", "g", arithmetic=0.1).time_us(0.0, 8.0, alu_us=50.0) == pytest.approx(50)
    step = Step(256e6, 0, 1e6)
    known_, bare = predict(H200, ROOFS, step, efficiency=found), predict(H200, ROOFS, step)
    body = bare.us - ROOFS.graph_node_us
    assert known_.us == pytest.approx(ROOFS.graph_node_us + 1 + body / 0.8)
    assert (known_.hi, known_.lo) == pytest.approx((known_.us * 1.1, known_.us / 1.1))
    rough = predict(H200, datasheet_roofs("x", 4800.0), step, efficiency=found)
    assert rough.hi / rough.us == pytest.approx(math.exp(math.hypot(math.log(1.1), math.log(1.35))))
    assert predict(H200, ROOFS, Step(1e6, 0, 1e3), efficiency=found, d_v=128).limit == "chain"
    slow = Efficiency("f", "m", "verify", "g", arithmetic=5.0)
    assert predict(H200, ROOFS, Step(256e6, 0, 2e8), efficiency=slow).limit == "DRAM"
    assert predict(H200, ROOFS, Step(256e6, 0, 2e8), efficiency=slow).us > bare.us
    assert predict(H200, ROOFS, Step(256e6, 0, 2e9), efficiency=slow).limit == "ALU"


def test_products_on_tensor_cores_take_their_rate() -> None:
    slow, fast = Step(1e6, 0, 1e12), Step(1e6, 0, 1e12, tensor_flops=1e12)
    assert predict(H200, ROOFS, fast).us < predict(H200, ROOFS, slow).us / 10
    # Both pipes run at once.
    both = predict(H200, ROOFS, Step(1e6, 0, 2e12, tensor_flops=1e12)).us
    assert both == pytest.approx(predict(H200, ROOFS, slow).us)


def test_an_unknown_method_has_no_fit() -> None:
    assert efficiency_for("mamba2", "mine.py:METHOD", "decode") is None
    assert efficiency_for("mamba2", "stree", "verify", impl="vllm") is None


def test_a_family_that_was_never_timed_borrows_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitted("conventional", family="gdn").lender is None
    others = tuple(one for one in known() if one.family != "gdn")
    monkeypatch.setattr("perfkit.roofline.efficiency.known", lambda: others)
    conventional, replay = fitted("conventional", family="gdn"), fitted("replay", family="gdn")
    assert conventional.lender == replay.lender == "kda"  # a delta rule too
    assert conventional.efficiency == fitted("conventional", family="kda").efficiency
    own = fitted("conventional", family="kda")
    assert own.lender is None
    assert math.log1p(conventional.width) == pytest.approx(math.hypot(math.log1p(own.width), math.log1p(loan_width())))
    assert fitted("stree", "verify", "kda").lender == "mamba2"


def test_a_fit_of_no_more_times_than_parameters_lends_only_where_no_other_does() -> None:
    def one(family: str, freedom: float) -> Efficiency:
        return Efficiency(family, "replay", "verify", "g", efficiency=0.5, freedom=freedom)

    alike, many = one("kda", PRIOR_FREEDOM), one("mamba2", PRIOR_FREEDOM + 8)
    for known_ones, lender in (
        ([alike, many], "mamba2"),
        ([alike], "kda"),
        ([one("kda", PRIOR_FREEDOM + 1), many], "kda"),
    ):
        lent = borrowed("gdn", "replay", "verify", known_ones, 0.2)
        assert lent is not None and lent.lender == lender


def test_a_borrower_pays_for_its_instructions() -> None:
    def one(family: str, method: str, arithmetic: float) -> Efficiency:
        ends = {"arithmetic": (arithmetic * 0.9, arithmetic * 1.1)}
        return Efficiency(family, method, "verify", "g", arithmetic=arithmetic, intervals=ends)

    fits = [one("mamba2", "a", 2.0), one("mamba2", "b", 3.0), one("kda", "b", 6.0)]
    lent = borrowed("kda", "a", "verify", fits, 0.2)
    assert lent is not None and lent.arithmetic == pytest.approx(4.0)
    alone = borrowed("kda", "a", "verify", fits[:2], 0.2)
    assert alone is not None and alone.arithmetic == pytest.approx(2.0)
    assert borrowed("kda", "c", "verify", fits, 0.2) is None


GOOD = (MEASURED / EFFICIENCY).read_text(encoding="utf-8")
FIRST_SPREAD = re.findall(r"spread: [0-9.]+", GOOD)[0]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("family: gdn", "famly: gdn", "fits[0].famly: unknown field"),
        (
            "method: replay\n    phase: decode",
            "method: conventional\n    phase: decode",
            "decode h200-sxm': is there twice",
        ),
        ("    n: 8\n", "", "fits[0].n: missing"),
        ("efficiency: {value: 0.9", "efficency: {value: 0.9", "parameters.efficency: unknown field"),
        ("efficiency: {value: 0.9", "efficiency: {value: 1.9", "fits[1].parameters.efficiency: 1.9"),
        ("walk_us: {value: 1.0", "walk_us: {value: -1.0", "walk_us.value: -1.0"),
        (FIRST_SPREAD, "spread: 0", "fits[0].spread: 0: must be above 0"),
        ("fits:\n", "rest: []\nfits:\n", "rest: unknown field"),
        ("loan: {width: 0.", "loan: {width: -0.", "loan.width: -0."),
        ("median: 0.0", "median: x, mean: 0.0", "held_out.mean: unknown field"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in GOOD
    (tmp_path / EFFICIENCY).write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_efficiency(tmp_path)
    assert says in str(caught.value) and EFFICIENCY in str(caught.value)


def test_no_file_is_no_fit(tmp_path: Path) -> None:
    assert load_efficiency(tmp_path) == []
    assert load_loan(tmp_path) is None


def test_a_users_own_fits_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fitted("replay")
    monkeypatch.setenv("PERFKIT_ROOFS", str(tmp_path))
    own = GOOD.replace("walk_us: {value: 0.8", "walk_us: {value: 0.9").replace(f"hi: {before.walk_us:.5g}", "hi: 1.2")
    (tmp_path / EFFICIENCY).write_text(own, encoding="utf-8")
    assert fitted("replay").walk_us == pytest.approx(before.walk_us + 0.1)
    monkeypatch.delenv("PERFKIT_ROOFS")
    assert fitted("replay") == before
