"""Rates of matrix products: sustained samples, the power cap kept and other throttling dropped, precision proven."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from perfkit.device import Monitor, Snapshot
from perfkit.errors import DeviceError
from perfkit.roofs.products import PRODUCTS, check_error, measure_product, precision, relative_error, sustained

CAP, HOT = 0x004, 0x020
SIZE = 1000  # 2 GFLOP
FLOPS = 2 * SIZE**3


class Clock:
    """Every run takes ``run_us``, the first ones after a rest less: until clocks and power have settled."""

    def __init__(self, run_us: float, settle: int = 0) -> None:
        self.run_us, self.settle = run_us, settle
        self.runs = self.samples = 0

    def enqueue(self) -> None:
        self.runs += 1

    def time_us(self, run: Callable[[], object]) -> float:
        before = self.runs
        run()
        self.samples += 1
        return (self.runs - before) * self.run_us * (0.5 if self.samples <= self.settle else 1.0)


class Watch:
    """Clock reasons in turn, the last for good."""

    def __init__(self, masks: Sequence[int] = (0,), power: float | None = 695.0) -> None:
        self.masks, self.power = list(masks), power

    def snapshot(self) -> Snapshot:
        return Snapshot(self.masks.pop(0) if len(self.masks) > 1 else self.masks[0], 1650)

    judge = staticmethod(Monitor.judge)

    def power_w(self) -> float | None:
        return self.power


def _rate(clock: Clock, watch: Watch, seconds: float = 1.0):
    return sustained("fp32", SIZE, clock.enqueue, seconds, clock, watch)


def test_short_products_are_timed_many_together_for_as_long_as_asked() -> None:
    clock = Clock(100.0, settle=3)
    found = _rate(clock, Watch())
    assert found.tflops.value == found.tflops.lo == found.tflops.hi == pytest.approx(FLOPS / 100 / 1e6)
    # Three to see how long one takes (half as long here), then samples of 20 ms at first sight: 400 products, 40 ms.
    assert clock.samples == 3 + 8 + 25
    assert (found.kind, found.size, found.clock_mhz, found.power_w) == ("fp32", SIZE, 1650, 695.0)
    assert (found.capped, found.dropped) == (0.0, 0)


def test_a_product_longer_than_a_sample_is_one() -> None:
    clock = Clock(50e3)
    assert _rate(clock, Watch()).tflops.value == pytest.approx(FLOPS / 50e3 / 1e6)
    assert clock.runs == clock.samples == 3 + 6 + 20


def test_the_power_cap_is_the_roof_and_other_throttling_is_not() -> None:
    capped = _rate(Clock(50e3), Watch([CAP]))
    assert (capped.capped, capped.dropped) == (1.0, 0)
    # Two snapshots a sample: the second and third of twenty are too hot.
    some = _rate(Clock(50e3), Watch([0, 0, 0, HOT, HOT | CAP, 0, CAP, 0, 0]))
    assert some.dropped == 2 and some.capped == pytest.approx(1 / 18)
    with pytest.raises(DeviceError, match=r"all 20 samples of fp32 products \(software thermal slowdown\)"):
        _rate(Clock(50e3), Watch([HOT]))


def test_a_driver_that_says_nothing() -> None:
    found = sustained("fp32", SIZE, (clock := Clock(50e3)).enqueue, 1.0, clock, Monitor("GPU-none"))
    assert (found.clock_mhz, found.power_w, found.capped, found.dropped) == (None, None, None, None)


def test_precision_is_set_for_the_product_and_restored() -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    for kind, expected in (("tf32", "high"), ("fp32", "highest"), ("bf16", "highest")):
        with pytest.raises(RuntimeError, match="inside"), precision(PRODUCTS[kind]):
            assert torch.get_float32_matmul_precision() == expected
            assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
            raise RuntimeError("inside")
        now = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        assert now == before


def _rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Round to a mantissa of ``bits`` bits after the leading one, as tensor cores round FP32."""
    shift = 23 - bits
    as_int = x.view(torch.int32) + (1 << (shift - 1))
    return (as_int >> shift << shift).view(torch.float32)


def test_each_kind_shows_by_its_error_that_it_is_what_it_is_called() -> None:
    """On this CPU's products: BF16 and FP32 as torch computes them, TF32 by rounding what goes in to ten bits."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(512, 512, generator=generator) for _ in range(2))
    errors = {
        "bf16": relative_error(a.bfloat16(), b.bfloat16(), (a.bfloat16().float() @ b.bfloat16().float()).bfloat16()),
        "tf32": relative_error(a, b, _rounded(a, 10) @ _rounded(b, 10)),
        "fp32": relative_error(a, b, a @ b),
    }
    for kind, product in PRODUCTS.items():
        check_error(product, errors[kind])
    for kind, other in (("fp32", "tf32"), ("tf32", "fp32"), ("fp32", "bf16"), ("bf16", "fp32")):
        with pytest.raises(DeviceError, match=f"{kind} products have a relative error of .*NVIDIA_TF32_OVERRIDE"):
            check_error(PRODUCTS[kind], errors[other])
    zeros = relative_error(a.bfloat16(), b.bfloat16(), torch.zeros(512, 512).bfloat16())
    with pytest.raises(DeviceError, match=r"relative error of 1\.0e\+00"):  # nothing was computed
        check_error(PRODUCTS["bf16"], zeros)
    with pytest.raises(DeviceError, match="relative error of nan"):
        check_error(PRODUCTS["bf16"], float("nan"))


@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_random_matrices_are_multiplied_checked_and_timed(kind: str) -> None:
    """The whole way, on the CPU, with a clock that says how long it took."""
    clock = Clock(0.0)

    def time_us(run: Callable[[], object]) -> float:
        run()
        return 50e3

    clock.time_us = time_us  # type: ignore[method-assign]
    found = measure_product(PRODUCTS[kind], 128, 0.1, clock, Watch(), "cpu")
    assert (found.kind, found.size) == (kind, 128)
    assert found.tflops.value == pytest.approx(2 * 128**3 / 50e3 / 1e6)
