"""One group on the GPU: every case primed, tuned and checked, then all of them timed in interleaved rounds.

A case that fails (unsupported, out of memory, wrong, crashed) gets its result at once and the group runs without it.
What is timed is a CUDA graph of whole periods over enough independent copies of the buffers that L2 stays as cold as
under serving; the state is restored before every sample. Afterwards the graph has to show that it still computes the
right thing: only then is its time believed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from perfkit import registry
from perfkit.beside import beside
from perfkit.cases import CONTROL
from perfkit.check import check_group, check_once
from perfkit.confirm import Unlike, confirm
from perfkit.cuda import Cuda, info, others_memory, out_of_memory
from perfkit.errors import first_line
from perfkit.measure import Series, Subject, interleave
from perfkit.method import Case, Config
from perfkit.pacing import cold_copies, graph_steps, part_steps, tuning_steps
from perfkit.priming import prime
from perfkit.ranges import case_name, listened, mark
from perfkit.results import version
from perfkit.session import Session
from perfkit.stats import Stopping, aa_difference, by_round, ratio_interval
from perfkit.tune import NoneWorks, Store, Tuned, ends_search, naming
from perfkit.tuning import Place, compile_ahead, known, tune_session, untuned

Emit = Callable[[dict[str, Any]], None]
Row = Mapping[str, Any]


@dataclass(slots=True)
class _Running:
    """A case on its way through the group."""

    case: Case
    session: Session
    tuned: Tuned
    row: dict[str, Any]
    saved: list[dict[str, torch.Tensor]] = field(default_factory=list)
    subject: Subject | None = None

    def drop(self) -> None:
        """Let go of everything that takes memory: it is the others'."""
        self.session.copies.clear()
        self.saved.clear()
        self.subject = None


