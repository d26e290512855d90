"""From timed rows to finished ones: bytes, roofs, predictions, speedups. Pure functions of rows and a GPU's roofs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit import registry
from perfkit.cases import CONTROL
from perfkit.method import Case, Method, Point, Step, constant_acceptance
from perfkit.profiles import Gpu
from perfkit.roofline import (
    Chain,
    Prediction,
    Roofs,
    acceptance_pmf,
    committed_chain,
    decode_chain,
    efficiency_for,
    expected,
    phase_chain,
    predict,
)
from perfkit.roofline.fitting import Observation
from perfkit.roofline.latency import bound_us

Row = dict[str, Any]
#: Candidates when the byte model looks for the best window.
WINDOWS = tuple(range(1, 129))
#: lo x hi / us^2 of an interval is 1 for a fit and 1.5 or more for a bound (perfkit.roofline.latency).
BOUND_SKEW = 1.2
#: Rows that hold a time of a real run.
TIMED = ("measured", "recorded")


@dataclass(frozen=True, slots=True)
class Model:
    """What the analytic model says about one case.

    Attributes:
        step: exact expectation of one step over the cursor's stationary distribution.
        paper: the paper's count of the same step.
        accepted: mean tokens a step commits.
        useful: bytes that a good method would have to move: never more than the control's.
        roof_us: least time for the useful bytes, flush and non-flush steps each at the roof of their mix; None without
            roofs, as the next.
        time: predicted time of a step, flushes included, its interval, and the term that rules the mean step.
        memory: bytes that one more request needs in the layer: state, records, cursors.
    """

    step: Step
    paper: Step
    accepted: float
    useful: float
    roof_us: float | None = None
    time: Prediction | None = None
    memory: int | None = None


def case_chain(case: Case, method: Method, windows: Any = None) -> Chain:
    """Return the cursor's chain of a case, at ``windows`` in place of its own where they are given.

    Without a window decode steps are all alike, and verify steps differ by what the step before committed. A tree
    flushes where h and its longest path do not fit.
    """
    pmf = acceptance_pmf(case.acceptance, case.depth)
    windows = case.window if windows is None else windows
    if not method.windowed or windows is None:
        return decode_chain(1) if case.phase == "decode" else committed_chain(pmf)
    return phase_chain(windows, case.depth, pmf)


def in_step(case: Case) -> bool:
    """Say whether all rows flush in the same step: they start together and commit the same number every time."""
    return case.flush_phase == "aligned" and constant_acceptance(case) is not None


def _steps(case: Case, method: Method) -> tuple[Step, Chain]:
    """Return the distinct kinds of step of a batch and their chain; a mixed batch has one, the mean."""
    chain = case_chain(case, method)
    point = Point.of(case)
    if method.windowed:
        point = replace(point, window=chain.window)
    return method.step(case.shape, point, chain.h, chain.flush), chain


def _mean_time(step: Step, mean: Step, chain: Chain, case: Case, time_us: Any) -> float:
    """Average ``time_us(reads, writes)`` over the chain where rows move together, else take it at the mean."""
    if in_step(case):
        return float(chain.mean(time_us(step.bytes_read, step.bytes_write))[0])
    return float(time_us(mean.bytes_read, mean.bytes_write))


def _modelled(case: Case, method: Method) -> tuple[Step, Step, Chain]:
    """Return the distinct kinds of step, their mean, and the chain that they are weighted by."""
    step, chain = _steps(case, method)
    return step, expected(lambda h, flush: step, chain), chain


def _useful(case: Case, step: Step, mean: Step, chain: Chain, roofs: Roofs | None) -> tuple[float, float | None]:
    """Return the bytes that a method declares, and the least time for them."""
    moved = float(mean.bytes_read + mean.bytes_write)
    return moved, _mean_time(step, mean, chain, case, roofs.time_us) if roofs is not None else None


def model_case(case: Case, gpu: Gpu | None, roofs: Roofs | None) -> Model:
    """Return what the analytic model says about a case; without a GPU and roofs, its bytes alone."""
    method = registry.get_method(case.shape.family, case.method, case.phase)
    step, mean, chain = _modelled(case, method)
    useful = _useful(case, step, mean, chain, roofs)
    control = _control_method(case)
    if control is not None and control is not method:
        other = replace(case, method=control.key, window=None, options=(), read_dtype=None)
        if control.supports(other) is None:
            bytes_of, us_of = _useful(other, *_modelled(other, control), roofs)
            # Fewer bytes of a mix with a lower roof may take longer: the least of each.
            us = [one for one in (useful[1], us_of) if one is not None]
            useful = min(useful[0], bytes_of), min(us, default=None)
    time = _predict(case, gpu, roofs, step, mean, chain) if gpu is not None and roofs is not None else None
    memory = method.memory_per_request(case)
    return Model(mean, method.paper(case.shape, Point.of(case)), chain.accepted, *useful, time, memory)


def _predict(case: Case, gpu: Gpu, roofs: Roofs, step: Step, mean: Step, chain: Chain) -> Prediction:
    at_mean = _time(case, gpu, roofs, mean, case.window, float(flush_share(step, chain)[0]))
    if not in_step(case):
        return at_mean
    each = _time(case, gpu, roofs, step, chain.window, chain.flush)
    us, lo, hi = (float(chain.mean(value)[0]) for value in (each.us, each.lo, each.hi))
    return Prediction(us, lo, hi, at_mean.limit)


def flush_share(step: Step, chain: Chain) -> NDArray[np.float64]:
    """Return the share of the mean step's bytes that rows move which flush: [windows]."""
    moved = np.asarray(step.bytes_read, dtype=np.float64) + step.bytes_write
    return np.asarray(chain.mean(moved * chain.flush) / chain.mean(moved))


