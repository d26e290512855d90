"""The search for one session: candidates agree with each other, do not spill, and run as the graphs that are timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from perfkit.measure import Clock, Subject
from perfkit.method import Case, Config
from perfkit.results import kernels_digest
from perfkit.session import Session
from perfkit.tolerance import excess_error
from perfkit.tune import Store, Tuned, search

#: Two configurations of one method agree to this on outputs and states; the winner then meets the oracle.
AGREEMENT = 1e-4


@dataclass(frozen=True, slots=True)
class Place:
    """Where a search runs: the GPU's name, torch's and triton's versions, its clock, and where outcomes are kept."""

    gpu: str
    versions: Mapping[str, Any]
    clock: Clock
    store: Store


def untuned(session: Session) -> Tuned:
    """Return the default configuration, not timed."""
    return Tuned(session.method.configs(session.case)[0], float("nan"), None, 0, {})


def tune_session(
    session: Session, steps: Sequence[int], place: Place, progress: Callable[[int, int], None] | None = None
) -> Tuned:
    """Return the fastest configuration of a session's method at its case, from the store or by a search.

    Args:
        session: it is left in its state, with some configuration.
        steps: of the graphs that are timed; whole periods.
        place: where it runs.
        progress: told (candidates built, candidates in all).

    Raises:
        RuntimeError: no configuration works; the message has the first reason.
    """
    case, candidates = session.case, session.method.configs(session.case)
    if len(candidates) == 1:
        return untuned(session)
    key = Store.key(_plain(case), place.gpu, place.versions, candidates, kernels_digest())
    known = place.store.get(key)
    if known is not None and known.config in candidates:
        return known
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
    place.store.put(key, tuned, f"{case.shape} {case.method} {case.phase} B{case.batch} L{case.window} {place.gpu}")
    return tuned


def _answers(session: Session, saved: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return outputs and committed states of a few rows after a period and a step."""
    session.restore(saved)
    tensors, period = session.tensors, session.method.period(session.case)
    tensors["out"].fill_(float("nan"))
    for index in range(period + 1):
        session.step(index)
    few = {**tensors, "slots": tensors["slots"][:2]}
    state = session.method.committed(session.case, few, period + 1)
    out = tensors["out"][:2].double()
    session.restore(saved)
    return {"out": out, "state": state}


def _plain(case: Case) -> Case:
    """Return the case without the options that do not change its kernels."""
    return replace(case, options=tuple(pair for pair in case.options if pair[0] != "alias"))
