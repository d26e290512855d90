"""STree on Mamba-2: both of its paths against the oracle, what they move, and what a tree's nodes see of each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from perfkit.check import check_case
from perfkit.kernels.state_copy import copy_launch
from perfkit.method import Case, Point
from perfkit.registry import get_method
from perfkit.roofline.state_traffic import state_traffic
from perfkit.session import Session, state_extents
from perfkit.shape import Shape
from perfkit.touched import touched

SUPER = Shape("mamba2", 128, 8, 64, 128)
SMALL = Shape("mamba2", 2, 1, 16, 16)
KEYS = ("stree", "stree_released")
TREE = "0,0,1,1"


def case(key: str, n: int = 4, batch: int = 3, shape: Shape = SMALL, **fields: Any) -> Case:
    return replace(Case(shape, key, batch, None, n, "T", input_dtype="float16"), **fields)


@pytest.mark.parametrize(
    "checked",
    [
        case("stree"),
        case("stree", 5, tree=TREE),
        case("stree", 16, 2, Shape("mamba2", 2, 2, 24, 32), input_dtype="float32", state_dtype="float16"),
        case("stree", 8, 2, tree="0,0,1,1,2,2,3", input_dtype="float32", state_dtype="bfloat16"),
        case("stree_released"),
        case("stree_released", 5, 2, tree=TREE),
    ],
    ids=lambda item: f"{item.method}-{item.tree or item.draft_len}-{item.state_dtype}",
)
def test_against_the_oracle(checked: Case) -> None:
    outcome = check_case(checked, "cpu")
    assert outcome.ok, outcome.reason
    assert {"bytes", "acceptance", "hand-over", "perturbed"} <= set(outcome.covered)


@pytest.mark.parametrize("tree", [None, TREE])
def test_several_heads_a_program(tree: str | None) -> None:
    shared = case("stree", 5, 1, Shape("mamba2", 4, 1, 16, 16), tree=tree)
    config = next(item for item in get_method("mamba2", "stree", "verify").configs(shared) if item["heads"] == 2)
    outcome = check_case(shared, "cpu", config)
    assert outcome.ok, outcome.reason


@pytest.mark.parametrize(("key", "launches", "reads", "writes"), [("stree", 2, 2, 1), ("stree_released", 5, 5, 4)])
def test_launches_and_state_traffic_are_the_papers(key: str, launches: int, reads: int, writes: int) -> None:
    """Paper, App. A.1: 2R + 1W and 5R + 4W; a state of SMALL has 2·16·16·4 = 2048 bytes."""
    session = Session(case(key, batch=2), "cpu")
    session.tensors["accepted"][1].fill_(1)
    session.step(0)
    with touched(session.tensors) as record:
        assert session.step(1) == record.launches == launches
    states = ("state", "selected", "working")
    assert sum(record.read.get(name, 0) for name in states) == reads * 2 * 2048
    assert sum(record.written.get(name, 0) for name in states) == writes * 2 * 2048
    row = state_traffic(key)
    assert (row.launches, row.reads, row.writes) == (launches, reads, writes)
    paper = session.method.paper(SMALL, Point.of(session.case))
    assert (paper.bytes_read, paper.bytes_write, paper.launches) == (reads * 4096, writes * 4096, launches)


def test_bytes_of_a_large_batch() -> None:
    """Super, B = 256, T = 4, a = 3: per row a state is 4 MiB, a cached token 18,944 bytes, inputs 20,736 a position."""
    step = get_method("mamba2", "stree", "verify").step(
        SUPER, Point.of(Case(SUPER, "stree", 256, None, 4, acceptance="3")), 3, False
    )
    rows_read = 2 * 4_194_304 + 3 * 18_944 + 4 * 20_736 + 16  # slot ids of both launches, acceptance, T
    assert step.bytes_read == 256 * rows_read + 2_048  # a twice, dt_bias and d_skip: 4·512
    assert step.bytes_write == 256 * (4_194_304 + 4 * 18_944 + 4 * 16_384)
    assert (step.launches, step.serial) == (2, 4)


def outputs(session: Session) -> torch.Tensor:
    session.step(0)
    return session.tensors["out"].clone()


def test_a_node_sees_its_ancestors_alone() -> None:
    """Of the tree 0 → (1, 2), 1 → (3, 4): node 1 changes its own output and those of 3 and 4, not that of 2."""
    session = Session(case("stree", 5, 1, tree=TREE), "cpu")
    before = outputs(session)
    session.tensors["x"][:, 1] += 1
    session.tensors["k"][:, 1] *= -2
    session.tensors["dt"][:, 1] += 1
    same = [torch.equal(new, old) for new, old in zip(outputs(session)[0], before[0], strict=True)]
    assert same == [True, False, True, False, False]


def test_the_released_copies_are_identities() -> None:
    plain, released = (Session(case(key, batch=2), "cpu") for key in KEYS)
    for session in (plain, released):
        session.tensors["accepted"][1].fill_(3)  # step 0 finds nothing to replay, step 1 three tokens
    for step in range(2):
        assert plain.step(step) == 2 and released.step(step) == 5
    slots = plain.tensors["slots"].long()
    for name in ("out", "state", "x_cache", "k_cache", "dt_cache"):
        rows = slice(None) if name == "out" else slots
        assert torch.equal(plain.tensors[name][rows], released.tensors[name][rows]), name
    assert not plain.tensors["out"].isnan().any()
    assert torch.equal(released.tensors["working"][slots], released.tensors["state"][slots])


def test_copy_leaves_other_slots_alone() -> None:
    """80 · 16 elements a head are no whole number of tiles."""
    odd = case("stree", batch=3, shape=Shape("mamba2", 1, 1, 80, 16))
    source, target = torch.randn(5, *state_extents(odd.shape)), torch.full((5, *state_extents(odd.shape)), -1.0)
    slots = torch.tensor([4, -1, 1], dtype=torch.int32)
    copy_launch(odd, {"slots": slots}, source, target, 1024, 4)()
    assert torch.equal(target[[4, 1]], source[[4, 1]])
    assert bool((target[[0, 2, 3]] == -1).all())
