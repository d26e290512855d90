"""The search for one session: candidates agree with each other, do not spill, and run as the graphs that are timed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch

from perfkit.measure import Clock, Subject
from perfkit.method import Case, Config, Launch, constant_acceptance
from perfkit.results import kernels_digest
from perfkit.session import Session
from perfkit.tolerance import excess_error
from perfkit.tune import Store, Tuned, search

#: Two configurations of one method agree to this on outputs and states; the winner then meets the oracle.
AGREEMENT = 1e-4
#: Steps after which configurations are compared where acceptance is random; elsewhere a period.
RANDOM_STEPS = 16
#: Threads that compile candidates ahead.
COMPILERS = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where a search runs: the GPU's name, torch's and triton's versions, its clock, and where outcomes are kept."""

    gpu: str
    versions: Mapping[str, Any]
    clock: Clock
    store: Store

    def key(self, case: Case, candidates: Sequence[Config]) -> str:
        """Return the key under which the search of a case is kept here."""
        return Store.key(_plain(case), self.gpu, self.versions, candidates, kernels_digest())


def untuned(session: Session) -> Tuned:
    """Return the default configuration, not timed."""
    return Tuned(session.method.configs(session.case)[0], float("nan"), None, 0, {})


def known(session: Session, place: Place) -> Tuned | None:
    """Return the outcome for a session's case where it takes no search: one candidate, or a search that was kept."""
    candidates = session.method.configs(session.case)
    if len(candidates) == 1:
        return untuned(session)
    found = place.store.get(place.key(session.case, candidates))
    return found if found is not None and found.config in candidates else None


def tune_session(
    session: Session, steps: Sequence[int], place: Place, progress: Callable[[int, int], None] | None = None
) -> Tuned:
    """Return the fastest configuration of a session's method at its case, and keep it for the next session.

    Verify keeps one outcome for all acceptances and flush phases of a point, the one that it met first: they change
    how often a step does what, not which kernels run. The label in the store says which acceptance that was.

    Args:
        session: where its timing starts; it is left there, with some configuration.
        steps: of the graphs that are timed; whole periods.
        place: where it runs.
        progress: told (candidates built, candidates in all).

    Raises:
        NoneWorks: no configuration does; the message has the first reason.
        Exception: as :func:`perfkit.tune.search`.
    """
    case, candidates = session.case, session.method.configs(session.case)
    saved = session.snapshot()
    expected: dict[str, torch.Tensor] = {}  # of the first candidate that runs

    def make(config: Config) -> Subject:
        session.config = config
        for name, found in _answers(session, saved).items():
            error = excess_error(found, expected.setdefault(name, found), session.tensors[name].dtype, 2.0)
            if not error <= AGREEMENT:
                raise ValueError(f"{name} differs from another configuration's by {error:.1e}")
        spilled = max((kernel.n_spills for kernel in session.compiled()), default=0)
        session.restore(saved)
        if spilled:
            raise RuntimeError(f"spills {spilled} registers on this GPU")
        return session.subject(str(config), steps, saved)

    tuned = search(candidates, make, place.clock, progress)
    session.restore(saved)
    place.store.put(place.key(case, candidates), tuned, _label(case, place.gpu))
    return tuned


def _answers(session: Session, saved: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return outputs and committed states of a few rows after a period and a step."""
    session.restore(saved)
    tensors, period = session.tensors, session.method.period(session.case)
    steps = 1 + (period if constant_acceptance(session.case) is not None else min(period, RANDOM_STEPS))
    tensors["out"].fill_(float("nan"))
    for index in range(steps):
        session.step(index)
    state = session.method.committed(session.case, few_rows(session, 2), steps)
    out = tensors["out"][:2].double()
    session.restore(saved)
    return {"out": out, "state": state}


def few_rows(session: Session, count: int) -> dict[str, torch.Tensor]:
    """Return the first copy's tensors as if the batch had its first ``count`` rows only; caches keep all slots."""
    rows = {name: buffer.role in ("input", "output") for name, buffer in session.buffers.items()}
    return {
        name: (tensor[:, :count] if name in ("accepted", "path") else tensor[:count]) if rows[name] else tensor
        for name, tensor in session.tensors.items()
    }


def compile_ahead(session: Session, configs: Sequence[Config]) -> None:
    """Compile the kernels of configurations in parallel, so that launching them later does not wait for each in turn.

    What does not compile says so when it is launched. Does nothing without a GPU, or with a Triton that cannot.
    """
    if session.device.type != "cuda":
        return
    launches: list[Launch] = []
    for config in configs:
        with contextlib.suppress(Exception):  # as below
            # A step's row of the acceptance may lie at another alignment than the first's: another kernel.
            for step in (0, 1):
                launches += session.method.launches(session.case, config, session.tensors, step)
    compile_launches(launches)


def compile_launches(launches: Sequence[Launch]) -> None:
    """Compile launches of Triton kernels in threads; those of other callables are left out."""
    try:
        from triton.runtime._async_compile import AsyncCompileMode
        from triton.runtime.jit import JITFunction
    except ImportError:
        return
    workers = min(COMPILERS, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as executor, AsyncCompileMode(executor, ignore_errors=True):
        for launch in launches:
            if isinstance(launch.kernel, JITFunction):
                with contextlib.suppress(Exception):
                    launch.kernel.warmup(*launch.args, grid=launch.grid, **launch.constexprs, **launch.config)


def _plain(case: Case) -> Case:
    """Return the case without what does not change which kernels run."""
    options = tuple(pair for pair in case.options if pair[0] != "alias")
    if case.phase == "decode":
        return replace(case, options=options)
    return replace(case, options=options, acceptance="1", flush_phase="aligned")


def _label(case: Case, gpu: str) -> str:
    """Say what was searched, for people who read the store."""
    text = f"{case.shape} {case.method} {case.phase} B{case.batch} L{case.window}"
    if case.phase == "verify":
        tree = f" tree {case.tree}" if case.tree else ""
        text += f" T{case.draft_len}{tree}, tuned at acceptance {case.acceptance} {case.flush_phase}"
    return f"{text} {gpu}"


__all__ = ["Place", "compile_ahead", "compile_launches", "few_rows", "known", "tune_session", "untuned"]
