"""After timing: what was timed still does the work that was checked.

A graph that does nothing, or hands out outputs of before, is fast. So a timed graph has to compute, from inputs that it
has not seen, what the launches compute that the check found right.
"""

from __future__ import annotations

import math

import torch

from perfkit.measure import Subject
from perfkit.session import Session
from perfkit.tolerance import excess_error
from perfkit.tuning import AGREEMENT, few_rows

#: Seeds the inputs that take the place of those that were timed.
FRESH = 15485863


class Unlike(Exception):
    """What was timed does not do what was checked."""


def confirm(session: Session, saved: list[dict[str, torch.Tensor]], subject: Subject, steps: int) -> None:
    """Give a timed session new inputs and compare its graphs with launches one by one, from the same state.

    The latter run as in the check: inputs are written before each step, here with the same values, so that nothing that
    a method remembers of a call before is taken for this one's. Outputs hold NaN before they are written. Compared are
    outputs of the first and the last copy, and states of the first. Kernels give the same bits again; where one does
    not, the tolerance is that between configurations.

    Args:
        session: nothing ran on it since its last sample; its inputs are other ones afterwards.
        saved: its state at step 0.
        subject: what was timed.
        steps: that a sample takes.

    Raises:
        Unlike: they differ, or outputs are those of the inputs before.
    """
    copies = sorted({0, len(session.copies) - 1})
    before = [session.copies[copy]["out"].clone() for copy in copies]

    session.restore(saved)
    _poison(session)
    for step in range(steps):
        for copy in copies:
            session.family.fill_inputs(session.copies[copy], session.seed + FRESH + copy)
            session.step(step, copy)
    expected = _answers(session, copies, steps)

    session.restore(saved)
    _poison(session)
    subject.run()
    found = _answers(session, copies, steps)

    for name, value in found.items():
        error = 0.0 if torch.equal(value, expected[name]) else _error(session, name, value, expected[name])
        if not error <= AGREEMENT:
            off = f"differs by {error:.1e} from what was checked" if math.isfinite(error) else "is not a number"
            raise Unlike(f"{name} of what was timed {off}")
    for copy, old in zip(copies, before, strict=True):
        if not (session.copies[copy]["out"] != old).flatten(1).any(1).all():
            raise Unlike(f"output {copy} of what was timed stays the same for other inputs: a cached output")


def _poison(session: Session) -> None:
    for tensors in session.copies:
        tensors["out"].fill_(float("nan"))


def _answers(session: Session, copies: list[int], steps: int) -> dict[str, torch.Tensor]:
    answers = {f"output {copy}": session.copies[copy]["out"].clone() for copy in copies}
    answers["state"] = torch.as_tensor(session.method.committed(session.case, few_rows(session, 2), steps))
    return answers


def _error(session: Session, name: str, found: torch.Tensor, expected: torch.Tensor) -> float:
    dtype = session.tensors["state" if name == "state" else "out"].dtype
    return excess_error(found.double(), expected.double(), dtype, 2.0)
