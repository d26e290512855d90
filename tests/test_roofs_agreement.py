"""Two measurements beside each other: the largest difference is found, runs of other things are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from roofsbench import FACTS, FakeBench

from perfkit import roofs
from perfkit.errors import InputError
from perfkit.roofs.points import QUICK
from perfkit.stats import Interval


def _data(off: float = 1.0, of: str | None = None, gpu: str = "h200-sxm") -> dict:
    return roofs.found_data(gpu, FACTS, roofs.measure(FakeBench(off=off, of=of), QUICK))


def test_the_same_twice_does_not_differ() -> None:
    found = roofs.compare(_data(), _data())
    assert len(found.roofs) == 4 * 3 + 5 + 1 + 3 and found.spread == 0
    assert [one.name for one in found.costs] == ["launch_us", "graph_node_us", "graph_us"]


@pytest.mark.parametrize(
    ("of", "name", "unit"),
    [("copy", "copy 256 MiB", "GB/s"), ("4r1w", "4r1w 270 MiB", "GB/s"), ("l2", "L2 15 MiB", "GB/s"),
     ("fp32", "fp32 products", "TFLOP/s")],
)  # fmt: skip
@pytest.mark.parametrize("off", [0.95, 1.04])
def test_what_differs_most_is_named_whichever_is_larger(of: str, name: str, unit: str, off: float) -> None:
    found = roofs.compare(_data(), _data(off, of))
    # Of small transfers the node is part of the time, so a slower roof shows less.
    assert (found.largest.name, found.largest.unit) == (name, unit)
    assert found.largest.change == pytest.approx(off - 1, rel=0.05)
    assert found.spread == pytest.approx(max(off, 1 / off) - 1, rel=0.05)
    swapped = roofs.compare(_data(off, of), _data())
    assert swapped.spread == pytest.approx(found.spread)
    assert sum(one.size > 1e-9 for one in found.roofs) == sum(
        one.name.startswith(name.split()[0]) for one in found.roofs
    )


def test_costs_are_shown_and_not_judged() -> None:
    other = _data() | {"launch_us": 60.0, "graph_us": None}
    found = roofs.compare(_data(), other)
    assert found.spread == 0
    assert [(one.name, one.new) for one in found.costs] == [("launch_us", 60.0), ("graph_node_us", 1.5)]


def test_only_figures_of_both_count() -> None:
    full = roofs.found_data("h200-sxm", FACTS, roofs.measure(FakeBench()))
    assert len(roofs.compare(full, _data()).roofs) == len(roofs.compare(_data(), full).roofs) == 4 * 3 + 5 + 1 + 3
    old = {**_data(), "l2": [], "rates": []}
    assert len(roofs.compare(old, full).roofs) == 4 * 3 + 5


def test_another_gpu_and_nothing_in_common_are_refused() -> None:
    with pytest.raises(InputError, match="gpu: 'b200': roofs of another GPU, not of h200-sxm"):
        roofs.compare(_data(gpu="b200"), _data())
    bare = {**_data(), "points": [{"kind": "read", "bytes": 7, "bandwidth_gb_s": 1.0}], "l2": [], "rates": []}
    with pytest.raises(InputError, match="no figure in common"):
        roofs.compare(bare, _data())


def test_runs_put_together() -> None:
    runs = [_data(), _data(0.99, "copy"), _data(1.01, "fp32")]
    runs[1]["launch_us"] = 9.0
    one = roofs.combine(runs[:1])
    assert one == runs[0]
    data = roofs.combine(runs)
    assert (data["runs"], data["gpu"], data["throttled"]) == (3, "h200-sxm", 0)
    assert data["spread"] == pytest.approx(0.0101, rel=0.02)
    copies = [[point for point in run["points"] if point["kind"] == "copy"][-1] for run in (*runs, data)]
    assert copies[3]["bandwidth_gb_s"] == pytest.approx(sum(point["bandwidth_gb_s"] for point in copies[:3]) / 3)
    assert copies[3]["lo"] == copies[1]["lo"] and copies[3]["hi"] == copies[0]["hi"]
    assert data["rates"][2]["tflops"] == pytest.approx(50 * 3.01 / 3)
    assert data["launch_us"] == pytest.approx((2 * 6.04321 + 9) / 3)
    read = roofs.check_document(roofs.document(data), "h200-sxm")
    assert (read["runs"], read["spread"]) == (3, pytest.approx(data["spread"], rel=1e-5))
    assert runs[0] == _data()  # as they were


def test_runs_of_other_figures_are_no_runs_of_one_thing() -> None:
    found = roofs.measure(FakeBench(), QUICK)
    other = roofs.found_data("h200-sxm", FACTS, replace(found, points=found.points[::-1]))
    swapped = {**other, "points": other["points"][::-1]}
    with pytest.raises(ValueError, match="runs of different figures"):
        roofs.combine([_data(), swapped])
    with pytest.raises(ValueError, match="shorter"):
        roofs.combine([_data(), {**_data(), "l2": []}])


def test_a_rate_without_power_or_clock_is_put_together_too() -> None:
    found = roofs.measure(FakeBench(), QUICK)
    bare = replace(found, rates=(roofs.Rate("bf16", 8192, Interval(700, 699, 701)),))
    data = roofs.found_data("h200-sxm", FACTS, bare)
    (rate,) = roofs.combine([data, data])["rates"]
    assert rate["tflops"] == 700 and rate["power_w"] is None
    assert roofs.check_document(roofs.document(data), "h200-sxm")["rates"][0]["sm_clock_mhz"] is None
