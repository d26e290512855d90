"""All that a plan compares: a row for each method, T, state precision and window, with memory, times and throughput."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import InputError
from perfkit.method import Case, Method
from perfkit.plan.comm import comm_us
from perfkit.plan.kernels import Basis, Kernels, kernels_of
from perfkit.plan.layer import Layer, LayerTimes, make_layer
from perfkit.plan.question import Question
from perfkit.profiles import Gpu
from perfkit.roofline import (
    Roofs,
    StepModel,
    WholeStep,
    n_waves,
    request_memory,
    requests_that_fit,
    served_tokens_per_s,
)
from perfkit.roofline.acceptance import rates_pmf
from perfkit.roofline.latency import WIDTH_UNCALIBRATED
from perfkit.shape import Shape

Array = NDArray[Any]
#: Windows whose throughput differs by less are as good: no prediction tells them apart.
SAME = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One choice, predicted.

    Attributes:
        method: its key.
        draft_len: T.
        window: L; None without a replay buffer.
        ring_slots: records that the engine's buffer has room for; None without one.
        state_dtype: of the checkpoint.
        accepted: mean tokens a step commits.
        request_bytes: memory of a request, on each GPU.
        fits: requests that fit at once.
        runs: requests that run at once of those asked for.
        waves: in how many waves they run if they come together.
        step_ms: mean step of ``runs`` requests.
        step_lo_ms: lower end of its interval.
        step_hi_ms: upper end.
        kernel_lo_ms: the same with what is not known of the method's kernels alone.
        kernel_hi_ms: upper end.
        p50_ms: median step.
        p99_ms: 99th percentile by how many rows flush.
        token_ms: mean time per token that one request sees.
        tokens_per_s: of all requests, while others wait for those that run.
        together_tokens_per_s: of requests that come together and run in waves, to the end of the last.
        layer_us: of one state-space layer.
        terms: the step by term, in milliseconds.
        basis: what the layer's time rests on (:class:`perfkit.plan.kernels.Kernels`).
        impl: whose kernels; None for a bound.
        within_sla: whether it keeps the limit; true without one.
    """

    method: str
    draft_len: int
    window: int | None
    ring_slots: int | None
    state_dtype: str
    accepted: float
    request_bytes: int
    fits: int
    runs: int
    waves: int
    step_ms: float
    step_lo_ms: float
    step_hi_ms: float
    kernel_lo_ms: float
    kernel_hi_ms: float
    p50_ms: float
    p99_ms: float
    token_ms: float
    tokens_per_s: float
    together_tokens_per_s: float
    layer_us: float
    terms: Mapping[str, float]
    basis: Basis
    impl: str | None
    within_sla: bool = True

    @property
    def key(self) -> tuple[str, int]:
        """Method and T: what a choice is, L and precision aside."""
        return self.method, self.draft_len

    @property
    def spread(self) -> Spread:
        """What a ratio takes of it."""
        return Spread(self.tokens_per_s, self.kernel_hi_ms / self.step_ms, self.step_ms / self.kernel_lo_ms)

    @property
    def tokens_lo(self) -> float:
        """Throughput at the upper end of the step's interval."""
        return self.tokens_per_s * self.step_ms / self.step_hi_ms

    @property
    def tokens_hi(self) -> float:
        """Throughput at the lower end."""
        return self.tokens_per_s * self.step_ms / self.step_lo_ms

    @property
    def is_bound(self) -> bool:
        """Whether the layer's time is what its bytes allow at best."""
        return self.basis == "bound"


