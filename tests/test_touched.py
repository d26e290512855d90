"""Bytes touched, counted by hand for toy kernels: masks, strides, views, overlaps, atomics, strays, races."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from perfkit.errors import DeviceError, InputError
from perfkit.touched import touched


@triton.jit
def _copy_kernel(src, dst, n, tile: tl.constexpr):
    at = tl.program_id(0) * tile + tl.arange(0, tile)
    tl.store(dst + at, tl.load(src + at, mask=at < n, other=0.0), mask=at < n)


@triton.jit
def _shared_rows_kernel(table, out, rows: tl.constexpr, columns: tl.constexpr):
    """Every program reads the whole table, as heads of a group read their key."""
    at = tl.arange(0, rows)[:, None] * columns + tl.arange(0, columns)[None, :]
    total = tl.sum(tl.sum(tl.load(table + at), 1), 0)
    tl.store(out + tl.program_id(0), total)


@triton.jit
def _strided_kernel(src, dst, row_stride, column_stride, rows: tl.constexpr, columns: tl.constexpr):
    i = tl.arange(0, rows)[:, None]
    j = tl.arange(0, columns)[None, :]
    tl.store(dst + i * columns + j, tl.load(src + i * row_stride + j * column_stride))


@triton.jit
def _cursor_kernel(cursor, state, out, tile: tl.constexpr):
    """A row whose cursor is negative is a padded row: it reads its cursor and exits."""
    row = tl.program_id(0)
    slot = tl.load(cursor + row)
    if slot >= 0:
        at = slot * tile + tl.arange(0, tile)
        tl.store(out + row * tile + tl.arange(0, tile), tl.load(state + at))


@triton.jit
def _count_kernel(counter, swapped):
    tl.atomic_add(counter, 1)
    tl.atomic_cas(swapped, 0, 1)


@triton.jit
def _advance_kernel(cursor, advanced, out):
    """Each row is served by two programs; both read the cursor and the first writes the next value."""
    row = tl.program_id(0)
    h = tl.load(cursor + row)
    tl.store(out + row * 2 + tl.program_id(1), h)
    if tl.program_id(1) == 0:
        tl.store(advanced + row, h + 1)


def test_masked_lanes_do_not_count_and_results_are_right() -> None:
    src, dst = torch.arange(100, dtype=torch.float32), torch.zeros(100)
    with touched({"src": src, "dst": dst}) as record:
        _copy_kernel[(4,)](src, dst, 90, tile=32)  # 128 lanes, 90 of them live
    assert record.read == {"src": 360, "dst": 0}
    assert record.written == {"src": 0, "dst": 360}
    assert (record.bytes_read, record.bytes_written, record.launches) == (360, 360, 1)
    assert not record.outside and not record.races
    assert torch.equal(dst[:90], src[:90]) and not dst[90:].any()


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float64, 8), (torch.float16, 2), (torch.bfloat16, 2), (torch.uint8, 1), (torch.int64, 8)]
)
def test_element_size_is_the_pointers(dtype: torch.dtype, size: int) -> None:
    src, dst = torch.ones(16, dtype=dtype), torch.zeros(16, dtype=dtype)
    with touched({"src": src, "dst": dst}) as record:
        _copy_kernel[(1,)](src, dst, 11, tile=16)
    assert record.read["src"] == record.written["dst"] == 11 * size


def test_overlapping_reads_count_once() -> None:
    table, out = torch.ones(8, 16), torch.zeros(5)
    with touched({"table": table, "out": out}) as record:
        _shared_rows_kernel[(5,)](table, out, rows=8, columns=16)
    assert record.read["table"] == 8 * 16 * 4
    assert record.written["out"] == 5 * 4
    assert out.tolist() == [128.0] * 5


def test_launches_of_one_step_accumulate() -> None:
    a, b, c = torch.ones(64), torch.zeros(64), torch.zeros(64)
    with touched({"a": a, "b": b, "c": c}) as record:
        _copy_kernel[(2,)](a, b, 64, tile=32)
        _copy_kernel[(2,)](b, c, 40, tile=32)  # reads part of what the first wrote: both count, once each
        _copy_kernel[(2,)](a, c, 50, tile=32)  # what a launch moves it moves again, whatever others did before it
    assert record.read == {"a": 256 + 200, "b": 160, "c": 0}
    assert record.written == {"a": 0, "b": 256, "c": 160 + 200}
    assert record.launches == 3 and not record.races


def test_views_count_under_their_storages_owner() -> None:
    """The convolution's packed output: x, k and q are strided views of one tensor."""
    packed = torch.randn(4, 48)
    x, k = packed[:, :16], packed[:, 16:32]
    out = torch.zeros(4, 16)
    with touched({"x": x, "k": k, "packed": packed, "out": out}) as record:
        _strided_kernel[(1,)](x, out, x.stride(0), x.stride(1), rows=4, columns=16)
        _strided_kernel[(1,)](k, out, k.stride(0), k.stride(1), rows=4, columns=16)
    assert record.owner == {"x": "packed", "k": "packed", "packed": "packed", "out": "out"}
    assert record.read == {"packed": 2 * 4 * 16 * 4, "out": 0}
    assert record.written["out"] == 2 * 4 * 16 * 4  # once a launch
    assert torch.equal(out, k)


def test_views_without_their_owner_still_map() -> None:
    base = torch.randn(8, 32)
    view, out = base[2:6, 8:24], torch.zeros(4, 16)
    with touched({"view": view, "out": out}) as record:
        _strided_kernel[(1,)](view, out, 32, 1, rows=4, columns=16)
    assert record.read["view"] == 256 and not record.outside
    assert torch.equal(out, view)


