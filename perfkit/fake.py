"""A simulated GPU: a worker mode in which the true times are known, so that statistics are asserted against truth.

The clock of the simulation advances by each sample: a step takes bytes/roof plus its launches, times seeded lognormal
noise whose median is 1, slowed inside throttling windows. Groups run as on a GPU: cases checked one after the other,
then timed in interleaved rounds until the stopping rule ends each. Faults can be planted, so that a parent's handling
of crashes, hangs and the like is tested with real processes.

Settings, beside those of every worker, under ``"fake"``:

* ``roof_gb_s`` (4000), ``launch_us`` (2), ``noise`` (0.01, sigma of the logarithm of the time);
* ``throttle_period_s`` and ``throttle_s`` (0: never), ``throttle_slowdown`` (1.3): the GPU throttles during the last
  ``throttle_s`` simulated seconds of each period;
* ``steps`` (64): steps in a sample; ``sleep_s`` (0): real seconds that each case's check takes, for tests that kill;
* ``lock`` (0): 1 if a sweep holds this GPU as it does a real one;
* ``run_noise`` (0): sigma of the logarithm of a factor that each case draws once a run, by the seed: what two runs of
  the same code differ by and no sample of either shows;

``"slowdown": {case_id or method: factor}``, which changes the true times;

and ``"faults": {case_id or method: fault}``, a fault being ``crash`` (SIGKILL), ``exit`` (status 139), ``hang``,
``oom``, ``error`` (a result), ``raise`` (an exception), ``fault`` (an illegal access, after which the process must not
be used), ``incorrect``, ``throttle`` (every sample) or ``nan`` (a time that is none), with ``@check`` or ``@time``
appended where it is to happen in another phase than its usual one.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfkit.cases import CONTROL
from perfkit.errors import InputError
from perfkit.method import Case, Point, constant_acceptance
from perfkit.ranges import case_name, mark
from perfkit.shape import DTYPE_BYTES
from perfkit.stats import Stopping, aa_difference, median_interval, p99

Emit = Callable[[dict[str, Any]], None]

NAME, UUID = "Fake GPU", "GPU-fa4e0000-0000-0000-0000-000000000000"
_DEFAULTS = {"roof_gb_s": 4000.0, "launch_us": 2.0, "noise": 0.01, "throttle_period_s": 0.0, "throttle_s": 0.0,
             "throttle_slowdown": 1.3, "steps": 64, "sleep_s": 0.0, "run_noise": 0.0, "lock": 0}  # fmt: skip
_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "a text", dict: "a JSON object"}
#: Fault -> the phase in which it happens.
FAULTS = {"crash": "time", "exit": "time", "hang": "time", "error": "time", "raise": "time", "fault": "time",
          "throttle": "time", "nan": "time", "oom": "check", "incorrect": "check"}  # fmt: skip
#: A case whose samples are dropped again and again is given up after this many times the samples it may keep.
_PATIENCE = 2
#: Rounds between two progress events.
_PROGRESS = 20


def info() -> dict[str, Any]:
    """Return the device facts of the ready event."""
    return {"name": NAME, "uuid": UUID, "driver": "fake", "memory_total_mib": 143771,
            "sm_clock_max_mhz": 1980}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Truth:
    """The true median times of a case in microseconds, per step and layer: over a period, and of each kind of step.

    ``flush_rate`` is the share of steps in which all rows flush; 0 where rows flush at different times.
    """

    time_us: float
    nonflush_us: float | None
    flush_us: float | None
    launches: float
    flush_rate: float = 0.0


def options(settings: Mapping[str, Any]) -> dict[str, float]:
    """Return the simulation's settings, complete; an unknown one is refused with InputError."""
    given = settings.get("fake") or {}
    for name in given:
        if name not in _DEFAULTS:
            raise InputError("unknown setting", field=f"fake.{name}", allowed=sorted(_DEFAULTS))
    return {**_DEFAULTS, **given}


