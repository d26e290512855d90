"""Times of one layer's step for many windows and batches at once.

A method's bytes are declared per step as so much a row and so much a step (``Step.shared_read``), so the chain over
(h, flush) is walked once, for one row, and every batch follows from it. Where rows are at different points of their
cycles, as under continuous batching, a step's bytes are the mean row's times the batch. How many of the rows flush then
varies from step to step, binomially: the quantiles are the times of steps with as many flushing rows.

Where all rows flush together (aligned, the same acceptance every step), each kind of step has its own time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit.method import Method, Point, Step
from perfkit.profiles import Gpu
from perfkit.roofline import Chain, Efficiency, Roofs, committed_chain, decode_chain, phase_chain, pmf_mean, predict
from perfkit.shape import DTYPE_BYTES, Shape

Array = NDArray[Any]
#: Standard normal quantile of 0.99.
_Z99 = 2.3263
#: Where flushes are at least this share of steps, the 99th percentile of steps that flush together is one.
_RARE = 0.01
#: Fields of a step that do not grow with its rows.
_SHARED = ("launches", "serial", "shared_read", "shared_write")


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Predicted microseconds of one layer's step; arrays of one shape, the last axis is windows.

    Attributes:
        us: mean step, flushes included.
        lo: lower end of its interval, doubt about an unmeasured roof included.
        hi: upper end.
        kernel_lo: lower end of what is not known of the method's kernels alone, the roofs taken as they are.
        kernel_hi: upper end of the same.
        p50: median step.
        p99: of 100 steps, the slowest but one.
    """

    us: Array
    lo: Array
    hi: Array
    kernel_lo: Array
    kernel_hi: Array
    p50: Array
    p99: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One method at one T and precision, all its windows; :func:`make_layer` builds it.

    Attributes:
        gpu: whose times.
        roofs: of that GPU.
        efficiency: of the method's kernels; None where they were never timed: times are then bounds.
        d_v: rows of a head's state.
        windows: [W] int64; None for a method without a window, W is then 1.
        accepted: mean tokens a step commits.
        chain: of one row.
        one: [steps] what each step of the chain moves, for a batch of one.
        mean: [W] the expectation of it.
        in_step: whether all rows flush in the same step.
    """

    gpu: Gpu
    roofs: Roofs
    efficiency: Efficiency | None
    d_v: int
    windows: Array | None
    accepted: float
    chain: Chain
    one: Step
    mean: Step
    in_step: bool

    def times(self, batch: Any) -> LayerTimes:
        """Return the times at a batch; it broadcasts against the windows, [W] or [..., W]."""
        rows = np.asarray(batch, dtype=np.float64)
        return self._together(rows) if self.in_step else self._mixed(rows)

    def kernel_interval(self, batch: Any) -> tuple[Array, Array, Array]:
        """Return ``us``, ``kernel_lo`` and ``kernel_hi`` alone."""
        rows = np.asarray(batch, dtype=np.float64)
        if self.in_step:
            times = self._together(rows)
            return times.us, times.kernel_lo, times.kernel_hi
        found = self._predict(scaled(self.mean, rows), replace(self.roofs, source="measured"), self._share(rows))
        return np.asarray(found.us), np.asarray(found.lo), np.asarray(found.hi)

    def mean_us(self, batch: Any) -> Array:
        """Return the mean times alone."""
        rows = np.asarray(batch, dtype=np.float64)
        if self.in_step:
            return self._together(rows).us
        return np.asarray(self._predict(scaled(self.mean, rows), self.roofs, self._share(rows)).us)

    def mean_bytes(self, batch: Any) -> Array:
        """Return the bytes of the mean step, both directions."""
        step = scaled(self.mean, np.asarray(batch, dtype=np.float64))
        return np.asarray(step.bytes_read + step.bytes_write)

    def _mixed(self, rows: Array) -> LayerTimes:
        mean = scaled(self.mean, rows)
        us, lo, hi, kernel_lo, kernel_hi = self._all(mean, self._share(rows))
        rate = self.chain.flush_rate
        if np.all((rate == 0) | (rate == 1)):  # steps are alike but for a few records
            return LayerTimes(us, lo, hi, kernel_lo, kernel_hi, us, us)
        flush = np.asarray(self.chain.flush, dtype=np.float64)
        always = rate == 1
        # Where every step flushes there is no other kind: its weight is made up, and its share 0.
        plain = row_mean(self.one, self.chain, np.where(np.repeat(always, self._lengths), 1.0, 1.0 - flush))
        folding = row_mean(self.one, self.chain, flush)
        expected, spread = rows * rate, np.sqrt(rows * rate * (1 - rate))
        median = np.rint(expected)
        most = np.minimum(np.ceil(expected + _Z99 * spread), rows)
        p50, p99 = (
            np.asarray(self._predict(*_between(plain, folding, rows, count, self.roofs)).us) for count in (median, most)
        )
        return LayerTimes(us, lo, hi, kernel_lo, kernel_hi, p50, np.maximum(np.maximum(p99, us), p50))

    def _together(self, rows: Array) -> LayerTimes:
        shape = np.broadcast_shapes(rows.shape, self.chain.starts.shape)
        each_rows = np.repeat(np.broadcast_to(rows, shape), self._lengths, axis=-1)
        flush = np.asarray(self.chain.flush, dtype=np.float64)
        each = self._all(scaled(self.one, each_rows), flush, None if self.windows is None else self.chain.window)
        us, lo, hi, kernel_lo, kernel_hi = (self._mean(part) for part in each)
        rate = self.chain.flush_rate
        with np.errstate(invalid="ignore", divide="ignore"):
            folding = np.where(rate > 0, self._mean(each[0] * flush) / rate, us)
            plain = np.where(rate < 1, self._mean(each[0] * (1 - flush)) / (1 - rate), us)
        p50 = np.where(rate > 0.5, folding, plain)
        return LayerTimes(us, lo, hi, kernel_lo, kernel_hi, p50, np.maximum(np.where(rate < _RARE, plain, folding), us))

    def _share(self, rows: Array) -> Array:
        """Return the share of the mean step's bytes that rows move which flush; as :meth:`times` broadcasts."""
        flush = np.asarray(self.chain.flush, dtype=np.float64)
        shared = np.broadcast_to(self.one.shared_read + self.one.shared_write, flush.shape)
        own = np.broadcast_to(self.one.bytes_read + self.one.bytes_write, flush.shape) - shared
        part = self._mean(own * flush) * rows + self._mean(shared * flush)
        return np.asarray(part / (self._mean(own) * rows + self._mean(shared)))

    @property
    def _lengths(self) -> Array:
        """Steps of the chain in each window: [W]."""
        return np.diff(np.append(self.chain.starts, len(self.chain.h)))

    def _mean(self, values: Array) -> Array:
        """Return the expectation over the chain, along the last axis."""
        return np.add.reduceat(values * self.chain.probability, self.chain.starts, axis=-1)

    def _all(self, step: Step, flush: Any, windows: Array | None = None) -> tuple[Array, Array, Array, Array, Array]:
        found = self._predict(step, self.roofs, flush, windows)
        kernel = found
        if not self.roofs.calibrated:  # the same roofs, as if there were no doubt about them
            kernel = self._predict(step, replace(self.roofs, source="measured"), flush, windows)
        us, lo, hi = (np.asarray(part) for part in (found.us, found.lo, found.hi))
        return us, lo, hi, np.asarray(kernel.lo), np.asarray(kernel.hi)

    def _predict(self, step: Step, roofs: Roofs, flush: Any, windows: Array | None = None) -> Any:
        """Predict a step whose last axis is windows, or of the kinds of step in each, whose windows are given."""
        return predict(self.gpu, roofs, step, efficiency=self.efficiency, d_v=self.d_v, flush=flush,
                       window=self.windows if windows is None else windows)  # fmt: skip


