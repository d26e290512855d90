"""What rounding explains and what it does not, against numpy's own rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from perfkit.tolerance import HEAD_TOLERANCE, excess_error, half_ulp, head_error, output_size

FP16, BF16 = torch.float16, torch.bfloat16
VALUES = np.concatenate([
    np.random.default_rng(0).standard_normal(2000), 2.0 ** np.arange(-26, 16), -(2.0 ** np.arange(-26, 16)),
    np.nextafter(2.0 ** np.arange(-14, 15), 0), [0.0, 6e-8, 5e-8, 65504.0],
])  # fmt: skip


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_half_ulp_literals() -> None:
    assert half_ulp(f64(1.0, 1.999, 2.0, -1.0, 1024.0), FP16).tolist() == [2.0**-11, 2.0**-11, 2.0**-10, 2.0**-11, 0.5]
    assert half_ulp(f64(1.0, 3.0), BF16).tolist() == [2.0**-8, 2.0**-7]
    assert half_ulp(f64(1.0, 1e30), torch.float32).tolist() == [0.0, 0.0]
    assert half_ulp(f64(1.0), BF16, factor=2.0).tolist() == [2.0**-7]


def test_subnormal_numbers_and_zero_have_the_smallest_spacing() -> None:
    assert half_ulp(f64(0.0, 1e-9, 2.0**-14, 2.0**-15), FP16).tolist() == [2.0**-25] * 4
    assert half_ulp(f64(0.0), BF16).item() == 2.0**-134


def test_rounding_to_nearest_is_never_more_than_half_an_ulp() -> None:
    """numpy's float16 and torch's bfloat16 both round to nearest."""
    exact = torch.as_tensor(VALUES)
    half = torch.as_tensor(VALUES.astype(np.float16).astype(np.float64))
    assert excess_error(half, exact, FP16) == 0.0
    assert excess_error(exact.bfloat16().double(), exact, BF16) == 0.0
    # and the bound is reached: a value halfway between two numbers
    assert excess_error(f64(1.0), f64(1.0 + 2.0**-11), FP16) == 0.0
    assert excess_error(f64(1.0), f64(1.0 + 2.0**-11 + 2.0**-30), FP16) > 0


def test_truncation_needs_twice_the_room() -> None:
    exact = torch.as_tensor(np.random.default_rng(1).uniform(1, 2, 1000))
    cut = torch.floor(exact * 128) / 128  # seven bits, toward zero
    assert excess_error(cut, exact, BF16) > 1e-4
    assert excess_error(cut, exact, BF16, factor=2.0) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, FP16, BF16])
def test_an_error_beyond_rounding_keeps_its_size(dtype: torch.dtype) -> None:
    exact = torch.as_tensor(np.random.default_rng(2).uniform(1, 2, 1000))
    found = (exact * 1.1).to(dtype).double()
    assert 0.09 < excess_error(found, exact, dtype) < 0.11


def test_one_ulp_off_is_seen() -> None:
    halves = VALUES[:2000].astype(np.float16)
    exact = torch.as_tensor(halves.astype(np.float64))
    off = torch.as_tensor(np.nextafter(halves, np.float16(np.inf)).astype(np.float64))
    assert excess_error(off, exact, FP16) > 1e-4


def test_noise_where_the_state_is_zero_is_seen() -> None:
    expected = f64(0.0, 0.0, 1.0)
    assert excess_error(f64(1e-4, 0.0, 1.0), expected, FP16) == pytest.approx(1e-4, rel=1e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_are_infinitely_wrong(bad: float) -> None:
    assert excess_error(f64(1.0, bad), f64(1.0, 1.0), FP16) == math.inf
    assert not excess_error(f64(bad), f64(bad), FP16) <= 1.0


def test_a_small_head_does_not_hide_behind_large_ones() -> None:
    torch.manual_seed(0)
    expected = torch.randn(8, 128, 64, dtype=torch.float64)
    expected[:, 5] *= 1e-5
    found = expected.clone()
    found[:, 5] = 0.0
    assert excess_error(found, expected, torch.float32) < 2e-6  # a layer's norm does not see it
    assert head_error(found, expected, torch.float32) > HEAD_TOLERANCE
    assert head_error(expected.clone(), expected, torch.float32) == 0.0


def test_a_query_at_right_angles_is_measured_by_what_cancelled() -> None:
    """A state of one record, u kᵀ: products in two BF16 terms are right, however little of them is left."""
    torch.manual_seed(0)
    k, q = (torch.randn(1, 16, 128, dtype=torch.float64) for _ in range(2))
    k /= k.norm(dim=-1, keepdim=True)
    q -= (1 - 1e-4) * (q * k).sum(-1, keepdim=True) * k
    state = torch.randn(1, 16, 64, 1, dtype=torch.float64) * k[..., None, :]
    high = (state.float().view(torch.int32) & -65536).view(torch.float32)
    terms = high.double() + (state.float() - high).bfloat16().double()
    expected, found = ((kept * q[..., None, :]).sum(-1) for kept in (state, terms))
    sizes = output_size(state, q)
    assert expected.norm() < 1e-3 * sizes.norm()
    assert head_error(found, expected, torch.float32) > HEAD_TOLERANCE
    assert head_error(found, expected, torch.float32, least=sizes) < 0.2 * HEAD_TOLERANCE
    found = (state * (1 + 1e-4) * (q * torch.linspace(0.9, 1.1, 128))[..., None, :]).sum(-1)  # another query
    assert head_error(found, expected, torch.float32, least=sizes) > 100 * HEAD_TOLERANCE


def test_an_output_of_no_direction_has_about_its_size() -> None:
    torch.manual_seed(0)
    state, q = torch.randn(4, 16, 64, 128, dtype=torch.float64), torch.randn(4, 16, 128, dtype=torch.float64)
    out = (state * q[..., None, :]).sum(-1).norm(dim=-1)
    ratio = output_size(state, q) / out
    assert 0.4 < float(ratio.min()) < float(ratio.max()) < 1.0  # 2/pi of it
