"""What kernels are made of: softplus to FP32's accuracy, cursors, positions in a ring."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from perfkit.kernels import ring
from perfkit.kernels.gates import softplus
from perfkit.kernels.gdn.replay_parts import corrections_times
from perfkit.kernels.kda.replay_parts import pair_of
from perfkit.kernels.ring import cursor_h, cursor_origin, cursor_pack, wrap


@triton.jit
def _softplus_kernel(src, dst, n, tile: tl.constexpr):
    at = tl.arange(0, tile)
    tl.store(dst + at, softplus(tl.load(src + at, mask=at < n, other=0.0)), mask=at < n)


@triton.jit
def _cursor_kernel(cursor, h, origin, packed, wrapped, n_ring, tile: tl.constexpr):
    at = tl.arange(0, tile)
    value = tl.load(cursor + at)
    tl.store(h + at, cursor_h(value))
    tl.store(origin + at, cursor_origin(value))
    tl.store(packed + at, cursor_pack(cursor_h(value), cursor_origin(value)))
    tl.store(wrapped + at, wrap(cursor_h(value) + cursor_origin(value), n_ring))


@triton.jit
def _corrections_kernel(u, weight, out, n: tl.constexpr):
    i, j = tl.arange(0, n)[:, None], tl.arange(0, n)[None, :]
    tl.store(out + i * n + j, corrections_times(tl.load(u + i * n + j), tl.load(weight + i * n + j), True))


@triton.jit
def _pairs_kernel(early, late, n: tl.constexpr):
    at = tl.arange(0, n)
    j, s = pair_of(at)
    tl.store(early + at, j)
    tl.store(late + at, s)


def softplus_of(values: np.ndarray) -> np.ndarray:
    x = torch.as_tensor(values.astype(np.float32))
    out = torch.empty_like(x)
    _softplus_kernel[(1,)](x, out, len(x), tile=triton.next_power_of_2(len(x)))
    return out.double().numpy()


def test_softplus_is_right_to_fp32() -> None:
    """Three units in the last place of FP32 (1.2e-7): exp, two divisions' and two products' roundings."""
    x = np.linspace(-30, 30, 4001).astype(np.float32)
    exact = np.logaddexp(0.0, x.astype(np.float64))
    assert np.max(np.abs(softplus_of(x) / exact - 1)) <= 3.5e-7


def test_softplus_literals() -> None:
    found = softplus_of(np.array([0.0, 1.0, -6.9, 20.0, -20.0]))
    assert found == pytest.approx([math.log(2), 1.3132616875182228, 1.00727e-3, 20.0, 2.0611536e-9], rel=2e-5)
    assert found[0] == pytest.approx(0.6931471805599453, rel=1e-7)


def test_softplus_far_out() -> None:
    assert softplus_of(np.array([-200.0, 200.0])).tolist() == [0.0, 200.0]


@pytest.mark.parametrize(("h", "origin"), [(0, 0), (5, 0), (0, 7), (16, 17), (32767, 32767), (1, 32767)])
def test_cursors_are_unpacked_as_packed(h: int, origin: int) -> None:
    value = ring.pack(h, origin)
    assert (ring.committed_h(value), ring.origin_of(value)) == (h, origin)
    assert 0 <= value < 2**31


def test_cursor_literals() -> None:
    assert ring.pack(3, 2) == 65539
    assert ring.committed_h(65539) == 3 and ring.origin_of(65539) == 2
    assert ring.pack(0) == 0
    assert ring.MAX_SLOTS == 32767


def test_device_functions_agree_with_the_hosts() -> None:
    pairs = [(0, 0), (3, 4), (4, 4), (5, 4), (1, 7), (7, 7), (0, 7), (2, 3)]
    cursor = torch.tensor([ring.pack(h, origin) for h, origin in pairs], dtype=torch.int32)
    h, origin, packed, wrapped = (torch.empty_like(cursor) for _ in range(4))
    _cursor_kernel[(1,)](cursor, h, origin, packed, wrapped, 8, tile=8)
    assert h.tolist() == [pair[0] for pair in pairs]
    assert origin.tolist() == [pair[1] for pair in pairs]
    assert packed.tolist() == cursor.tolist()
    assert wrapped.tolist() == [0, 7, 0, 1, 0, 6, 7, 5]
    assert ring.committed_h(cursor).tolist() == h.tolist()


@pytest.mark.parametrize("size", [1.0, 1e-3, 2**-14, 1e-6])
def test_weights_that_decay_left_little_of_keep_their_digits(size: float) -> None:
    """FP16 ends at 6e-8: of a weight of 1e-3 it would hold 15 bits, of one of 1e-6 four."""
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(16, 16, generator=generator).half()
    weight = (torch.rand(16, 16, generator=generator) * 2 - 1) * size
    out = torch.empty(16, 16)
    _corrections_kernel[(1,)](u, weight, out, n=16)
    exact = u.double() @ weight.double()
    allowed = 2**-21 + 2e-12 / size  # 22 bits, and half of FP16's last digit once lifted
    assert float((out.double() - exact).abs().max() / (u.double().abs() @ weight.double().abs()).max()) < allowed


def test_pairs_of_drafts_are_all_there_in_order() -> None:
    early, late = torch.zeros(128, dtype=torch.int32), torch.zeros(128, dtype=torch.int32)
    _pairs_kernel[(1,)](early, late, 128)
    pairs = list(zip(early.tolist(), late.tolist(), strict=True))
    assert pairs[:120] == [(j, s) for s in range(16) for j in range(s)]
    assert min(late.tolist()[120:]) == 16  # beyond the most drafts of a step
