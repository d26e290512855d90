"""Snapshots on Mamba-2, stepped by hand: which snapshot holds what, where a step starts, what a tree reads again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from perfkit.kernels.mamba2.reference import FAMILY
from perfkit.method import Case, Point
from perfkit.registry import get_method
from perfkit.session import Session
from perfkit.shape import Shape
from perfkit.touched import Touched, touched

KEY = "snapshot"
METHOD = get_method("mamba2", KEY, "verify")
SMALL = Shape("mamba2", 2, 1, 16, 16)
SUPER = Shape("mamba2", 128, 8, 64, 128)
STATE = 2 * 16 * 16 * 4  # bytes of one row's FP32 state of SMALL


def session(draft_len: int, tree: str | None = None, shape: Shape = SMALL, **changes: Any) -> Session:
    """Return two rows whose state is 0.1 everywhere, handed over just now."""
    case = Case(shape, KEY, 2, None, draft_len, tree=tree, **{"input_dtype": "float32", **changes})
    made = Session(case, "cpu")
    METHOD.start(case, made.tensors, torch.full((2, shape.n_v_heads, shape.d_v, shape.d_k), 0.1))
    return made


def states(made: Session, row: int = 0) -> torch.Tensor:
    """Return the snapshots of a row, float64."""
    return made.tensors["state"][int(made.tensors["slots"][row])].double()


def after(made: Session, start: torch.Tensor, nodes: tuple[int, ...], row: int = 0) -> torch.Tensor:
    """Return a row's state after some positions, by the oracle."""
    inputs = {name: t[row : row + 1] if name in FAMILY.per_token else t for name, t in made.tensors.items()}
    state = start[None]
    for node in nodes:
        state, _ = FAMILY.reference(state, FAMILY.token(inputs, node))
    return state[0]


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool(torch.linalg.vector_norm(found - expected) <= 1e-6 * torch.linalg.vector_norm(expected))


def run(made: Session, step: int) -> Touched:
    with touched(made.tensors) as record:
        assert made.step(step) == 1
    assert record.launches == 1 and not record.outside_lanes and not record.races
    return record


def test_each_snapshot_is_the_state_after_its_token() -> None:
    made = session(3)
    start = states(made)[0].clone()
    made.tensors["drafts"][1] = 2
    run(made, 0)
    for s in range(3):
        assert near(states(made)[s], after(made, start, tuple(range(s + 1))))
    assert near(states(made, 1)[1], after(made, start, (0, 1), row=1))
    assert states(made, 1)[2].isnan().all(), "a row writes no more snapshots than it has positions"


@pytest.mark.parametrize(("accepted", "snapshot"), [(0, 0), (1, 0), (2, 1), (3, 2)])
def test_a_step_starts_from_the_last_accepted_token(accepted: int, snapshot: int) -> None:
    """Of NaN in all other snapshots nothing shows: they are not read."""
    made = session(3)
    run(made, 0)
    made.tensors["accepted"].fill_(99)
    made.tensors["accepted"][1] = accepted
    assert torch.equal(METHOD.committed(made.case, made.tensors, 1)[0], states(made)[snapshot])
    start = states(made)[snapshot].clone()
    others = [s for s in range(3) if s != snapshot]
    made.tensors["state"][:, others] = float("nan")
    run(made, 1)
    assert near(states(made)[2], after(made, start, (0, 1, 2)))


def test_a_hand_over_starts_from_snapshot_0() -> None:
    made = session(2)
    run(made, 0)
    fresh = torch.full((2, 2, 16, 16), 0.5)
    METHOD.start(made.case, made.tensors, fresh)
    made.tensors["accepted"][1] = 0
    assert torch.equal(METHOD.committed(made.case, made.tensors, 1), fresh.double())
    run(made, 1)
    assert near(states(made)[0], after(made, fresh[0].double(), (0,)))


@pytest.mark.parametrize(
    ("tree", "nodes", "again"),
    [
        ("0,1,2", {3: (0, 1, 2, 3)}, 0),
        ("0,0,1,1", {2: (0, 2), 3: (0, 1, 3), 4: (0, 1, 4)}, 2),
        ("0,0,0", {3: (0, 3)}, 1),
    ],
)
def test_a_tree_reads_the_snapshot_of_a_parent_that_does_not_come_just_before(
    tree: str, nodes: dict[int, tuple[int, ...]], again: int
) -> None:
    """A chain given as a tree reads its state once; path (0,) starts from snapshot 0, which may be a parent's too."""
    made = session(len(tree.split(",")) + 1, tree)
    start = states(made)[0].clone()
    read = run(made, 0).read["state"]
    for node, path in nodes.items():
        assert near(states(made)[node], after(made, start, path))
    # From snapshot 0, so that rereading it counts once.
    assert read == 2 * STATE * (1 + again - (0 in made.case.nodes.branch_parents()))


def test_a_tree_starts_from_the_last_node_of_the_path() -> None:
    made = session(5, "0,0,1,1")
    run(made, 0)
    made.tensors["path"][1] = 0b01011  # nodes 0, 1, 3
    made.tensors["accepted"].fill_(99)  # not what a tree goes by
    assert torch.equal(METHOD.committed(made.case, made.tensors, 1)[0], states(made)[3])
    start = states(made)[3].clone()
    assert run(made, 1).read["state"] == 2 * STATE * 3  # parents 0 and 1 are others than snapshot 3
    assert near(states(made)[4], after(made, start, (0, 1, 4)))


def test_counts() -> None:
    """Super, B = 256, T = 4, BF16 inputs: literals by hand."""
    point = Point.of(Case(SUPER, KEY, 256, None, 4, "T"))
    step, paper = METHOD.step(SUPER, point, 4, False), METHOD.paper(SUPER, point)
    state = 4 * 128 * 64 * 128
    token = 2 * (128 * 64 + 2 * 8 * 128 + 128)
    assert step.bytes_read == 256 * (state + 4 * token + 12) + 3 * 4 * 128
    assert step.bytes_write == 256 * (4 * state + 4 * 2 * 128 * 64)
    assert (step.launches, step.serial) == (1, 4)
    assert (paper.bytes_read, paper.bytes_write) == (256 * state, 4 * 256 * state)
    assert (paper.launches, paper.serial) == (1, 4)
    tree = Point.of(Case(SUPER, KEY, 256, None, 5, "1", tree="0,0,1,1"))
    # Always one token: a step starts from snapshot 0, so of the parents 0 and 1 only 1 is read again.
    assert METHOD.step(SUPER, tree, 1, False).bytes_read == 256 * (2 * state + 5 * token + 12 + 20) + 3 * 4 * 128
    many = METHOD.step(SUPER, replace(point, draft_len=np.array([2, 8])), 1, False)
    assert np.asarray(many.bytes_write).tolist() == [256 * n * (state + 2 * 128 * 64) for n in (2, 8)]


def test_memory_grows_with_drafts() -> None:
    assert [METHOD.memory_per_request(Case(SUPER, KEY, 1, None, n)) >> 20 for n in (2, 4, 16)] == [8, 16, 64]


def test_what_is_refused() -> None:
    assert METHOD.supports(Case(SMALL, KEY, 1, None, 4, tree="0,0,1")) is None
    assert "power of two" in str(METHOD.supports(Case(Shape("mamba2", 2, 1, 16, 24), KEY, 1, None, 4)))
