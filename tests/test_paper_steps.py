"""Whole steps, serving and others' kernels beside what was published; what was fitted to a cell is no test of it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from perfkit.cli import app
from perfkit.paper import Compared, Rows, compare_table, text
from perfkit.paper.fit import TEST_BATCHES, fit_cells, fit_drafts, fit_overheads, is_fitted
from perfkit.paper.kernels import bandwidth_gb_s, conventional_us, kernel_speedup
from perfkit.paper.serving import DRAFTS, fits_with_snapshots, snapshot_steps, tokens_per_s
from perfkit.paper.steps import step_speedup
from perfkit.profiles.published import PaperCell, load_paper
from perfkit.roofline import NO_OVERHEADS, OVERHEAD_ESTIMATES

NANO, SUPER = "nemotron-3-nano-4b", "nemotron-3-super-120b-a12b"
QWEN4, QWEN122 = "qwen3.5-4b", "qwen3.5-122b-a10b"
TUNED, SNAPSHOTS = "conventional, tuned", "speculative decoding with snapshots"


@cache
def table(name: str) -> tuple[Compared, ...]:
    """A figure with the rows that ship left out."""
    return tuple(compare_table(load_paper(name), Rows("recorded", ())))


def one(name: str, **wanted: Any) -> Compared:
    """The compared cell that has these values."""
    (found,) = [item for item in table(name) if all(getattr(item.cell, key) == value for key, value in wanted.items())]
    return found


def cell(**wanted: Any) -> PaperCell:
    """A cell of Table 6 with an FP32 state over the tuned baseline."""
    return one("table6", **{"state_dtype": "float32", "baseline": TUNED, **wanted}).cell


# --- the engine's time


def test_the_engines_time_is_what_a_fit_to_its_cells_gives() -> None:
    found, shipped = fit_overheads(), OVERHEAD_ESTIMATES["vllm"]
    for name in ("step_us", "row_us"):
        assert getattr(found, name) == pytest.approx(getattr(shipped, name), rel=0.01)
        assert found.interval(name) == pytest.approx(shipped.interval(name), rel=0.06)


def test_what_is_fitted_is_not_what_is_tested() -> None:
    fitted = fit_cells()
    assert len(fitted) == 8 and {item.models for item in fitted} == {(NANO,)}
    assert {(item.state_dtype, item.batches) for item in fitted} == {
        ("float16", (8,)), ("float16", (32,)), ("float16", (128,)), ("float32", (8,))}  # fmt: skip
    for batch in TEST_BATCHES:
        assert not is_fitted(cell(models=(NANO,), batches=(batch,)))
    for item in table("table6"):
        assert (item.verdict == "not comparable") == is_fitted(item.cell)


def test_a_figure_of_the_fit_that_changes_changes_the_engines_time() -> None:
    first, *others = fit_cells()
    assert first.low is not None
    moved = fit_overheads([replace(first, low=first.low * 1.02, high=first.low * 1.02), *others])
    assert abs(moved.step_us / fit_overheads().step_us - 1) > 0.1


# --- whole steps


@pytest.mark.parametrize(
    ("batch", "published", "computed"),
    [(1, 0.98, 0.978), (32, 1.16, 1.162), (128, 1.38, 1.361), (256, 1.47, 1.455), (512, 1.52, 1.494)],
)
def test_nano_on_an_h100_within_4_percent(batch: int, published: float, computed: float) -> None:
    found = one("table6", models=(NANO,), batches=(batch,), state_dtype="float32", baseline=TUNED)
    assert found.cell.low == published and found.ours is not None and found.verdict == "agrees"
    assert found.ours.low == found.ours.high == pytest.approx(computed, abs=1e-3)
    assert found.ours.low == pytest.approx(published, rel=0.04)
    assert (found.ours.kind, found.ours.gpu, found.ours.routing) == ("model", "h100-sxm", "identical")
    assert (found.basis is None) == (batch < 512)  # the kernel's speedup there is not published


@pytest.mark.parametrize(
    ("model", "published", "low", "high"),
    [(SUPER, 1.42, 1.343, 1.343), (QWEN4, 1.27, 1.210, 1.324), (QWEN122, 1.20, 1.280, 1.296)],
)
def test_the_others_at_256_within_10_percent(model: str, published: float, low: float, high: float) -> None:
    found = one("table6", models=(model,), batches=(256,), state_dtype="float32", baseline=TUNED)
    assert found.cell.low == published and found.ours is not None
    assert (found.ours.low, found.ours.high) == pytest.approx((low, high), abs=1e-3)
    for end in (found.ours.low, found.ours.high):
        assert end == pytest.approx(published, rel=0.10)


def test_a_miss_says_what_would_land_it() -> None:
    """Super at 512: the power cap throttles the conventional kernel, the paper says, and no step gains more than it."""
    found = one("table6", models=(SUPER,), batches=(512,), state_dtype="float32", baseline=TUNED)
    assert found.verdict == "miss" and found.ratio == pytest.approx((0.798, 0.798), abs=1e-3)
    assert found.cause == ("independent routing would give 1.27; no engine's time 1.47; 1.32 times the conventional "
                           "kernel's time inside the model would land it; no step gains more than its kernel, "
                           "1.53")  # fmt: skip
    assert step_speedup(found.cell, slowdown=1.3225) == pytest.approx((1.72, 1.72), abs=3e-3)
    assert found.cause in text([found]).notes
    assert table("table6")[0] is found


def test_routing_and_the_engines_time_decide_qwens_miss() -> None:
    paper = cell(models=(QWEN122,), batches=(512,))
    assert paper.low == 1.22
    assert step_speedup(paper) == pytest.approx((1.323, 1.323), abs=1e-3)
    assert step_speedup(paper, routing="independent") == pytest.approx((1.231, 1.231), abs=1e-3)
    assert step_speedup(paper, overheads=NO_OVERHEADS) == pytest.approx((1.408, 1.408), abs=1e-3)
    dense = cell(models=(QWEN4,), batches=(256,))
    assert step_speedup(dense, routing="independent") == step_speedup(dense)


def test_an_input_that_changes_changes_ours() -> None:
    paper = cell(models=(NANO,), batches=(256,))
    slower = step_speedup(paper, slowdown=1.1)
    assert slower is not None and slower[0] > 1.07 * 1.455


def test_what_is_not_published_is_not_predicted() -> None:
    small = one("table6", models=(QWEN122,), batches=(32,))
    assert (small.verdict, small.ours) == ("not predicted", None)
    assert small.absent == "not predicted; the kernel's speedup there is not published"
    assert one("fig2", quantity="step_speedup", low=1.20, high=1.47).verdict == "not predicted"
    lost = one("table9", batches=(512,), draft_lens=(6,), baseline=SNAPSHOTS, windows=(16,))
    assert lost.verdict == "not published" and lost.ours is None
    assert all(item.verdict in ("not predicted", "not published") for item in table("table8"))


def test_attention_overtakes_where_it_was_measured_to() -> None:
    found = one("fig1", quantity="step_crossover_tokens", low=100_000.0)
    assert found.ours is not None and found.ours.low == pytest.approx(98_337, rel=1e-3) and found.verdict == "agrees"


def test_bandwidths_are_the_published_ones() -> None:
    assert bandwidth_gb_s("h100-sxm") == pytest.approx(0.85 * 3350)
    assert bandwidth_gb_s("b300") == pytest.approx(5.4067e6 / 831, rel=1e-4)  # GB, inputs and outputs with the states
    # 21.6 % of peak at B = 1, and the B300's kernel at any batch as at large ones.
    assert conventional_us(NANO, "h100-sxm", 1) == pytest.approx(7.9e3 / (0.216 * 3350), rel=0.02)
    assert conventional_us(SUPER, "b300", 2) == pytest.approx(2 * conventional_us(SUPER, "b300", 1))
    assert kernel_speedup(QWEN122, "b300", 512, "float32", TUNED) == 1.49  # Triton's, not CuTe's 1.66


# --- others' kernels on a B300


@pytest.mark.parametrize(
    ("method", "published", "low", "high"),
    [("snapshot", 831, 899, 899), ("stree", 1085, 986, 986), ("fused_recovery", 923, 857, 910)],
)
def test_kernels_on_a_b300_within_15_percent_from_an_h200(
    method: str, published: float, low: float, high: float
) -> None:
    found = one("fig7", quantity="kernel_us", method=method)
    assert found.cell.low == published and found.ours is not None and found.reasons == ()
    assert (found.ours.low, found.ours.high) == pytest.approx((low, high), abs=1)
    for end in (found.ours.low, found.ours.high):
        assert end == pytest.approx(published, rel=0.15)
    assert found.basis is not None and "its own here are left out" in found.basis


def test_kernels_that_were_timed_nowhere_else_are_not_predicted() -> None:
    found = one("fig7", quantity="kernel_us", method="stree_released")
    assert found.ours is None and found.absent == "not predicted; its kernel was timed on no other GPU"


# --- serving


@pytest.mark.parametrize(
    ("draft_len", "batch", "published", "low", "high"),
    [(2, 256, 1.36, 1.367, 1.422), (2, 512, 1.73, 1.647, 1.727), (4, 256, 1.79, 1.887, 1.942),
     (4, 512, 2.10, 2.037, 2.107)],
)  # fmt: skip
def test_replay_over_snapshots_in_serving_within_12_percent(
    draft_len: int, batch: int, published: float, low: float, high: float
) -> None:
    found = one("table9", batches=(batch,), draft_lens=(draft_len,), baseline=SNAPSHOTS, low=published)
    assert found.ours is not None and found.reasons == ()
    assert (found.ours.low, found.ours.high) == pytest.approx((low, high), abs=1e-3)
    for end in (found.ours.low, found.ours.high):
        assert end == pytest.approx(published, rel=0.12)


def test_what_serving_was_read_off_is_no_test_of_it() -> None:
    for batch in (1, 32):
        found = one("table9", batches=(batch,), draft_lens=(4,), baseline="standard decoding")
        assert found.verdict == "not comparable"
        assert found.reasons == ("what the prediction needs was read off this cell",)
    assert one("fig3", quantity="serving_tokens_per_s", method="conventional").verdict == "not comparable"
    assert tokens_per_s("conventional", 512, 1, 0) == pytest.approx(10_398)
    for method, draft, published in (("snapshot", 2, 9223), ("snapshot", 4, 9395), ("replay", 4, 19_707)):
        assert tokens_per_s(method, 512, draft, 0) == pytest.approx(published, rel=0.12)


def test_drafts_are_what_a_fit_to_small_batches_gives() -> None:
    found, ends = fit_drafts()
    vllm = OVERHEAD_ESTIMATES["vllm"]
    assert found.rate == pytest.approx(DRAFTS.rate, abs=1e-3)
    assert found.rate_interval == pytest.approx(DRAFTS.rate_interval, abs=1e-3)
    assert found.pass_us == pytest.approx(vllm.pass_us, rel=0.01)
    assert ends == pytest.approx(vllm.interval("pass_us"), rel=0.01)
    assert [DRAFTS.accepted(draft) for draft in (1, 2, 4)] == pytest.approx([1, 1.829, 3.086], abs=1e-3)


def test_replay_over_standard_decoding_at_batches_that_were_not_fitted() -> None:
    """Within 13 %; both of the two parameters that went in were seen at B = 1 and 32 only."""
    tested = [item for item in table("table9") if item.cell.baseline == "standard decoding" and not item.reasons
              and item.ours]  # fmt: skip
    assert {item.cell.batches[0] for item in tested} == {128, 256, 512} and len(tested) == 10
    for item in tested:
        assert item.ratio is not None and 0.87 < item.ratio[0] <= item.ratio[1] < 1.135


def test_inputs_of_serving() -> None:
    assert [fits_with_snapshots(draft) for draft in (2, 4)] == [437, 233]
    assert [snapshot_steps(draft) for draft in (2, 4, 8)] == pytest.approx([2.09, 3.527, 6.40], abs=1e-3)
    assert tokens_per_s("snapshot", 512, 4, 0, waves=False) > 1.15 * tokens_per_s("snapshot", 512, 4, 0)


def test_a_range_over_what_is_not_published_counts_by_its_middle() -> None:
    found = one("table9", batches=(256,), draft_lens=(6,), low=1.99, windows=(16,))
    assert found.ours is not None and found.ours.low < 0.953 * 1.99 and found.verdict == "agrees"


def test_the_command_shows_misses_first_with_their_causes(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["reproduce", "table6", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["cells"][0]
    assert (first["models"], first["batches"], first["verdict"]) == ([SUPER], [512], "miss")
    assert first["ours"]["kind"] == "model" and "no step gains more than its kernel" in first["cause"]
    assert first["basis"] == "the kernel's speedup is not published at B = 512: 1.53 at 256 stands in"
    assert app.run(["reproduce", "table6"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[2].startswith("whole step, conventional, tuned over replay") and "not predicted" in out