def parse_settings(text: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the JSON of ``PERFKIT_FAKE`` gives; an empty text gives none.

    Args:
        text: a JSON object.
        known: the settings of every worker, with their values.

    Raises:
        InputError: not a JSON object, an unknown setting or fault, or a value of the wrong type.
    """
    field = "PERFKIT_FAKE"
    try:
        given = json.loads(text or "{}")
    except ValueError as error:
        raise InputError(f"not JSON: {error}", field=field, value=text) from None
    if not isinstance(given, dict):
        raise InputError("must be a JSON object", field=field, value=text)
    kinds: dict[str, Any] = {**known, "fake": {}, "faults": {}, "slowdown": {}}
    for where, group, values in ((field, kinds, given), (f"{field}: fake", _DEFAULTS, given.get("fake"))):
        for name, value in values.items() if isinstance(values, dict) else ():
            if name not in group:
                raise InputError("unknown setting", field=where, value=name, allowed=sorted(group))
            kind = type(group[name])
            number = kind in (int, float) and isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number and type(value) is not kind:
                raise InputError(f"must be {_KINDS[kind]}", field=f"{where}: {name}", value=str(value))
    for fault in (given.get("faults") or {}).values():
        parse_fault(str(fault))
    for name, factor in (given.get("slowdown") or {}).items():
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < math.inf:
            raise InputError("must be a number above 0", field=f"{field}: slowdown: {name}", value=str(factor))
    return given


def parse_fault(text: str) -> tuple[str, str]:
    """Return a fault and the phase in which it happens.

    Raises:
        InputError: there is no such fault, or not in that phase.
    """
    fault, _, phase = text.partition("@")
    places = ("", "time") if fault in ("nan", "throttle") else ("", "check", "time")
    if fault not in FAULTS or phase not in places:
        raise InputError("unknown fault", field="faults", value=text, allowed=[*FAULTS, "FAULT@check", "FAULT@time"])
    return fault, phase or FAULTS[fault]


def true_time_us(case: Case, settings: Mapping[str, Any]) -> float:
    """Return the true median time per step and layer that a simulation with these settings samples around."""
    return truth(case, settings).time_us


def truth(case: Case, settings: Mapping[str, Any]) -> Truth:
    """Return the true times of a case.

    Bytes and launches are those that the method declares; for a method that is not there, the state is read at each
    step and written at each (without a window) or once per window.
    """
    from perfkit.roofline.acceptance import acceptance_pmf
    from perfkit.roofline.cursor import phase_chain

    option = options(settings)
    chain = phase_chain(case.window or case.depth, case.depth, acceptance_pmf(case.acceptance, case.depth))
    moved, launches = _declared(case, chain.h, chain.flush)
    slower = _planted(case, settings, "slowdown") or 1.0
    each = np.broadcast_to(slower * (moved / option["roof_gb_s"] / 1e3 + launches * option["launch_us"]), chain.h.shape)
    together = case.window is not None and case.flush_phase == "aligned" and constant_acceptance(case) is not None
    kinds = []
    for wanted in (False, True):
        weight = chain.probability * (chain.flush == wanted)
        kinds.append(float(weight @ each / weight.sum()) if together and weight.sum() > 0 else None)
    mean_launches = float(chain.mean(launches)[0])
    rate = float(chain.flush_rate[0]) if together else 0.0
    return Truth(float(chain.mean(each)[0]), kinds[0], kinds[1], mean_launches, rate)


def _planted(case: Case, settings: Mapping[str, Any], kind: str) -> Any:
    """Return what the settings plant in a case, by its id or its method; None for nothing."""
    planted = settings.get(kind) or {}
    return planted.get(case.id) or planted.get(case.method)


def _declared(case: Case, h: Any, flush: Any) -> tuple[Any, Any]:
    """Return bytes and launches of each kind of step."""
    from perfkit import registry

    try:
        method = registry.get_method(case.shape.family, case.method, case.phase)
    except InputError:
        state = case.batch * case.shape.state_elements * DTYPE_BYTES[case.state_dtype]
        writes = np.ones(len(h)) if case.window is None else np.asarray(flush, np.float64)
        return state * (1 + writes), np.ones(len(h))
    step = method.step(case.shape, Point.of(case), h, flush)
    return np.asarray(step.bytes_read + step.bytes_write, np.float64), np.asarray(step.launches, np.float64)


@dataclass(slots=True)
class _Running:
    """A case while its group runs; times in microseconds, ``rounds`` says in which round each kept sample was taken.

    ``median_us`` is the true time of this run: that of the case, off by what runs differ by.
    """

    case: Case
    truth: Truth
    median_us: float
    noise: np.random.Generator
    fault: str | None = None
    fault_phase: str | None = None
    times: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    dropped: list[float] = field(default_factory=list)
    spent_s: float = 0.0
    stop_reason: str | None = None

    def fault_in(self, phase: str) -> str | None:
        return self.fault if self.fault_phase == phase else None


def run_group(request: dict[str, Any], emit: Emit) -> None:
    """Simulate a group: one result event per case, then done.

    Args:
        request: a worker's group request.
        emit: takes each event.

    Raises:
        InputError: a setting or a fault that does not exist.
    """
    settings = request.get("settings") or {}
    seed = int(settings.get("seed") or 0)
    running = [_running(Case.from_dict(data), settings, seed) for data in request["cases"]]
    live = []
    for item in running:
        with mark(f"check/{case_name(item.case)}", case_id=item.case.id):
            if _checked(item, settings, emit):
                live.append(item)
    with mark("timing"):
        _time_rounds(live, settings, seed, emit)
    emit({"event": "done", "group_id": request.get("group_id")})


def _running(case: Case, settings: Mapping[str, Any], seed: int) -> _Running:
    planted = _planted(case, settings, "faults")
    fault, phase = parse_fault(str(planted)) if planted else (None, None)
    found, key = truth(case, settings), [seed, int(case.id, 16)]
    of_run = options(settings)["run_noise"] * np.random.default_rng([*key, 1]).standard_normal()
    return _Running(case, found, found.time_us * math.exp(of_run), np.random.default_rng(key), fault, phase)


def _phase(item: _Running, phase: str, done: int, total: int, emit: Emit) -> None:
    emit({"event": "phase", "case_id": item.case.id, "phase": phase, "done": done, "total": total})


def _result(item: _Running, status: str, reason: str | None, row: Mapping[str, Any], emit: Emit, **more: Any) -> None:
    times = [sample if math.isfinite(sample) else None for sample in item.times]
    samples = {"time_us": times, "round": item.rounds, "throttled_us": item.dropped, **more}
    emit({"event": "result", "case_id": item.case.id, "status": status, "reason": reason,
          "row": {"checked": "no", **row}, "samples": samples})  # fmt: skip


def _checked(item: _Running, settings: Mapping[str, Any], emit: Emit) -> bool:
    """Pretend to check a case; False once it has its result."""
    _phase(item, "check", 0, 1, emit)
    time.sleep(options(settings)["sleep_s"])
    if item.fault_in("check"):
        return not _fail(item, "check", emit)
    _phase(item, "check", 1, 1, emit)
    return True


def _fail(item: _Running, phase: str, emit: Emit) -> bool:
    """Do what was planted; True if the case ended with a result, False if it is to be timed all the same."""
    fault = item.fault_in(phase)
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "exit":
        os._exit(139)
    elif fault == "hang":
        while True:
            time.sleep(3600)
    elif fault == "oom":
        _result(item, "oom", "planted: out of memory", {}, emit)
    elif fault == "error":
        _result(item, "error", "RuntimeError: planted", {}, emit)
    elif fault == "raise":
        raise RuntimeError("planted")
    elif fault == "fault":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    elif fault == "incorrect":
        _result(item, "incorrect", "planted: relative error 1.0 above 0.01", {"rel_error": 1.0}, emit)
    else:  # throttle and nan show in the samples
        return False
    return True


def _time_rounds(live: list[_Running], settings: Mapping[str, Any], seed: int, emit: Emit) -> None:
    """Sample all cases once a round until each has stopped: a case that has converged goes on, for the pairing."""
    option, rule = options(settings), Stopping.of(settings)
    # One result a case: those that fail leave the group, the rest go on without them.
    live = [item for item in live if not (_announce(item, rule, emit) and _fail(item, "time", emit))]
    now_s, index = 0.0, 0
    while any(item.stop_reason is None for item in live):
        for item in live:
            throttled = _throttles(item, now_s, option)
            slowdown = option["throttle_slowdown"] if throttled else 1.0
            sample = item.median_us * slowdown * math.exp(option["noise"] * item.noise.standard_normal())
            seconds = sample * option["steps"] * item.case.n_layers / 1e6
            now_s, item.spent_s = now_s + seconds, item.spent_s + seconds
            _keep(item, math.nan if item.fault_in("time") == "nan" else sample, index, throttled)
            if item.stop_reason is None:
                item.stop_reason = _stop(item, rule, seed)
        index += 1
        if index % _PROGRESS == 0:
            for item in live:
                _phase(item, "time", len(item.times), rule.max_samples, emit)
    for item in live:
        _finish(item, rule, option, seed, emit)


def _announce(item: _Running, rule: Stopping, emit: Emit) -> bool:
    _phase(item, "time", 0, rule.max_samples, emit)
    return item.fault_in("time") is not None


def _throttles(item: _Running, now_s: float, option: Mapping[str, float]) -> bool:
    period = option["throttle_period_s"]
    inside = period > 0 and now_s % period >= period - option["throttle_s"]
    return inside or item.fault_in("time") == "throttle"


def _keep(item: _Running, sample: float, index: int, throttled: bool) -> None:
    if throttled:
        item.dropped.append(sample)
    else:
        item.times.append(sample)
        item.rounds.append(index)


def _stop(item: _Running, rule: Stopping, seed: int) -> str | None:
    """Return why sampling ends after this sample, None while it goes on."""
    if item.times and not math.isfinite(item.times[-1]):
        return "max_samples"
    if len(item.dropped) >= _PATIENCE * rule.max_samples:
        return "max_samples"
    return rule.decide(item.times, item.spent_s, seed=seed).reason


def _single_steps(item: _Running, steps: int, noise: float) -> list[float]:
    """Return the times of single steps: where rows flush together, that many of them are slow."""
    truth = item.truth
    flushes = np.floor(np.arange(1, steps + 1) * truth.flush_rate + 1e-9)
    slow = np.diff(flushes, prepend=0.0) > 0
    usual = truth.time_us if truth.nonflush_us is None else truth.nonflush_us
    times = np.where(slow, truth.flush_us or usual, usual)
    return [float(time) for time in times * np.exp(noise * item.noise.standard_normal(steps))]


def _aa_difference(item: _Running, noise: float, seed: int) -> float | None:
    """Return how far the control lies from a second series of itself, as a group on a GPU has one; None of others."""
    count = len(item.times)
    if item.case.method != CONTROL[item.case.phase] or count < 2:
        return None
    random = np.random.default_rng([seed, int(item.case.id, 16), 1])
    again = item.truth.time_us * np.exp(noise * random.standard_normal(count))
    return aa_difference(item.times, again, seed=seed).value


def _finish(item: _Running, rule: Stopping, option: Mapping[str, float], seed: int, emit: Emit) -> None:
    """Emit the result of a case that was timed."""
    count = len(item.times)
    row: dict[str, Any] = {"n_samples": count, "n_throttled": len(item.dropped), "stop_reason": item.stop_reason,
                           "launches": item.truth.launches, "l2_state": "cold"}  # fmt: skip
    _phase(item, "time", count, count, emit)
    if not all(math.isfinite(sample) for sample in item.times):
        _result(item, "error", "planted: a time is not a number", row | {"stop_reason": None}, emit)
    elif count == 0 or (item.dropped and count < rule.min_samples):
        reason = f"{len(item.dropped)} of {len(item.dropped) + count} samples dropped: power cap"
        _result(item, "throttled", reason, row | {"throttle_reasons": "power cap"}, emit)
    else:
        interval = median_interval(item.times, seed=seed)
        steps = int(option["steps"])
        single = _single_steps(item, steps, option["noise"])
        row |= {
            "time_us": interval.value,
            "time_us_lo": interval.lo,
            "time_us_hi": interval.hi,
            "time_p99_us": p99(single),
            "time_nonflush_us": item.truth.nonflush_us,
            "time_flush_us": item.truth.flush_us,
            "launch_config": "-",
            "steps_per_sample": steps,
            "sm_clock_mhz": 1980.0,
            "throttle_reasons": "power cap" if item.dropped else None,
            "aa_difference": _aa_difference(item, option["noise"], seed),
        }
        _result(item, "ok", None, row, emit, step_us=single)
