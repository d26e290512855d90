"""Joint attainment on Mamba-2, stepped by hand: which row a gather takes, and that 2T − 1 updates always do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from perfkit.checker import bits
from perfkit.kernels.mamba2.joint_attainment_verify import BACK, DRAFT
from perfkit.method import Case, Point
from perfkit.registry import get_method
from perfkit.session import Session
from perfkit.shape import Shape

KEY = "joint_attainment"
METHOD = get_method("mamba2", KEY, "verify")
SMALL = Shape("mamba2", 2, 1, 16, 16)
T = 3


class Run:
    """A session stepped by hand beside the oracle; ``state`` is what the rows have committed, [batch, …] float64."""

    def __init__(self, batch: int = 2) -> None:
        self.case = Case(SMALL, KEY, batch, draft_len=T, input_dtype="float32")
        self.session = Session(self.case, "cpu")
        self.tensors = self.session.tensors
        self.home = self.tensors["slots"].clone().long()
        self.state = METHOD.committed(self.case, self.tensors, 0)
        self.index = 0

    def step(self, pending: Sequence[int], accepted: Sequence[int], drafts: Sequence[int], past: bool = True) -> None:
        """Run a step whose rows have ``pending`` tokens of the last one; then each commits ``accepted`` of ``drafts``.

        Not ``past``: the last step's inputs are NaN.
        """
        tensors, family = self.tensors, self.session.family
        for name in ("packed", "dt"):
            tensors[f"past_{name}"].copy_(tensors[name] if past else torch.full_like(tensors[name], math.nan))
        for name in ("packed", "dt"):
            tensors[name].copy_(torch.randn_like(tensors[name]) * 0.5)
        tensors["out"].fill_(math.nan)
        tensors["accepted"].fill_(1)
        tensors["accepted"][self.index].copy_(torch.tensor(pending))
        tensors["drafts"].copy_(torch.tensor(drafts))
        assert self.session.step(self.index) == 2
        walked = [self.state]
        for t in range(T):
            state, out = family.reference(walked[-1], family.token(tensors, t))
            walked.append(state)
            on = tensors["drafts"] > t
            assert torch.allclose(tensors["out"][on, t].double(), out[on], rtol=1e-5, atol=1e-6)
            assert tensors["out"][~on, t].isnan().all()
        self.walked = walked
        self.state = torch.stack([walked[n][row] for row, n in enumerate(accepted)])
        self.index += 1
        # The inputs of this step are what the layer will hand over again.
        for name in ("packed", "dt"):
            tensors[f"past_{name}"].copy_(tensors[name])
        tensors["accepted"][self.index].copy_(torch.tensor(accepted))
        found = METHOD.committed(self.case, tensors, self.index)
        assert torch.allclose(found, self.state, rtol=1e-5, atol=1e-6)

    def rows(self, which: int) -> torch.Tensor:
        """Return the rows' backtracking or draft states, [batch, …]."""
        return self.tensors["state"][self.home, which]

    @property
    def pending(self) -> list[int]:
        """Tokens that the last step's joint launch processed again."""
        return [int(n) for n in self.tensors["pending"][self.home]]


def test_all_accepted_takes_the_draft_row_and_reads_no_past_token() -> None:
    """At a = T the draft row is the committed state, bit for bit: nothing is left to process, T updates do."""
    run = Run()
    run.step((0, 0), accepted=(T, T), drafts=(T, T))
    ends = bits(run.rows(DRAFT))
    run.step((T, T), accepted=(1, T - 1), drafts=(T, T), past=False)
    assert run.pending == [0, 0]
    assert torch.equal(bits(run.rows(BACK)), ends)
    assert run.tensors["out"].isfinite().all()


def test_else_both_rows_process_the_accepted_tokens_again() -> None:
    """At a = T − 1 the chain is the longest: T − 1 past tokens and T positions, 2T − 1 updates."""
    run = Run()
    run.step((0, 0), accepted=(T - 1, 1), drafts=(T, T))
    assert run.pending == [0, 0]
    committed = run.state
    run.step((T - 1, 1), accepted=(T, 1), drafts=(T, T))
    assert run.pending == [T - 1, 1]
    assert torch.allclose(run.rows(BACK).double(), committed, rtol=1e-5, atol=1e-6)
    assert torch.allclose(run.rows(DRAFT).double(), run.walked[T], rtol=1e-5, atol=1e-6)
    run.step((T, 1), accepted=(T, T), drafts=(T, T))
    assert run.pending == [0, 1]


def test_all_of_a_shorter_step_is_all() -> None:
    """Whether all tokens were accepted depends on how many the row's last step had, not on T."""
    run = Run()
    run.step((0, 0), accepted=(2, 2), drafts=(2, T))
    assert run.tensors["last_t"][run.home].tolist() == [2, T]
    run.step((2, 2), accepted=(1, 1), drafts=(1, T))
    assert run.pending == [0, 2]
    run.step((1, 1), accepted=(T, T), drafts=(T, T))
    assert run.pending == [0, 1]


def test_a_row_handed_over_starts_from_its_new_state() -> None:
    run = Run()
    run.step((0, 0), accepted=(T, 1), drafts=(T, T))
    fresh = torch.randn(run.state.shape) * 0.1
    only_first = torch.where(torch.arange(2) == 0, run.tensors["slots"], -1)
    METHOD.start(run.case, {**run.tensors, "slots": only_first}, fresh)
    run.state[0] = fresh[0].double()
    run.step((0, 1), accepted=(1, 1), drafts=(T, T))
    assert run.pending == [0, 1]


@pytest.mark.parametrize(("accepted", "past"), [(0, 0), (1, 1), (T - 1, T - 1), (T, 0)])
def test_bytes_by_hand(accepted: int, past: int) -> None:
    """One row, two heads of a group, 16 x 16, FP32 state, two-byte inputs. Past tokens are x, k and raw dt."""
    point = Point(batch=1, window=1, draft_len=T, input_bytes=2, state_bytes=4, read_bytes=4)
    step = METHOD.step(SMALL, point, accepted, False)
    state = 2 * 16 * 16 * 4
    assert step.bytes_read == 3 * state + T * (32 + 16 + 16 + 2) * 2 + past * (32 + 16 + 2) * 2 + 6 * 4 + 3 * 2 * 4
    assert step.bytes_write == 4 * state + T * 32 * 2 + 2 * 4
    assert (step.launches, step.serial) == (2, T + past)


def test_bytes_know_how_many_tokens_the_last_step_had() -> None:
    point = Point(batch=1, window=1, draft_len=T, input_bytes=2, state_bytes=4, read_bytes=4, last_draft_len=2)
    assert [int(METHOD.step(SMALL, point, a, False).serial) for a in (1, 2)] == [T + 1, T]


def test_papers_count() -> None:
    """3R + 4W and a chain of 2T − 1 in two launches. Source: paper, App. A.1."""
    paper = METHOD.paper(SMALL, Point(batch=5, window=1, draft_len=4, input_bytes=2, state_bytes=4, read_bytes=4))
    state = 5 * 2 * 16 * 16 * 4
    assert (paper.bytes_read, paper.bytes_write, paper.launches, paper.serial) == (3 * state, 4 * state, 2, 7)


def test_what_it_refuses() -> None:
    case = Case(SMALL, KEY, 1, draft_len=3)
    assert METHOD.supports(case) is None
    assert "one path" in str(METHOD.supports(replace(case, tree="0,0")))
    assert "17" in str(METHOD.supports(replace(case, draft_len=17)))