@dataclass(frozen=True, slots=True)
class Spread:
    """What a ratio of two rows takes.

    Attributes:
        tokens_per_s: throughput.
        down: the longest step by what is not known of the kernels, over the mean.
        up: the mean over the shortest.
    """

    tokens_per_s: float
    down: float
    up: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One method, T and precision: its windows as arrays [W].

    Attributes:
        question: what was asked.
        method: of the kernels.
        draft_len: T.
        state_dtype: of the checkpoint.
        layer: its times.
        step: the whole step's model.
        windows: [W] L; of a method without one a single 0.
        ring_slots: [W] records that the engine's buffer holds; 0 without one.
        request_bytes: [W] memory of a request.
        fits: [W] requests that fit.
        kernels: what is known of the method's.
    """

    question: Question
    method: Method
    draft_len: int
    state_dtype: str
    layer: Layer
    step: StepModel
    windows: Array
    ring_slots: Array
    request_bytes: Array
    fits: Array
    kernels: Kernels

    @property
    def runs(self) -> Array:
        """[W] requests that run at once; 0 where none fits."""
        return np.minimum(self.question.concurrency, self.fits)

    def whole(self, layer_us: Any, batch: Any, context: Any = None) -> WholeStep:
        """Return the step by term; ``context`` is the question's if None."""
        asked = self.question
        comm = comm_us(asked.model, asked.gpu, np.multiply(batch, self.draft_len), asked.tp)
        return self.step.step(layer_us, batch, draft_len=self.draft_len, routing=asked.routing,
                              context=asked.context if context is None else context, slowdown=asked.slowdown,
                              comm_us=comm)  # fmt: skip

    def step_us(self, batch: Any) -> Any:
        """Return the mean step of each window at a batch that broadcasts against them, in microseconds."""
        return self.whole(self.layer.mean_us(batch), batch).us

    def tokens_per_s(self, batch: Any) -> Any:
        """Return the throughput of a batch that runs at once."""
        return np.multiply(batch, self.layer.accepted) / self.step_us(batch) * 1e6

    def rows(self) -> list[Row]:
        """Return a row for each window of which a request fits."""
        made = self._maker()
        return [made(at) for at in range(len(self.windows)) if self.fits[at] > 0]

    def choice(self) -> Choice | None:
        """Return the window of most throughput; None where not one request fits.

        Of windows that are as good (:data:`SAME`) it is that of which most requests fit, which with pages need not be
        the smallest; of several the first, which keeps fewest records. Windows that break the limit come after those
        that do not.
        """
        running = np.maximum(self.runs, 1)
        tokens = np.where(self.fits > 0, self.tokens_per_s(running), 0.0)
        within = self._within(running) & (self.fits > 0)
        eligible = np.where(within, tokens, 0.0) if np.any(within) else tokens
        if not np.any(eligible > 0):
            return None
        good = np.flatnonzero(eligible >= (1 - SAME) * eligible.max())
        at = int(good[np.argmax(self.fits[good])])
        return Choice(self, at, float(tokens[at]), bool(within[at]))

    def spread(self, at: int) -> Spread:
        """Return what a ratio takes of one window's row."""
        runs = int(self.runs[at])
        mean, low, high = (float(np.broadcast_to(self.whole(us, runs).us, self.windows.shape)[at])
                           for us in self.layer.kernel_interval(runs))  # fmt: skip
        return Spread(runs * self.layer.accepted / mean * 1e6, high / mean, mean / low)

    def row(self, at: int) -> Row:
        """Return the row of one window."""
        return self._maker()(at)

    def _within(self, running: Array) -> Array:
        asked = self.question
        if asked.sla_ms is None:
            return np.ones(self.windows.shape, dtype=bool)
        if asked.sla_on == "token":
            return np.asarray(self.step_us(running) / self.layer.accepted <= asked.sla_ms * 1e3)
        return np.asarray(self.whole(self.layer.times(running).p99, running).us <= asked.sla_ms * 1e3)

    def _maker(self) -> Callable[[int], Row]:
        """Return what makes the row of a window, from times of all."""
        running = np.maximum(self.runs, 1)
        times = self.layer.times(running)
        whole = self.whole(times.us, running)
        together = served_tokens_per_s(self.step_us, self.question.concurrency, np.maximum(self.fits, 1),
                                       accepted=self.layer.accepted)  # fmt: skip
        waves = np.asarray(n_waves(self.question.concurrency, np.maximum(self.fits, 1)))
        return lambda at: self._row(at, times, whole, np.asarray(together), waves)

    def _row(self, at: int, times: LayerTimes, whole: WholeStep, together: Array, waves: Array) -> Row:
        asked, runs, accepted = self.question, int(self.runs[at]), self.layer.accepted
        terms: dict[str, float] = {
            name: float(np.broadcast_to(term, self.windows.shape)[at]) / 1e3 for name, term in whole.terms.items()
        }
        rest = sum(terms.values()) - terms["ssm"]
        doubtful = terms["weights"] + terms["kv"] + terms["draft"]  # read at the same roof
        doubt = 0.0 if asked.roofs.calibrated else WIDTH_UNCALIBRATED

        def step_ms(layer_us: Array, factor: float = 1.0) -> float:
            ssm = self.step.n_ssm * asked.slowdown * float(layer_us[at]) / 1e3
            return ssm + rest + doubtful * (factor - 1)

        mean, p99 = step_ms(times.us), step_ms(times.p99)
        limited = p99 if asked.sla_on == "step" else mean / accepted
        return Row(
            method=self.method.key, draft_len=self.draft_len, window=int(self.windows[at]) or None,
            ring_slots=int(self.ring_slots[at]) or None, state_dtype=self.state_dtype, accepted=accepted,
            request_bytes=int(self.request_bytes[at]), fits=int(self.fits[at]), runs=runs, waves=int(waves[at]),
            step_ms=mean, step_lo_ms=step_ms(times.lo, 1 / (1 + doubt)), step_hi_ms=step_ms(times.hi, 1 + doubt),
            kernel_lo_ms=step_ms(times.kernel_lo), kernel_hi_ms=step_ms(times.kernel_hi),
            p50_ms=step_ms(times.p50), p99_ms=p99, token_ms=mean / accepted, tokens_per_s=runs * accepted / mean * 1e3,
            together_tokens_per_s=float(together[at]), layer_us=float(times.us[at]), terms=terms,
            basis=self.kernels.basis, impl=self.kernels.impl,
            within_sla=asked.sla_ms is None or limited <= asked.sla_ms,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """The best window of a method, T and precision.

    Attributes:
        block: of which method, T and precision.
        at: which of its windows.
        tokens_per_s: throughput.
        within_sla: whether it keeps the limit.
    """

    block: Block
    at: int
    tokens_per_s: float
    within_sla: bool

    @property
    def method(self) -> str:
        """The method's key."""
        return self.block.method.key

    @property
    def draft_len(self) -> int:
        """T."""
        return self.block.draft_len

    @property
    def window(self) -> int | None:
        """L; None without one."""
        return int(self.block.windows[self.at]) or None

    @property
    def key(self) -> tuple[str, int]:
        """Method and T."""
        return self.method, self.draft_len

    @property
    def is_bound(self) -> bool:
        """Whether the layer's time is what its bytes allow at best."""
        return self.block.kernels.basis == "bound"

    @property
    def spread(self) -> Spread:
        """What a ratio takes of it."""
        return self.block.spread(self.at)

    def row(self) -> Row:
        """Return everything about it."""
        return self.block.row(self.at)


@dataclass(frozen=True, slots=True)
class Table:
    """Everything that was compared.

    Attributes:
        question: what was asked.
        blocks: by method, T and precision.
        choices: the best window of each block, the most throughput first, what breaks the limit last.
        skipped: what cannot run, with the reason.
    """

    question: Question
    blocks: tuple[Block, ...]
    choices: tuple[Choice, ...]
    skipped: tuple[tuple[str, str], ...]

    def rows(self) -> list[Row]:
        """Return the rows of the choices, in their order."""
        return [choice.row() for choice in self.choices]

    def all_rows(self) -> list[Row]:
        """Return the rows of all windows, in the same order."""
        rows = [row for block in self.blocks for row in block.rows()]
        return sorted(rows, key=lambda row: (not row.within_sla, -row.tokens_per_s))


def compare(question: Question) -> Table:
    """Return what there is to choose from.

    Raises:
        InputError: the weights do not fit, not one request fits, or nothing of what was asked can run.
    """
    skipped: list[tuple[str, str]] = []
    blocks = tuple(_blocks(question, skipped))
    choices = [choice for block in blocks if (choice := block.choice()) is not None]
    for block in blocks:
        if not np.any(block.fits > 0):
            skipped.append((f"{block.method.key} T={block.draft_len}", "not one request fits"))
    if not blocks:
        raise InputError(f"nothing can run: {'; '.join(f'{name}: {reason}' for name, reason in skipped)}",
                         field="--method", value=",".join(question.methods))  # fmt: skip
    if not choices:
        needed = min(int(block.request_bytes.min()) for block in blocks)
        left = max(question.budget(block.draft_len).requests for block in blocks)
        raise InputError(f"one request needs {needed / 1e6:,.0f} MB, and {left / 1e6:,.0f} MB are left for requests: "
                         "shorten it, or use more GPUs (--tp)", field="--context", value=question.context)  # fmt: skip
    choices.sort(key=lambda choice: (not choice.within_sla, -choice.tokens_per_s))
    return Table(question, blocks, tuple(choices), tuple(skipped))


def _blocks(question: Question, skipped: list[tuple[str, str]]) -> Iterable[Block]:
    step = question.step_model()
    for draft_len in question.drafts.lengths:
        for method in question.known_methods(draft_len):
            for state_dtype in question.state_dtypes:
                windows = _windows(question, method, draft_len, state_dtype, skipped)
                if windows:
                    yield _block(question, step, method, draft_len, state_dtype, windows)


def _windows(
    question: Question, method: Method, draft_len: int, state_dtype: str, skipped: list[tuple[str, str]]
) -> tuple[int | None, ...]:
    """Return the windows that the method can run, (None,) where it has none; why it cannot is added to ``skipped``."""
    candidates: tuple[int | None, ...] = question.candidates(draft_len) if method.windowed else (None,)
    case = Case(question.part.shape, method.key, question.concurrency, draft_len=draft_len,
                acceptance=question.drafts.text(draft_len), input_dtype=question.input_dtype,
                state_dtype=state_dtype)  # fmt: skip
    reasons = {window: method.supports(replace(case, window=window)) for window in candidates}
    found = tuple(window for window, reason in reasons.items() if reason is None)
    if not found:
        reason = next(iter(reasons.values()), None) or f"no window of at least T = {draft_len} is among those asked for"
        skipped.append((f"{method.key} T={draft_len}", reason))
    return found


def _block(
    question: Question, step: StepModel, method: Method, draft_len: int, state_dtype: str,
    windows: tuple[Any, ...],
) -> Block:  # fmt: skip
    memory = [
        request_memory(
            question.model, method.key, context=question.context, engine=question.engine, draft_len=draft_len,
            window=window, tp=question.tp, drafter=draft_len > 1 and question.drafter, kv_dtype=question.kv_dtype,
            state_dtype=state_dtype, input_dtype=question.input_dtype,
        )
        for window in windows
    ]  # fmt: skip
    totals = np.array([one.total for one in memory], dtype=np.int64)
    kernels = kernels_of(question.model.family, method.key, method.phase, question.gpu, question.impls)
    layer = _layer(
        question.part.shape, question.gpu, question.roofs, method, draft_len, windows if method.windowed else None,
        tuple(question.drafts.rates[: draft_len - 1]), state_dtype, question.input_dtype,
        question.flush_phase == "aligned", kernels,
    )  # fmt: skip
    return Block(
        question=question, method=method, draft_len=draft_len, state_dtype=state_dtype, step=step, layer=layer,
        windows=np.array([window or 0 for window in windows]), ring_slots=np.array([one.ring_slots for one in memory]),
        request_bytes=totals, fits=requests_that_fit(question.budget(draft_len).requests, totals),
        kernels=kernels,
    )  # fmt: skip


@lru_cache(maxsize=256)
def _layer(
    shape: Shape, gpu: Gpu, roofs: Roofs, method: Method, draft_len: int, windows: tuple[int, ...] | None,
    rates: tuple[float, ...], state_dtype: str, input_dtype: str, aligned: bool,
    kernels: Kernels,
) -> Layer:  # fmt: skip
    """Return a layer; questions that differ in the load alone share it."""
    return make_layer(
        method, shape, gpu, roofs, windows=windows, draft_len=draft_len,
        pmf=rates_pmf(np.array(rates, dtype=np.float64)), state_dtype=state_dtype, input_dtype=input_dtype,
        aligned=aligned, efficiency=kernels.efficiency,
    )  # fmt: skip
