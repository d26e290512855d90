"""Streams: right values, exactly the bytes that they claim, and loads that are not dead code."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from compilehelp import python_with, run_child, targets_of
from compileparts import OLD, PINNED

from perfkit.kernels import l2, stream
from perfkit.kernels.stream import CONFIGS, STREAMS, empty_launch
from perfkit.method import Config
from perfkit.touched import touched

SMALL = Config.of(tile=64, warps=1)


def _buffers(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, generator=generator), torch.full((n,), float("nan"))


@pytest.mark.parametrize("n", [1, 64, 200])
@pytest.mark.parametrize(("kind", "read", "written"), [("read", 1, 0), ("inplace", 1, 1), ("copy", 1, 1),
                                                       ("write", 0, 1)])  # fmt: skip
def test_values_and_exact_bytes(kind: str, read: int, written: int, n: int) -> None:
    a, b = _buffers(n)
    before = a.clone()
    with touched({"a": a, "b": b}) as record:
        STREAMS[kind].launch(a, b, SMALL)()
    assert record.outside == [] and record.races == {}
    assert (record.bytes_read, record.bytes_written) == (4 * n * read, 4 * n * written)
    moved = 4 * n * (read + written)
    assert STREAMS[kind].elements(moved) == n
    assert STREAMS[kind].footprint(moved) == sum(max(record.read[name], record.written[name]) for name in "ab")
    if kind == "copy":
        assert torch.equal(b, before) and torch.equal(a, before)
    else:
        assert b.isnan().all()
    if kind == "inplace":
        assert torch.equal(a, 0.5 - before)
    if kind == "read":
        assert torch.equal(a, before)
    if kind == "write":
        bits = (np.arange(n, dtype=np.uint64) * 2654435761 % 2**32).astype(np.uint32) >> 9
        assert np.array_equal(a.numpy(), (bits | 0x3F800000).view(np.float32))
        assert ((a >= 1) & (a < 2)).all()


def test_written_data_are_random() -> None:
    a, b = _buffers(4096)
    STREAMS["write"].launch(a, b, SMALL)()
    assert len(a.unique()) > 4000
    assert abs(float(a.mean()) - 1.5) < 0.02


def test_every_element_counts_in_a_read() -> None:
    a, b = _buffers(200)
    for index in (0, 63, 64, 199):
        a[index] = 1e31  # what no data of order one sum to
        STREAMS["read"].launch(a, b, SMALL)()
        assert not b[index // 64].isnan()
        b.fill_(float("nan"))
        a[index] = 0.0
    STREAMS["read"].launch(a, b, SMALL)()
    assert b.isnan().all()


def test_update_in_place_comes_back() -> None:
    a, b = _buffers(200)
    before = a.clone()
    for _ in range(100):
        STREAMS["inplace"].launch(a, b, SMALL)()
    assert torch.allclose(a, before, atol=1e-6)


@pytest.mark.parametrize(("place", "n"), [(1 << 19, 1), (1 << 19, 200), (1 << 19, 192), (128, 384), (96, 192)])
@pytest.mark.parametrize("places", [2, 4, 8])
def test_one_read_and_several_writes(monkeypatch: pytest.MonkeyPatch, places: int, place: int, n: int) -> None:
    """Place 0 of each row is read once; every place is written, with data that differ."""
    monkeypatch.setattr(stream, "PLACE", place)
    kind = STREAMS[f"1r{places}w"]
    assert (kind.kind, kind.reads, kind.writes, kind.places) == (f"1r{places}w", 1, places, places)
    a, b = _buffers(n * places)
    before = a.clone().view(-1, places, min(n, place))
    with touched({"a": a, "b": b}) as record:
        kind.launch(a, b, SMALL)()
    assert record.outside == [] and record.races == {}
    assert (record.bytes_read, record.bytes_written) == (4 * n, 4 * n * places)
    assert kind.elements(4 * n * (1 + places)) == n
    assert kind.footprint(4 * n * (1 + places)) == 4 * n * places
    after = a.view_as(before)
    for index in range(places):
        expected = before[:, 0] if index % 2 else 0.5 - before[:, 0]
        assert torch.allclose(after[:, index], expected, atol=1e-6)
    for _ in range(3):
        kind.launch(a, b, SMALL)()
    assert torch.allclose(a.view_as(before)[:, 0], before[:, 0], atol=1e-6)  # an even number of flips
    assert b.isnan().all()


@pytest.mark.parametrize("places", [2, 4])
def test_several_reads_and_one_write(monkeypatch: pytest.MonkeyPatch, places: int) -> None:
    """Every place of each row is read once, place 0 is written; loads of the others are not dead code."""
    monkeypatch.setattr(stream, "PLACE", 96)
    kind, n = STREAMS[f"{places}r1w"], 192
    assert (kind.kind, kind.reads, kind.writes, kind.places) == (f"{places}r1w", places, 1, places)
    a, b = _buffers(n * places)
    before = a.clone().view(-1, places, 96)
    with touched({"a": a, "b": b}) as record:
        kind.launch(a, b, SMALL)()
    assert record.outside == [] and record.races == {}
    assert (record.bytes_read, record.bytes_written) == (4 * n * places, 4 * n)
    assert kind.elements(4 * n * (places + 1)) == n
    assert kind.footprint(4 * n * (places + 1)) == 4 * n * places
    after = a.view_as(before)
    assert torch.equal(after[:, 0], 0.5 - before[:, 0]) and torch.equal(after[:, 1:], before[:, 1:])
    after[1, places - 1, 70] = 1e31
    kind.launch(a, b, SMALL)()
    expected = before[:, 0].clone()
    expected[1, 70] = 0.5 - expected[1, 70]  # left as it was
    assert torch.allclose(after[:, 0], expected, atol=1e-6) and b.isnan().all()


def test_a_part_of_a_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PLACE", 64)
    a, b = _buffers(2 * 100)
    with pytest.raises(ValueError, match="1r2w: 100 elements are no multiple of 64"):
        STREAMS["1r2w"].launch(a, b, SMALL)()


@pytest.mark.parametrize("version", [PINNED, OLD])
def test_several_places_and_l2_compile_to_wide_accesses(version: str) -> None:
    targets = targets_of(version)
    found = run_child(python_with(version), "compile_child.py", "streams", *map(str, targets))["found"]
    assert len(found) == 2 * len(CONFIGS) + len(targets) - 1 + len(targets) * len(l2.CONFIGS)
    for item in found:
        assert (item["wide"], item["spills"]) == (item["accesses"], 0) and item["accesses"], item
        if item["kind"] == "1r8w":  # eight stores to a load
            assert item["first"] * 9 == item["accesses"] * 8, item
        elif item["kind"] == "4r1w":
            assert item["loads"] * 5 == item["accesses"] * 4, item
        else:  # past L1, and all programs of an SM at once
            assert item["kind"] == "l2" and item["registers_of_sm"] <= 65536, item


def test_candidates_are_launchable_and_an_empty_kernel_touches_nothing() -> None:
    assert len(CONFIGS) >= 2
    assert all(config["tile"] & (config["tile"] - 1) == 0 and config["warps"] in (1, 2, 4, 8) for config in CONFIGS)
    a, b = _buffers(5000)
    for config in CONFIGS:
        STREAMS["copy"].launch(a, b, config)()
        assert torch.equal(a, b)
    with touched({"a": a}) as record:
        empty_launch(a)()
    assert record.launches == 1
    assert (record.bytes_read, record.bytes_written) == (0, 0)
