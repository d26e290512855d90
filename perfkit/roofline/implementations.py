"""Efficiencies of others' kernels, derived from their times: the least time of their bytes over what they took.

    time = launches x node + overhead + body / efficiency        body = bytes at the roof of their mix

Bytes are those of the state, of records, inputs and outputs; cursors and parameters are left out (a test holds them to
the exact counts of our methods). Where a kernel was timed at small batches too, the overhead is fitted as well, else it
is 0. Intervals are of 95 %, by the spread of the numbers about the fit; where one number or hardly more decides it,
:data:`ONE_NUMBER_WIDTH`, which is stated.

**On another GPU** what a kernel takes beyond its bytes is not the memory's: it is instructions, dependent steps and
waiting in the SMs, and goes with their number and clock (:func:`carried_over`). Published figures of a B300 were known
when this was chosen in place of one efficiency for all GPUs.

Source: the times, each with its own; launches and state traffic: paper, App. A.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from perfkit.errors import InputError
from perfkit.profiles import Gpu, load_gpu, load_model
from perfkit.profiles.implementations import Timed, check_implementation, read_implementations
from perfkit.roofline.acceptance import acceptance_pmf
from perfkit.roofline.cursor import Chain, committed_chain, phase_chain
from perfkit.roofline.footprint import HOLDINGS
from perfkit.roofline.occupancy import carried_efficiency
from perfkit.roofline.roof import shipped_roofs
from perfkit.roofline.state_traffic import state_traffic
from perfkit.roofline.traffic import Counts, layer_record_bytes, layer_state_bytes
from perfkit.shape import Shape

#: Half width, as a factor less 1, of the interval of an efficiency of which one number is known, and of the time that
#: follows from it: neither another shape nor another batch was seen. Stated, not measured.
ONE_NUMBER_WIDTH = 0.25
#: Least half width from several numbers, which are of few shapes on one machine. Stated.
LEAST_WIDTH = 0.05
#: The overhead is fitted where the smallest batch is at most this.
SMALL_BATCH = 16
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Bound:
    """What is known of a time: the time itself, and what its bytes allow.

    Attributes:
        timed: the figure.
        time_us: of a step.
        launch_us: launches x node.
        body_us: its bytes at the roof of their mix, mean of a step.
    """

    timed: Timed
    time_us: float
    launch_us: float
    body_us: float

    @property
    def efficiency(self) -> float:
        """Share of the roof at which it moves its bytes; above 1 if the roof is too low."""
        return self.body_us / (self.time_us - self.launch_us)


def step_counts(
    shape: Shape, method: str, batch: Any, draft_len: int = 1, h: Any = 0, flush: Any = 0.0, element_bytes: Any = 4
) -> Counts:
    """Return the bytes of a step of one layer with BF16 inputs, by method; arrays broadcast.

    Args:
        shape: the layer's.
        method: key.
        batch: B.
        draft_len: T.
        h: records that the step reads: of the buffer, or cached inputs that a recovery replays.
        flush: 1 where the step writes its checkpoint because the window is full.
        element_bytes: of the state's elements.
    """
    state, record = layer_state_bytes(shape, element_bytes), layer_record_bytes(shape)
    query, out = 2 * shape.n_k_heads * shape.d_k, 2 * shape.n_v_heads * shape.d_v
    holding = HOLDINGS[method]
    reads, writes = state_traffic(method).counts(draft_len, flush)
    keeps: Any = 0
    if holding.ring:
        keeps = np.where(np.asarray(flush) > 0, 0, 1) if draft_len == 1 else draft_len
    elif holding.tokens_per_draft:
        keeps = draft_len
    else:
        h = 0
    return Counts(
        batch * (reads * state + draft_len * (record + query) + h * record),
        batch * (writes * state + draft_len * out + keeps * record),
    )


def bound(timed: Timed, gpu: Gpu | None = None) -> Bound:
    """Return a figure beside what its bytes allow on its GPU, or its bytes alone beside another's roofs.

    Raises:
        InputError: an unknown model, GPU or method, an acceptance that does not fit T, or a time that cannot be.
    """
    here = gpu if gpu is not None else load_gpu(timed.gpu)
    roofs, shape = shipped_roofs(here), load_model(timed.model).shape
    chain = _chain(timed, timed.method)
    counts = step_counts(shape, timed.method, timed.batch, timed.draft_len, chain.h, chain.flush.astype(float))
    body = float(chain.mean(np.broadcast_to(roofs.time_us(*counts), chain.h.shape))[0])
    launch, time = state_traffic(timed.method).launches * roofs.graph_node_us, _time_us(timed)
    if time <= launch:
        raise InputError(f"is less than its launches take, {launch:g} us", field=f"{timed.impl} {timed.method} time_us",
                         value=time)  # fmt: skip
    return Bound(timed, time, launch, body)


def carried_over(known: Bound, gpu: Gpu) -> float:
    """Return the efficiency of a kernel on another GPU than the one that it was timed on.

    Bytes take what that GPU's roof says. The rest of the time shrinks by the ratio of SMs times clock: it is not
    memory that the kernel waits for there. Where a GPU's clock is not known, clocks count as equal.
    """
    here = load_gpu(known.timed.gpu)
    faster = known.body_us / bound(known.timed, gpu).body_us
    return carried_efficiency(min(known.efficiency, 1.0), here, gpu, faster)


def load_implementations(impl: str | None = None, gpu: str | Gpu | None = None) -> tuple[dict[str, Any], ...]:
    """Return the fits of others' kernels, in the form of :func:`perfkit.profiles.load_efficiency`, each with ``impl``.

    Args:
        impl: whose; everybody's if None. ``ours`` has none here: ours ship in ``measured/``.
        gpu: profile, key or alias of the GPU that they are wanted for. What was never timed there is carried over from
            another GPU, with at least :data:`ONE_NUMBER_WIDTH`; if None, each fit is of the GPU of its figures.

    Raises:
        InputError: no such implementation or GPU, or a file that is refused.
    """
    if impl is not None:
        check_implementation(impl)
    groups: dict[tuple[str, ...], list[Bound]] = {}
    for timed in read_implementations():
        if impl in (None, timed.impl):
            family = load_model(timed.model).family
            groups.setdefault((timed.impl, family, timed.method, timed.phase, timed.gpu), []).append(bound(timed))
    wanted = load_gpu(gpu) if isinstance(gpu, str) else gpu
    if wanted is None:
        return tuple(_fit(key, known) for key, known in groups.items())
    best: dict[tuple[str, ...], dict[str, Any]] = {}
    for key, known in groups.items():
        # On the GPU itself before carried over; of several others, that with most figures.
        fit = _fit(key, known) if key[-1] == wanted.key else _carried(key, known, wanted)
        rival = best.get(key[:-1])
        if rival is None or _rank(fit) > _rank(rival):
            best[key[:-1]] = fit
    return tuple(best.values())


def _rank(fit: dict[str, Any]) -> tuple[bool, int]:
    return "carried_from" not in fit, fit["n"]


def _chain(timed: Timed, method: str) -> Chain:
    pmf = acceptance_pmf(_accepted(timed), timed.draft_len)
    if HOLDINGS[method].ring:
        return phase_chain(timed.window, timed.draft_len, pmf)
    return committed_chain(pmf)


def _accepted(timed: Timed) -> str:
    """Return the acceptance; 1 where none is stated, as of methods whose bytes hardly depend on it."""
    return str(timed.draft_len - 1) if timed.acceptance == "T-1" else timed.acceptance or "1"


def _time_us(timed: Timed) -> float:
    if timed.time_us is not None:
        return timed.time_us
    assert timed.peak_share is not None
    shape, method = load_model(timed.model).shape, timed.over or timed.method
    moved = step_counts(shape, method, timed.batch, timed.draft_len).total
    return float(moved) / (timed.peak_share * load_gpu(timed.gpu).bandwidth_gb_s * 1e3) / (timed.speedup or 1.0)


def _fit(key: tuple[str, ...], known: Sequence[Bound]) -> dict[str, Any]:
    """Fit overhead and efficiency, or efficiency alone, by relative least squares: linear in overhead and 1 / eff."""
    target = np.array([one.time_us - one.launch_us for one in known])
    terms = np.array([[1.0, one.body_us] for one in known]) / target[:, None]
    batches = {one.timed.batch for one in known}
    names = ["overhead_us", "efficiency"] if min(batches) <= SMALL_BATCH and len(batches) > 2 else ["efficiency"]
    if "overhead_us" not in names:
        terms = terms[:, 1:]
    found, *_ = np.linalg.lstsq(terms, np.ones(len(known)), rcond=None)
    if len(names) > 1 and found[0] < 0:
        names, terms = ["efficiency"], terms[:, 1:]
        found, *_ = np.linalg.lstsq(terms, np.ones(len(known)), rcond=None)
    free = len(known) - len(names)
    rms = math.sqrt(float(np.sum((terms @ found - 1.0) ** 2)) / free) if free > 0 else 0.0
    # One number says nothing of another shape or batch, and what two or three say with one degree left is no less wide.
    spread, width, half = ONE_NUMBER_WIDTH / 2, ONE_NUMBER_WIDTH, ONE_NUMBER_WIDTH * found
    if free > 1:
        quantile = float(stdtrit(free, 0.5 + CONFIDENCE / 2))
        spread, width = max(rms, LEAST_WIDTH / 2), max(quantile * rms, LEAST_WIDTH)
        half = quantile * rms * np.sqrt(np.diag(np.linalg.inv(terms.T @ terms)))
    value, ends = 1 / found[-1], (1 / (found[-1] + half[-1]), 1 / max(found[-1] - half[-1], 1.0))
    parameters = {"efficiency": _interval(value, *ends, most=1.0)}
    if len(names) > 1:
        parameters["overhead_us"] = _interval(found[0], found[0] - half[0], found[0] + half[0])
    return _document(key, known, parameters, spread, width) | {"freedom": max(free, 1)}


def _carried(key: tuple[str, ...], known: Sequence[Bound], gpu: Gpu) -> dict[str, Any]:
    large = [one for one in known if one.timed.batch > SMALL_BATCH] or known
    each = [carried_over(one, gpu) for one in large]
    value = float(np.exp(np.mean(np.log(each))))
    factor = 1 + ONE_NUMBER_WIDTH
    parameters = {"efficiency": _interval(value, min(*each, value / factor), max(*each, value * factor), most=1.0)}
    document = _document((*key[:-1], gpu.key), known, parameters, ONE_NUMBER_WIDTH / 2, ONE_NUMBER_WIDTH)
    return document | {"freedom": 1, "carried_from": key[-1]}


def _interval(value: float, low: float, high: float, most: float = math.inf) -> dict[str, float]:
    value = min(float(value), most)
    return {"value": value, "lo": min(max(float(low), 0.0), value), "hi": max(min(float(high), most), value)}


def _document(
    key: tuple[str, ...], known: Sequence[Bound], parameters: dict[str, Any], spread: float, width: float
) -> dict[str, Any]:
    impl, family, method, phase, gpu = key
    timed = [one.timed for one in known]
    return {
        "impl": impl, "family": family, "method": method, "phase": phase, "gpu": gpu,
        "date": max(one.date for one in timed),
        "sources": list(dict.fromkeys(f"{one.source}: {one.where}" for one in timed)), "n": len(timed),
        "models": sorted({one.model for one in timed}), "batches": sorted({one.batch for one in timed}),
        "windows": sorted({one.window for one in timed if one.window}), "parameters": parameters,
        "spread": spread, "width": width, "left_out": [],
    }  # fmt: skip