def make_layer(
    method: Method, shape: Shape, gpu: Gpu, roofs: Roofs, *, windows: Any = None, draft_len: int = 1,
    pmf: NDArray[np.float64], state_dtype: str = "float32", input_dtype: str = "bfloat16", aligned: bool = False,
    efficiency: Efficiency | None = None,
) -> Layer:  # fmt: skip
    """Return one method's layer, for all windows together.

    Args:
        method: whose bytes.
        shape: the layer's; under tensor parallelism one GPU's part of it.
        gpu: whose times.
        roofs: of that GPU.
        windows: [W], each at least T; left out for a method without a window.
        draft_len: T.
        pmf: [T], P(a = 1..T).
        state_dtype: of the checkpoint.
        input_dtype: of inputs and records.
        aligned: whether rows start together; they stay together where each step commits the same number.
        efficiency: of the method's kernels.

    Raises:
        InputError: T > L.
    """
    if method.windowed:
        chain = phase_chain(np.asarray(windows, dtype=np.int64), draft_len, pmf)
    else:
        chain = decode_chain(1) if draft_len == 1 else committed_chain(pmf)
    element = DTYPE_BYTES[state_dtype]
    point = Point(batch=1, window=chain.window if method.windowed else 1, draft_len=draft_len,
                  input_bytes=DTYPE_BYTES[input_dtype], state_bytes=element, read_bytes=element,
                  accepted=pmf_mean(pmf))  # fmt: skip
    one = method.step(shape, point, chain.h, chain.flush)
    return Layer(
        gpu=gpu, roofs=roofs, efficiency=efficiency, d_v=shape.d_v, windows=chain.windows if method.windowed else None,
        accepted=chain.accepted, chain=chain, one=one, mean=row_mean(one, chain),
        in_step=aligned and bool(np.max(pmf) > 1 - 1e-12),
    )  # fmt: skip


def row_mean(one: Step, chain: Chain, weight: Any = 1.0) -> Step:
    """Return the expectation over the chain of one row's steps, each weighted: [W] in every field."""
    names = [item.name for item in fields(Step)]
    weights = np.broadcast_to(weight, chain.h.shape) * chain.probability
    values = np.stack([np.broadcast_to(getattr(one, name), chain.h.shape) for name in names])
    means = np.add.reduceat(values * weights, chain.starts, axis=-1) / np.add.reduceat(weights, chain.starts)
    return Step(**dict(zip(names, means, strict=True)))


def scaled(one: Step, rows: Any) -> Step:
    """Return what a step of many rows moves and computes, from that of one."""
    counts = {item.name: getattr(one, item.name) for item in fields(Step)}
    grown = {name: value * rows for name, value in counts.items() if name not in _SHARED}
    grown["bytes_read"] = (one.bytes_read - one.shared_read) * rows + one.shared_read
    grown["bytes_write"] = (one.bytes_write - one.shared_write) * rows + one.shared_write
    return Step(**(counts | grown))


def _between(plain: Step, folding: Step, rows: Any, count: Any, roofs: Roofs) -> tuple[Step, Roofs, Any]:
    """Return a step of which ``count`` rows flush, the roofs, and the share of its bytes that they move."""
    one, other, share = scaled(plain, rows), scaled(folding, rows), count / rows
    step = Step(**{item.name: getattr(one, item.name) * (1 - share) + getattr(other, item.name) * share
                   for item in fields(Step)})  # fmt: skip
    return step, roofs, share * (other.bytes_read + other.bytes_write) / (step.bytes_read + step.bytes_write)