def _time(case: Case, gpu: Gpu, roofs: Roofs, step: Step, windows: Any, flush: Any) -> Prediction:
    """Predict a step of a case with what is known of its method's kernels."""
    # A profile of one's own has no key that anybody else knows.
    known = efficiency_for(case.shape.family, case.method, case.phase, gpu if isinstance(gpu, Gpu) else roofs.gpu)
    window = None if case.window is None else windows
    return predict(gpu, roofs, step, efficiency=known, d_v=case.shape.d_v, window=window, flush=flush)


def _control_method(case: Case) -> Method | None:
    known = registry.methods(case.shape.family, case.phase)
    return next((method for method in known if method.key == CONTROL[case.phase]), None)


def window_cost(case: Case, gpu: Gpu, roofs: Roofs) -> Any:
    """Return a function of windows: the predicted time of a case per committed token, in µs, at each window."""
    method = registry.get_method(case.shape.family, case.method, case.phase)

    def cost(windows: NDArray[np.int64]) -> NDArray[np.float64]:
        chain = case_chain(case, method, windows)
        point = replace(Point.of(case), window=chain.window)
        step = method.step(case.shape, point, chain.h, chain.flush)
        if in_step(case):
            each = _time(case, gpu, roofs, step, chain.window, chain.flush)
            return np.asarray(chain.mean(each.us) / chain.accepted)
        mean = expected(lambda h, flush: step, chain)
        time = _time(case, gpu, roofs, mean, chain.windows, flush_share(step, chain))
        return np.atleast_1d(np.asarray(time.us) / chain.accepted)

    return cost


def observation(row: Mapping[str, Any], case: Case, gpu: Gpu, roofs: Roofs) -> Observation:
    """Return a measured row as what a fit of its method's efficiency takes."""
    step, chain = _steps(case, registry.get_method(case.shape.family, case.method, case.phase))
    weight: Any = chain.probability
    flush: Any = chain.flush
    if not in_step(case):
        share = float(flush_share(step, chain)[0])
        step, weight, flush = expected(lambda h, flush: step, chain), 1.0, share
    launch, body, alu = bound_us(gpu, roofs, step)
    return Observation(row["time_us"], launch, body, case.shape.d_v, case.window, row["model"], case.batch, alu,
                       case.draft_len, weight, flush, row.get("time_flush_us"), case.id)  # fmt: skip


def model_columns(case: Case, model: Model, roofs: Roofs | None) -> Row:
    """Return the columns that the analytic model fills."""
    step, paper, time = model.step, model.paper, model.time
    moved = float(step.bytes_read + step.bytes_write)
    return {
        "accepted": model.accepted, "launches": float(step.launches), "serial": float(step.serial),
        "bytes_read_model": float(step.bytes_read), "bytes_write_model": float(step.bytes_write),
        "bytes_read_paper": float(paper.bytes_read), "bytes_write_paper": float(paper.bytes_write),
        "flops_model": float(step.flops), "intensity": float(step.flops) / moved if moved else None,
        "memory_per_request": model.memory, "useful_bytes": model.useful,
        "roof_gb_s": model.useful / model.roof_us / 1e3 if model.roof_us else None,
        "roof_source": roofs.source if roofs is not None else None,
        "limit": str(time.limit) if time else None, "predicted_us": time.us if time else None,
        "predicted_lo": time.lo if time else None, "predicted_hi": time.hi if time else None,
    }  # fmt: skip


def time_columns(row: Mapping[str, Any], model: Model) -> Row:
    """Return the columns that follow from a row's time and the model of its case."""
    time = row.get("time_us")
    if not time or row.get("status") not in ("ok", "throttled"):
        return {}
    columns: Row = {
        "tokens_per_s": row["batch"] * model.accepted / time * 1e6,
        "bandwidth_gb_s": float(model.step.bytes_read + model.step.bytes_write) / time / 1e3,
    }
    if row.get("source") in TIMED:
        columns["roof_fraction"] = model.roof_us / time if model.roof_us else None
        columns["prediction_error"] = model.time.us / time - 1 if model.time else None
    return columns


