"""Reads that stay in L2: every byte that they claim, over the whole working set, and loads that are not dead code."""

from __future__ import annotations

import pytest
import torch
from test_compile_mamba2 import OLD, PINNED, python_with
from test_steptimes import child

from perfkit.kernels import l2
from perfkit.kernels.l2 import CONFIGS, bytes_of, launch, reads_of, whole_tiles
from perfkit.method import Config
from perfkit.touched import touched

SMALL = Config.of(tile=64, warps=1, programs=2)


def _buffers(n: int, programs: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, generator=torch.Generator().manual_seed(n)), torch.full((programs,), float("nan"))


@pytest.mark.parametrize(("tiles", "reads"), [(1, 1), (3, 1), (5, 4), (4, 7)])
def test_programs_walk_through_the_working_set(tiles: int, reads: int) -> None:
    """Two SMs of two programs each; what they read is counted by planting what no data of order one sum to."""
    a, b = _buffers(64 * tiles)
    before = a.clone()
    with touched({"a": a, "b": b}) as record:
        launch(a, b, reads, 2, SMALL)
    assert record.outside == [] and record.bytes_written == 0
    visits = [{(program * reads + step) % tiles for step in range(reads)} for program in range(4)]
    assert record.bytes_read == 4 * 64 * len(set().union(*visits))
    assert torch.equal(a, before) and b.isnan().all()
    assert bytes_of(reads, 2, SMALL) == 4 * sum(64 * reads for _ in range(4))
    for tile in range(tiles):
        a[64 * tile + 63] = 1e31
        launch(a, b, reads, 2, SMALL)
        assert [not value.isnan() for value in b[:4]] == [tile in seen for seen in visits]
        a[64 * tile + 63] = 0.0
        b.fill_(float("nan"))


def test_a_part_of_a_tile_is_refused() -> None:
    a, b = _buffers(100)
    with pytest.raises(ValueError, match="100 elements are not a whole number of tiles of 64"):
        launch(a, b, 1, 1, SMALL)


def test_working_sets_and_launches_are_whole() -> None:
    for config in CONFIGS:
        assert whole_tiles(3_900_000) % (4 * config["tile"]) == 0
        assert 4 * config["tile"] * config["programs"] <= 227 << 10  # in flight on an SM at once
        assert config["warps"] * config["programs"] <= 48  # warps an SM holds on every GPU that there is a profile of
        for sms in (108, 132, 148):
            assert bytes_of(reads_of(1 << 31, sms, config), sms, config) == pytest.approx(1 << 31, rel=0.02)
    assert whole_tiles(3_900_000) == 3_899_392 - 3_899_392 % 32768
    assert reads_of(1, 132, CONFIGS[0]) == 1


@pytest.mark.parametrize(("version", "targets"), [(PINNED, "80 90 100 103 120"), (OLD, "90")])
def test_compiled_loads_are_wide_and_pass_l1_by(version: str, targets: str) -> None:
    found = child(python_with(version), "compile_child.py", "l2", *targets.split())["found"]
    assert len(found) == len(targets.split()) * len(l2.CONFIGS)
    for item in found:
        assert item["loads"] == item["wide"] > 0 and item["spills"] == 0, item
        # All programs of an SM at once: their registers fit beside each other.
        assert item["registers_of_sm"] <= 65536, item