class Group:
    """The cases of one request."""

    def __init__(self, settings: Mapping[str, Any], emit: Emit, device: Any = None, store: Store | None = None) -> None:
        self.settings, self.emit = settings, emit
        self.seed = int(settings.get("seed") or 0)
        self.device = device or Cuda()
        versions = {"torch": torch.__version__, "triton": version("triton")}
        self.place = Place(self.device.name, versions, self.device.clock, store or Store())

    def run(self, cases: Sequence[Case]) -> None:
        """Run the cases; every one of them gets exactly one result."""
        running = []
        for case in cases:
            with mark(f"case/{case_name(case)}", case_id=case.id):
                prepared = self._guarded(case, partial(self._prepare, case))
            if prepared is not None:
                running.append(prepared)
        ready = []
        for item in running:
            with mark(f"case/{case_name(item.case)}", case_id=item.case.id):
                if self._guarded(item.case, partial(self._ready, item)) is not None:
                    ready.append(item)
                else:
                    item.drop()
                    self.device.release()
        if ready:
            self._time(ready)

    def _guarded(self, case: Case, work: Callable[[], Any]) -> Any:
        """Do the work of one case; on failure emit its result and return None."""
        try:
            return work()
        except (_Incorrect, Unlike) as error:
            status, reason = "incorrect", str(error)
        except Exception as error:
            said = " ".join([first_line(error), *(f"({note})" for note in getattr(error, "__notes__", ()))])
            status, reason = "error", f"{type(error).__name__}: {said}"
            if out_of_memory(error):
                status, reason = "oom", said + others_memory()
        # The result first: it ends a process whose context is lost, where giving memory back would fail too.
        self._result(case, status, reason, {})
        self.device.release()
        return None

    def _prepare(self, case: Case) -> _Running | None:
        """Allocate, prime, tune and check a case; None after it was skipped."""
        method = registry.get_method(case.shape.family, case.method, case.phase)
        reason = method.supports(case)
        if reason is not None:
            self._result(case, "skipped", reason, {})
            return None
        self._phase(case.id, "tune", 0, 1)
        copies = cold_copies(case, method, self.device.l2_bytes)
        session = Session(case, self.device.torch_device, seed=self.seed, copies=copies)
        steps = graph_steps(case, method, copies)
        with mark(f"tune/{case_name(case)}"):
            few = tuning_steps(case, method, copies)
            try:
                tuned = self._tune(session, few, partial(self._phase, case.id, "tune"))
            except NoneWorks:
                self._check(case, method.configs(case)[0])  # NaNs agree with nothing: the oracle says it better
                raise
        session.config = tuned.config
        self.device.release()  # the search kept a second state
        row = {
            "checked": "gpu", "rel_error": self._check(case, tuned.config), "launch_config": str(tuned.config),
            "l2_state": "cold", "steps_per_sample": steps,
        }  # fmt: skip
        return _Running(case, session, tuned, row)

    def _check(self, case: Case, config: Config) -> float:
        """Return the error of a kernel that is right."""
        self._phase(case.id, "check", 0, 1)
        tell = partial(self._phase, case.id, "check")
        with mark(f"check/{case_name(case)}"):
            outcome = check_once(case, self.device.torch_device, config, seed=self.seed, progress=tell)
        if not outcome.ok:
            raise _Incorrect(f"{config}: {outcome.reason}")
        return outcome.rel_error

    def _tune(self, session: Session, steps: int, progress: Callable[[int, int], None]) -> Tuned:
        """Prime the session and return its configuration: the default one, one found before, or a search's."""
        tuned = known(session, self.place) if self.settings.get("tune", True) else untuned(session)
        configs = list(session.method.configs(session.case)) if tuned is None else [tuned.config]
        compile_ahead(session, configs)
        self._prime(session, configs)
        return tuned or tune_session(session, range(steps), self.place, progress)

    def _prime(self, session: Session, configs: Sequence[Config]) -> None:
        """Prime with the first configuration that runs: the search says what is wrong with the others."""
        for config in configs:
            session.config = config
            try:
                with naming(config):
                    prime(session, self.seed)
                    if session.device.type == "cuda":
                        torch.cuda.synchronize(session.device)  # what goes wrong there is this configuration's
                return
            except Exception as error:
                if ends_search(error) or config == configs[-1]:
                    raise

    # Timing

    def _ready(self, item: _Running) -> bool:
        """Capture the graph of a case, after the tuning of all of them, so that memory is what timing will have."""
        session = item.session
        self._phase(item.case.id, "capture", 0, 1)
        item.saved = session.snapshot()  # before any launch: every copy starts a period
        kernels = session.compiled()
        item.row |= {
            "registers": max((k.n_regs for k in kernels), default=None),
            "spill_bytes": max((4 * k.n_spills for k in kernels), default=None),  # Triton counts words
            "shared_bytes": max((k.metadata.shared for k in kernels), default=None),
        }
        # A kernel may be compiled anew for the alignment of the second step's acceptance; none is inside a capture.
        item.row["launches"] = session.run(range(2)) / 2 / len(session.copies)
        session.restore(item.saved)
        if listened():
            session.marked_step()
            session.restore(item.saved)
        with mark(f"capture/{case_name(item.case)}"):
            part = part_steps(item.case, session.method, len(session.copies))
            item.subject = session.subject(item.case.id, range(item.row["steps_per_sample"]), item.saved, part)
        return True

    def _time(self, items: Sequence[_Running]) -> None:
        control = next((item for item in items if _is_control(item.case)), items[0])
        subjects = [item.subject for item in items if item.subject is not None]
        assert control.subject is not None
        again = replace(control.subject, name="A/A", label=f"{control.subject.range}-again")
        ids = {"A/A": control.case.id}
        with self.device.monitor() as monitor:
            series = interleave(
                [*subjects, again], Stopping.of(self.settings), self.place.clock, monitor, seed=self.seed,
                progress=lambda name, done, total: self._phase(ids.get(name, name), "time", done, total),
            )  # fmt: skip
        del subjects, again
        base: Case | None = control.case
        for item in sorted(items, key=lambda item: item is not control):
            if self._guarded(item.case, partial(self._confirm, item)) is not None:
                self._guarded(item.case, partial(self._finish, item, series, base))
            elif item is control:  # the first of them: what is not what was checked is nobody's baseline
                base = None
            item.drop()

    def _confirm(self, item: _Running) -> bool:
        assert item.subject is not None
        self._phase(item.case.id, "confirm", 0, 1)
        with mark(f"confirm/{case_name(item.case)}"):
            confirm(item.session, item.saved, item.subject, item.row["steps_per_sample"])
        return True

    def _finish(self, item: _Running, series: Mapping[str, Series], control: Case | None) -> None:
        mine = series[item.case.id]
        row = item.row | {
            "n_samples": len(mine.times), "n_throttled": len(mine.throttled) if mine.known else None,
            "stop_reason": mine.stop_reason,
            "sm_clock_mhz": mine.clock_mhz, "throttle_reasons": ", ".join(sorted(mine.reasons)) or None,
        }  # fmt: skip
        samples = {"time_us": mine.times, "round": mine.rounds, "throttled_us": mine.throttled}
        if len(mine.times) < 2:
            self._result(item.case, "throttled", f"{len(mine.throttled)} samples, all throttled", row, samples)
            return
        interval = mine.interval(self.seed)
        row |= {"time_us": interval.value, "time_us_lo": interval.lo, "time_us_hi": interval.hi}
        if item.tuned.default_us is not None:
            # The default was timed while tuning; its ratio to the winner's time there carries over to this round.
            row["time_default_us"] = interval.value * item.tuned.default_us / item.tuned.time_us
        row |= _speedup(item.case, series, control)
        try:
            columns, more = self._beside(item, interval.value)
            row, samples = {**row, **columns}, {**samples, **more}
        except Exception as error:  # the case has its time; what is reported beside it stays empty
            logging.getLogger(__name__).warning("%s: no times beside the main one: %s", item.case.id, first_line(error))
        self._result(item.case, "ok", None, row, samples)

    def _beside(self, item: _Running, mean_us: float) -> tuple[Row, Row]:
        self._phase(item.case.id, "beside", 0, 1)
        with mark(f"beside/{case_name(item.case)}"), self.device.monitor() as monitor:
            return beside(item.session, item.saved, self.place.clock, monitor, mean_us, self.device.l2_bytes, self.seed)

    # Events

    def _phase(self, case_id: str, phase: str, done: int, total: int) -> None:
        self.emit({"event": "phase", "case_id": case_id, "phase": phase, "done": done, "total": total})

    def _result(self, case: Case, status: str, reason: str | None, row: Row, samples: Row | None = None) -> None:
        self.emit({"event": "result", "case_id": case.id, "status": status, "reason": reason, "row": dict(row),
                   "samples": dict(samples or {})})  # fmt: skip


