"""Reads that stay in L2: every byte that they claim, over the whole working set, and loads that are not dead code."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from perfkit.kernels.l2 import CONFIGS, apart, launch, passes_of, reads_of, whole_tiles
from perfkit.method import Config
from perfkit.touched import touched

SMALL = Config.of(tile=64, warps=1, programs=2)


def _buffers(n: int, programs: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, generator=torch.Generator().manual_seed(n)), torch.full((programs,), float("nan"))


@pytest.mark.parametrize(("tiles", "reads"), [(1, 1), (3, 1), (9, 2), (9, 7), (4, 7)])
def test_programs_walk_round_their_own_parts_of_the_working_set(tiles: int, reads: int) -> None:
    """Two SMs of two programs each; what they read is counted by planting what no data of order one sum to."""
    a, b = _buffers(64 * tiles)
    before = a.clone()
    with touched({"a": a, "b": b}) as record:
        launch(a, b, reads, 2, SMALL)()
    assert record.outside == [] and record.bytes_written == 0
    starts = [program * tiles // 4 for program in range(5)]
    parts = [range(start, max(end, start + 1)) for start, end in itertools.pairwise(starts)]
    visits = [{part[step % len(part)] for step in range(reads)} for part in parts]
    assert record.bytes_read == 4 * 64 * len(set().union(*visits))
    assert torch.equal(a, before) and b.isnan().all()
    for tile in range(tiles):
        a[64 * tile + 63] = 1e31
        launch(a, b, reads, 2, SMALL)()
        assert [not value.isnan() for value in b[:4]] == [tile in seen for seen in visits]
        a[64 * tile + 63] = 0.0
        b.fill_(float("nan"))


def test_a_part_of_a_tile_is_refused() -> None:
    a, b = _buffers(100)
    with pytest.raises(ValueError, match="100 elements are not a whole number of tiles of 64"):
        launch(a, b, 1, 1, SMALL)()


def test_configurations_fit_on_an_sm_and_working_sets_are_whole_tiles() -> None:
    for config in CONFIGS:
        assert whole_tiles(3_900_000) % (4 * config["tile"]) == 0
        assert 4 * config["tile"] * config["programs"] <= 227 << 10  # in flight on an SM at once
        assert config["warps"] * config["programs"] <= 48  # what an SM holds of every GPU that there is a profile of
    assert whole_tiles(3_900_000) == 119 * 32768


@pytest.mark.parametrize(("sms", "held_mib"), [(132, 3.75), (132, 7.5), (132, 30), (108, 2.5), (148, 7.5), (58, 3)])
def test_each_program_has_tiles_of_its_own(sms: int, held_mib: float) -> None:
    held = whole_tiles(round(held_mib * 2**20))
    found = apart(held, sms, CONFIGS)
    assert found
    for config in CONFIGS:
        tiles, programs = held // (4 * config["tile"]), sms * config["programs"]
        starts = np.arange(programs) * tiles // programs
        assert (len(set(starts)) == programs) == (config in found)


def test_a_working_set_smaller_than_that_is_read_by_as_few_bytes_at_a_time_as_can_be() -> None:
    assert apart(32768, 132, CONFIGS) == [CONFIGS[0]]


@pytest.mark.parametrize("sms", [1, 58, 108, 132, 148])
@pytest.mark.parametrize("held", [32768, 60 << 16, 50 << 18, 101 * 32768])
def test_launches_read_a_whole_number_of_times_the_bytes_of_the_working_set(sms: int, held: int) -> None:
    for config in CONFIGS:
        reads = reads_of(held, 1 << 31, sms, config)
        tiles, programs = held // (4 * config["tile"]), sms * config["programs"]
        assert programs * reads % tiles == 0
        assert passes_of(held, reads, sms, config) == programs * reads // tiles
        assert programs * reads * 4 * config["tile"] == pytest.approx(1 << 31, rel=0.3)