def derive(rows: Sequence[Row], cases: Mapping[str, Case], gpu: Gpu | None, roofs: Roofs | None) -> list[Row]:
    """Return the rows with every column that follows from others filled in.

    Args:
        rows: complete rows of :func:`perfkit.results.make_row` with what a worker measured.
        cases: the case of each ``case_id``; rows of other cases keep what they have and only get speedups.
        gpu: where the times are from, or predicted for; None for a GPU without a profile.
        roofs: of that GPU.

    A row without a case, or whose method's byte model fails, keeps nulls there: a time is never lost to a model.
    """
    models: dict[str, Model | Exception] = {}
    finished: list[Row] = []
    for row in rows:
        out = dict(row)
        case = cases.get(str(row.get("case_id")))
        if case is not None:
            if case.id not in models:
                models[case.id] = _try_model(case, gpu, roofs)
            model = models[case.id]
            if isinstance(model, Exception):
                out["reason"] = out.get("reason") or f"byte model: {type(model).__name__}: {model}"
            else:
                # What was recorded stays as it was; what ran knows its launches better than the model.
                keep = set(out) if row.get("source") == "recorded" else {"launches"}
                for columns in (model_columns(case, model, roofs), time_columns(out, model)):
                    out |= {k: v for k, v in columns.items() if k not in keep or out.get(k) is None}
        finished.append(out)
    return compare_rows(finished)


def _try_model(case: Case, gpu: Gpu | None, roofs: Roofs | None) -> Model | Exception:
    try:
        return model_case(case, gpu, roofs)
    except Exception as error:  # a plug-in's model: what it raises is shown, the row stays
        return error


def alias(row: Mapping[str, Any]) -> str | None:
    """Return the name under which ``--self-check`` timed a control, A or B."""
    options = row.get("options")
    found = json.loads(options).get("alias") if isinstance(options, str) and options else None
    return str(found) if found is not None else None


def is_control(row: Mapping[str, Any]) -> bool:
    """Say whether a row is what its group is compared with; under ``--self-check`` that is A, not B."""
    return row.get("method") == CONTROL.get(str(row.get("phase"))) and alias(row) in (None, "A")


def compare_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with ``baseline``, ``speedup`` and ``conventional_steps`` filled in.

    A row is compared with its group's control of the same source; speedups that a worker paired by round are kept.
    """
    baselines: dict[tuple[Any, Any], Row] = {}
    decodes: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if is_control(row):
            baselines.setdefault((row.get("source"), row.get("group_id")), row)
            if row.get("phase") == "decode":
                decodes.setdefault(_decode_key(row), row)
    out: list[Row] = []
    for row in rows:
        new = dict(row)
        base = baselines.get((row.get("source"), row.get("group_id")))
        if base is not None:
            new["baseline"] = base.get("case_id")
        if new.get("speedup") is None:
            new["speedup"] = ratio(base, row)
        if new.get("conventional_steps") is None:
            new["conventional_steps"] = ratio(row, decodes.get(_decode_key(row)))
        out.append(new)
    return out


def is_bound(row: Mapping[str, Any]) -> bool:
    """Say whether a row's time is what its bytes allow at best: a prediction for kernels that were never measured."""
    return row.get("source") == "predicted" and predicts_bound(row)


def predicts_bound(row: Mapping[str, Any]) -> bool:
    """Say whether the model's time of a row, of whatever source, is a bound."""
    us, lo, hi = (row.get(f"predicted_{end}") for end in ("us", "lo", "hi"))
    return us is not None and lo is not None and bound_interval(us, lo, hi)


def bound_interval(us: float, lo: float, hi: float | None) -> bool:
    """Say whether an interval is a bound's: it reaches far above and, but for doubt about the roof, not below.

    The interval of a fit reaches as far in both directions, as a factor.
    """
    return bool(lo == us or (hi is not None and lo * hi > BOUND_SKEW * us * us))


def ratio(over: Mapping[str, Any] | None, under: Mapping[str, Any] | None) -> float | None:
    """Return the quotient of two rows' times, None where either has none, or only one is a bound."""
    if over is not None and under is not None and is_bound(over) != is_bound(under):
        return None
    times: list[float] = []
    for row in (over, under):
        time = row.get("time_us") if row is not None and row.get("status") == "ok" else None
        if not isinstance(time, (int, float)) or not 0 < time < math.inf:
            return None
        times.append(float(time))
    return times[0] / times[1]


def _decode_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("source", "gpu_uuid", "batch", "n_layers", "input_dtype", "state_dtype"))