def test_transposed_input() -> None:
    base, out = torch.randn(16, 4), torch.zeros(4, 16)
    view = base.T
    with touched({"base": base, "view": view, "out": out}) as record:
        _strided_kernel[(1,)](view, out, view.stride(0), view.stride(1), rows=4, columns=16)
    assert record.read["base"] == 256
    assert torch.equal(out, view)


def test_cursor_bytes_count_and_padded_rows_read_nothing_else() -> None:
    cursor = torch.tensor([2, -1, 0], dtype=torch.int32)
    state, out = torch.randn(3, 32), torch.zeros(3, 32)
    with touched({"cursor": cursor, "state": state, "out": out}) as record:
        _cursor_kernel[(3,)](cursor, state, out, tile=32)
    assert record.read == {"cursor": 12, "state": 2 * 128, "out": 0}
    assert record.written["out"] == 2 * 128


def test_atomics_read_and_write() -> None:
    counter, swapped = torch.zeros(4, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    with touched({"counter": counter, "swapped": swapped}) as record:
        _count_kernel[(3,)](counter, swapped)
    assert record.read == record.written == {"counter": 4, "swapped": 4}
    assert counter[0] == 3 and swapped[0] == 1
    assert not record.races  # atomics are meant to meet


def test_out_of_bounds_is_seen_and_suppressed() -> None:
    whole = torch.arange(200, dtype=torch.float32)
    src, dst = whole[:96].clone(), torch.zeros(96)
    with touched({"src": src, "dst": dst}) as record:
        _copy_kernel[(4,)](src, dst, 128, tile=32)  # 32 lanes past the end of both
    assert record.outside_lanes == 64
    assert [(stray.kind, stray.lanes, stray.program) for stray in record.outside] == [
        ("read", 32, (3, 0, 0)),
        ("write", 32, (3, 0, 0)),
    ]
    assert "read of 32 x 4 bytes" in str(record.outside[0])
    assert record.read["src"] == record.written["dst"] == 96 * 4
    assert torch.equal(src, dst)


def test_access_before_a_buffer_is_seen() -> None:
    whole = torch.zeros(64)
    src, dst = whole[8:16], torch.zeros(16)
    cursor = torch.tensor([-1], dtype=torch.int64)
    with touched({"src": src, "dst": dst, "cursor": cursor}) as record:
        _strided_kernel[(1,)](src, dst, -4, 1, rows=2, columns=4)
    assert [(s.kind, s.lanes, s.nearest, s.offset) for s in record.outside] == [("read", 4, "src", -16)]


def test_a_tensor_nobody_declared_is_outside() -> None:
    src, hidden = torch.ones(32), torch.full((32,), 7.0)
    with touched({"src": src}) as record:
        _copy_kernel[(1,)](src, hidden, 32, tile=32)
    assert record.outside_lanes == 32 and record.read == {"src": 128}
    assert hidden.tolist() == [7.0] * 32


def test_race_between_programs_of_one_launch() -> None:
    """A cursor advanced in place while sibling programs read it; double-buffered it is safe."""
    now, later = torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    out = torch.zeros(3, 2, dtype=torch.int32)
    with touched({"now": now, "out": out}) as record:
        _advance_kernel[(3, 2)](now, now, out)
    assert record.races == {"now": 12}
    with touched({"now": now, "later": later, "out": out}) as record:
        _advance_kernel[(3, 2)](now, later, out)
        _advance_kernel[(3, 2)](later, now, out)  # the next launch may write what this one read
    assert record.races == {}
    assert later.tolist() == [2, 2, 2]


def test_two_programs_writing_one_byte_race() -> None:
    src, dst = torch.ones(32), torch.zeros(32)
    with touched({"src": src, "dst": dst}) as record:
        _strided_kernel[(2,)](src, dst, 8, 1, rows=4, columns=8)
    assert record.races == {"dst": 128}


def test_hooks_are_removed_also_after_an_error() -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    names = ("create_masked_load", "create_masked_store", "create_atomic_rmw", "create_atomic_cas", "set_grid_dim")
    before = [getattr(InterpreterBuilder, name) for name in names]
    with pytest.raises(RuntimeError, match="planted"), touched({"x": torch.ones(2)}):
        assert InterpreterBuilder.create_masked_load is not before[0]
        raise RuntimeError("planted")
    assert [getattr(InterpreterBuilder, name) for name in names] == before


def test_nested_records_each_count() -> None:
    src, dst = torch.ones(32), torch.zeros(32)
    with touched({"src": src, "dst": dst}) as outer:
        _copy_kernel[(1,)](src, dst, 32, tile=32)
        with touched({"src": src, "dst": dst}) as inner:
            _copy_kernel[(1,)](src, dst, 8, tile=32)
    assert (outer.read["src"], inner.read["src"], outer.launches, inner.launches) == (128 + 32, 32, 2, 1)


def test_empty_tensors_and_no_launches() -> None:
    with touched({"none": torch.zeros(0), "some": torch.zeros(3)}) as record:
        pass
    assert record.read == {"some": 0} and record.bytes_written == 0 and record.races == {}


def test_refuses_tensors_elsewhere() -> None:
    with pytest.raises(InputError, match=r"tensors\[x\].*CPU"), touched({"x": torch.zeros(2, device="meta")}):
        pass


def test_refuses_a_process_that_does_not_interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(DeviceError, match="TRITON_INTERPRET=1"), touched({"x": torch.zeros(2)}):
        pass
