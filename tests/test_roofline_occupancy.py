"""Warps that an SM holds, and what a kernel reaches on a GPU that it was not timed on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfkit.profiles import load_efficiency, load_gpu, load_model
from perfkit.roofline import efficiency_for
from perfkit.roofline.efficiency import CARRIED_WIDTH
from perfkit.roofline.occupancy import Resources, carried_efficiency, resident_warps

H200, H100, B300 = load_gpu("h200-sxm"), load_gpu("h100-sxm"), load_gpu("b300")


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "held"),
    [
        (254, 17_536, 1, 8),  # registers: 65,536 / (256 x 32)
        (128, 17_600, 2, 16),
        (79, 32, 1, 24),  # 80 of them a thread
        (32, 0, 1, 32),  # programs: 32 of one warp
        (32, 0, 4, 64),  # warps
        (64, 50_000, 4, 16),  # shared memory: four programs in 228 KiB
        (255, 240_000, 8, 0),  # not even one
    ],
)
def test_warps_of_an_sm(registers: int, shared: int, warps: int, held: int) -> None:
    assert resident_warps(Resources(registers, shared, warps), H200) == held


def test_what_is_not_memory_goes_with_sms_and_clock() -> None:
    assert carried_efficiency(0.8, H200, H200, 1.0) == pytest.approx(0.8)
    assert carried_efficiency(1.0, H200, B300, 5 / 3) == 1.0
    # Memory of an H100 is slower and its SMs are the same: what is not memory weighs less.
    assert carried_efficiency(0.8, H200, H100, 0.7) == pytest.approx(1 / (1 + 0.25 * 0.7))
    sms = 132 / 148 * H200.boost_clock_mhz / B300.boost_clock_mhz
    assert carried_efficiency(0.8, H200, B300, 5 / 3) == pytest.approx(1 / (1 + 0.25 * sms * 5 / 3))


def test_fewer_warps_on_an_sm_reach_less() -> None:
    kernel, small = Resources(254, 25_600, 1), replace(H200, smem_per_sm_kb=100)
    assert (resident_warps(kernel, H200), resident_warps(kernel, small)) == (8, 3)
    assert carried_efficiency(0.8, H200, small, 1.0, kernel) == pytest.approx(1 / (1 + 0.25 * 8 / 3))
    assert carried_efficiency(0.8, small, H200, 1.0, kernel) == pytest.approx(0.8)  # more warps are not counted on


def test_fits_are_carried_over_to_other_gpus() -> None:
    here = efficiency_for("mamba2", "replay", "decode", "h200-sxm")
    there = efficiency_for("mamba2", "replay", "decode", "b300")
    assert here is not None and there is not None
    assert here.carried_to is None and there.carried_to == "b300"
    assert there.gpu == "h200-sxm" and there.efficiency < here.efficiency
    assert (1 + there.width) > (1 + here.width) and there.width < here.width + CARRIED_WIDTH
    faster = 8000 / 4800
    assert there.efficiency == pytest.approx(carried_efficiency(here.efficiency, H200, B300, faster, here.kernel))
    slower = efficiency_for("mamba2", "replay", "decode", "h100-sxm")
    assert slower is not None and slower.efficiency > here.efficiency
    # One without a profile, and none at all: as it was timed.
    assert efficiency_for("mamba2", "replay", "decode", "x") == here == efficiency_for("mamba2", "replay", "decode")


def test_shipped_fits_say_what_their_kernels_take() -> None:
    taken = {(one["family"], one["method"], one["phase"]): Resources(**one["kernel"]) for one in load_efficiency()}
    assert taken["mamba2", "replay", "decode"].warps == 1
    assert resident_warps(taken["mamba2", "replay", "decode"], H200) <= 12  # the registers of the fold
    assert resident_warps(taken["mamba2", "conventional", "decode"], H200) >= 24
    assert load_model("nemotron-super").shape.d_v == 64
