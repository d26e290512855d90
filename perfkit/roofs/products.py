"""Rates of matrix products on random data, sustained: what tensor cores and CUDA cores do under the power limit.

The products are cuBLAS's, through torch. Data are random: zeros switch few transistors, and a GPU at its power cap
would look faster with them. Each kind shows by its error that it is what it is called.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from perfkit.errors import DeviceError
from perfkit.measure import Clock
from perfkit.roofs.points import Rate, throttled
from perfkit.stats import median_interval

#: Of the square matrices: an FP32 product is then some 20 ms on the largest GPUs, and three of them take 0.8 GB.
SIZE = 8192
#: Untimed, so that clocks and power have settled, in units of the time that is timed.
SETTLE = 0.3
SAMPLE_US = 20e3
#: Rows and columns of a product that are compared with float64.
CHECKED = 64
POWER_CAP = "power cap"


@dataclass(frozen=True, slots=True)
class Product:
    """One kind of matrix product.

    Attributes:
        kind: its name in roofs files.
        dtype: of the matrices; sums are FP32.
        precision: what torch may do with FP32 matrices: ``highest`` is IEEE, ``high`` TF32.
        error: relative Frobenius error against float64, from and to. BF16 rounds its results (2^-9), TF32 its inputs
            (2^-11); IEEE FP32 rounds partial sums alone.
    """

    kind: str
    dtype: str
    precision: str
    error: tuple[float, float]


PRODUCTS: Mapping[str, Product] = MappingProxyType(
    {
        "bf16": Product("bf16", "bfloat16", "highest", (1e-4, 4e-3)),
        "tf32": Product("tf32", "float32", "high", (3e-5, 3e-3)),
        "fp32": Product("fp32", "float32", "highest", (0.0, 1e-5)),
    }
)


@contextlib.contextmanager
def precision(product: Product) -> Iterator[None]:
    """Let torch compute as a product wants inside the block: IEEE or TF32, and sums of BF16 in FP32."""
    import torch

    matmul: Any = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), matmul.allow_bf16_reduced_precision_reduction
    torch.set_float32_matmul_precision(product.precision)
    matmul.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        matmul.allow_bf16_reduced_precision_reduction = before[1]


def measure_product(product: Product, size: int, seconds: float, clock: Clock, monitor: Any, device: str) -> Rate:
    """Return the rate of one kind of product of random matrices.

    Raises:
        DeviceError: the result is not of that precision, or the GPU throttled all the time for another reason than
            its power cap.
    """
    import torch

    generator = torch.Generator(device=device).manual_seed(0)
    dtype = getattr(torch, product.dtype)
    a, b = (torch.randn(size, size, device=device, generator=generator).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    with precision(product):
        torch.matmul(a, b, out=out)
        check_error(product, relative_error(a, b, out))
        return sustained(product.kind, size, lambda: torch.matmul(a, b, out=out), seconds, clock, monitor)


def relative_error(a: Any, b: Any, out: Any) -> float:
    """Return the relative Frobenius error of the first rows and columns of ``out`` = a b against float64."""
    expected = a[:CHECKED].double() @ b[:, :CHECKED].double()
    return float((out[:CHECKED, :CHECKED].double() - expected).norm() / expected.norm())


def check_error(product: Product, error: float) -> None:
    """Refuse a product that another precision computed.

    Raises:
        DeviceError: the error is not one that this kind makes.
    """
    low, high = product.error
    if not low <= error <= high:
        raise DeviceError(
            f"{product.kind} products have a relative error of {error:.1e}, not {low:.0e} to {high:.0e}: another "
            "precision computed them; unset NVIDIA_TF32_OVERRIDE, and TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
        )


def sustained(
    kind: str, size: int, run: Callable[[], object], seconds: float, clock: Clock, monitor: Any
) -> Rate:  # fmt: skip
    """Time products without a rest, and return their rate once clocks and power have settled.

    At the power cap a sample counts: a GPU does not compute faster for longer than that. Samples that throttle for
    another reason are dropped.

    Args:
        kind: of product.
        size: of the square matrices.
        run: enqueues one.
        seconds: of the GPU's time.
        clock: how runs are timed.
        monitor: a started :class:`perfkit.device.Monitor`.

    Raises:
        DeviceError: fewer than two samples are left.
    """
    once = min(clock.time_us(run) for _ in range(3))
    repeats = max(1, round(SAMPLE_US / once))

    def sample() -> None:
        for _ in range(repeats):
            run()

    spent = 0.0
    while spent < SETTLE * seconds * 1e6:
        spent += clock.time_us(sample)
    times: list[float] = []
    clocks: list[int] = []
    reasons: set[str] = set()
    spent, capped, dropped, known = 0.0, 0, 0, True
    while spent < seconds * 1e6:
        before = monitor.snapshot()
        time = clock.time_us(sample)
        verdict = monitor.judge(before, monitor.snapshot())
        spent += time
        known &= verdict.known
        others = set(verdict.reasons) - {POWER_CAP}
        if others:
            dropped += 1
            reasons |= others
            continue
        capped += POWER_CAP in verdict.reasons
        times.append(time / repeats)
        if verdict.sm_clock_mhz is not None:
            clocks.append(verdict.sm_clock_mhz)
    power = monitor.power_w()
    if len(times) < 2:
        raise throttled(f"{kind} products", dropped, sorted(reasons))
    flops = 2.0 * size**3
    rates = median_interval([flops / time / 1e6 for time in times])
    middle = statistics.median(clocks) if clocks else None
    share, lost = (capped / len(times), dropped) if known else (None, None)
    return Rate(kind, size, rates, middle, power, share, lost)
