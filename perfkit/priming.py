"""A session brought to where its timing starts: acceptance drawn, cursors where those of a running server would be.

A request that was just handed over has an empty replay buffer and nothing accepted, which no later step has. So a
verify session first runs a step with nothing accepted; the next one begins a cycle with h = a. Where rows are to be
out of step (``staggered``), each sits out the first few priming steps, a different number for neighbouring rows. All
of it happens on the device, outside what is timed.

The acceptance is drawn once per case on the host, from what all methods of a group share, so that every method
verifies the same sequence.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from perfkit.method import ACCEPTANCE_STEPS, Case, Method, constant_acceptance
from perfkit.roofline import acceptance_pmf
from perfkit.session import Session, state_extents

#: Priming steps over which rows that are to be out of step start, where acceptance is random and there is no period.
SPREAD = 16
#: Steps of random acceptance before the timed ones, so that h is spread as it is in the long run.
BURN_IN = 16

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What each row's step before committed, by step.

    Attributes:
        accepted: [ACCEPTANCE_STEPS, batch] int32, 1..depth.
        path: [ACCEPTANCE_STEPS, batch] int32, bitmask of the nodes that those are; None for a chain.
    """

    accepted: Ints
    path: Ints | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """Priming steps: rows start one after the other over ``spread`` steps, then all run ``burn_in`` more."""

    spread: int
    burn_in: int

    @property
    def steps(self) -> int:
        """Priming steps in all."""
        return self.spread + self.burn_in

    @property
    def first(self) -> int:
        """Index of the first: the step after the last is a multiple of ACCEPTANCE_STEPS, as timed step 0 is."""
        return -self.steps % ACCEPTANCE_STEPS


def draw(case: Case, seed: int) -> Drawn:
    """Draw the acceptance of a case.

    The draw depends on the seed, the acceptance as it is written, the depth, the batch and the tree: the same for all
    methods and windows of a group. A node of an accepted path is any at its depth, each as likely.

    Raises:
        InputError: the case's acceptance is none.
    """
    shape = (ACCEPTANCE_STEPS, case.batch)
    key = json.dumps([seed, case.acceptance, case.depth, case.batch, case.tree])
    random = np.random.default_rng(int(hashlib.sha256(key.encode()).hexdigest()[:16], 16))
    constant = constant_acceptance(case)
    if constant is not None:
        accepted = np.full(shape, constant, np.int32)
    else:
        pmf = acceptance_pmf(case.acceptance, case.depth).clip(min=0.0)
        accepted = random.choice(np.arange(1, case.depth + 1, dtype=np.int32), size=shape, p=pmf / pmf.sum())
    if case.tree is None:
        return Drawn(accepted)
    path, ancestors = np.zeros(shape, np.int32), np.asarray(case.nodes.ancestors, np.int32)
    for depth in range(1, case.depth + 1):
        here, nodes = accepted == depth, np.asarray(case.nodes.at_depth(depth))
        path[here] = ancestors[random.choice(nodes, size=int(here.sum()))]
    return Drawn(accepted, path)


def schedule(case: Case, method: Method) -> Schedule | None:
    """Return the priming steps of a case; None if timing starts at the hand-over, as decode in step does."""
    if case.phase == "verify" and constant_acceptance(case) is None:
        return Schedule(SPREAD if case.flush_phase == "staggered" else 1, BURN_IN)
    spread = method.period(case) if case.flush_phase == "staggered" else 1
    return Schedule(spread, 0) if case.phase == "verify" or spread > 1 else None


def prime(session: Session, seed: int) -> None:
    """Bring all copies of a session to where timing starts; the next step is step 0.

    Verify gets its acceptance (``accepted``, of a tree ``path``). Rows are handed over anew, so a call that failed
    half-way may be repeated, with another configuration say. All copies are layers of one model: they accept alike.
    """
    drawn = draw(session.case, seed) if "accepted" in session.tensors else None
    rows = _acceptance_rows(session, drawn)
    plan = schedule(session.case, session.method)
    if plan is None:
        return
    homes = [tensors["slots"].clone() for tensors in session.copies]
    _hand_over(session, seed)
    # Rows start in turn; which row does must not depend on its slot.
    turn = torch.arange(session.case.batch, device=session.device) % plan.spread
    try:
        for done in range(plan.steps):
            step = plan.first + done
            fresh, waits = turn == done, turn > done
            for tensors, home in zip(session.copies, homes, strict=True):
                tensors["slots"].copy_(home.masked_fill(waits, -1))
                for name, values in rows.items():
                    tensors[name][step % ACCEPTANCE_STEPS].copy_(values[step % ACCEPTANCE_STEPS].masked_fill(fresh, 0))
            session.run([step])
            _write(session, rows, step % ACCEPTANCE_STEPS)
    finally:
        _write(session, rows)
        for tensors, home in zip(session.copies, homes, strict=True):
            tensors["slots"].copy_(home)


def _acceptance_rows(session: Session, drawn: Drawn | None) -> dict[str, torch.Tensor]:
    """Return what was drawn on the session's device, by buffer, written into all copies."""
    rows: dict[str, torch.Tensor] = {}
    for name in ("accepted", "path"):
        values = getattr(drawn, name, None)
        if values is not None and name in session.tensors:
            rows[name] = torch.from_numpy(values).to(session.device)
    _write(session, rows)
    return rows


def _write(session: Session, rows: dict[str, torch.Tensor], which: int | None = None) -> None:
    """Write one row of what was drawn, or all of it."""
    for tensors in session.copies:
        for name, values in rows.items():
            at = slice(None) if which is None else which
            tensors[name][at].copy_(values[at])


def _hand_over(session: Session, seed: int) -> None:
    """Start every row from a random state; a stationary one has entries of about a tenth."""
    shape = (session.case.batch, *state_extents(session.case.shape))
    for index, tensors in enumerate(session.copies):
        generator = torch.Generator(device=session.device).manual_seed(seed + 1009 * index + 2)
        state = torch.randn(shape, generator=generator, device=session.device).mul_(0.1)
        session.method.start(session.case, tensors, state)