class _Incorrect(Exception):
    """A kernel disagrees with its oracle, or two configurations of it with each other."""


def run_group(request: Mapping[str, Any], emit: Emit) -> None:
    """Serve a worker's group request on the GPU."""
    if (request.get("settings") or {}).get("check_only"):
        check_group(request, emit, "cuda")  # small cases, each in the configuration that it names
        return
    group = Group(request.get("settings") or {}, emit)
    with torch.no_grad():
        group.run([Case.from_dict(data) for data in request["cases"]])
    group.device.release()


def _is_control(case: Case) -> bool:
    return case.method == CONTROL[case.phase]


def _speedup(case: Case, series: Mapping[str, Series], control: Case | None) -> dict[str, Any]:
    """Return the speedup over the control, paired by round; none if the control itself failed."""
    if control is None:
        return {}
    mine, base = series[case.id], series[control.id]
    found: dict[str, Any] = {}
    if case is control:
        if _is_control(case):
            found = {"speedup": 1.0, "speedup_lo": 1.0, "speedup_hi": 1.0}
        if len(series["A/A"].times) >= 2:
            found["aa_difference"] = aa_difference(*_paired(base, series["A/A"])).value
    elif _is_control(control) and len(base.times) >= 2:
        ratio = ratio_interval(*_paired(base, mine))
        found = {"speedup": ratio.value, "speedup_lo": ratio.lo, "speedup_hi": ratio.hi}
    return found


def _paired(first: Series, second: Series) -> tuple[Any, Any]:
    rounds = max([*first.rounds, *second.rounds], default=0) + 1
    return by_round(first.rounds, first.times, rounds), by_round(second.rounds, second.times, rounds)


__all__ = ["Group", "info", "run_group"]
