"""Fused recovery on Mamba-2, stepped by hand: when it replays, which half of the cache it reads, what it stores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from perfkit.kernels.mamba2.reference import FAMILY
from perfkit.method import Case, Point
from perfkit.registry import get_method
from perfkit.session import Session
from perfkit.shape import Shape
from perfkit.touched import Touched, touched

KEY = "fused_recovery"
METHOD = get_method("mamba2", KEY, "verify")
SMALL = Shape("mamba2", 2, 1, 16, 16)
SUPER = Shape("mamba2", 128, 8, 64, 128)
CACHE = ("x_cache", "k_cache", "dt_cache")
TOKEN = 4 * (2 * 16 + 16 + 2)  # bytes of one cached token of SMALL, FP32 inputs


def session(draft_len: int = 3) -> Session:
    """Return one row whose state is 0.1 everywhere, handed over just now."""
    made = Session(Case(SMALL, KEY, 1, None, draft_len, input_dtype="float32"), "cpu")
    METHOD.start(made.case, made.tensors, torch.full((1, 2, 16, 16), 0.1))
    return made


def run(made: Session, step: int, accepted: int, drafts: int | None = None) -> Touched:
    """Run a step with inputs of its own, after one that committed ``accepted`` tokens."""
    FAMILY.fill_inputs(made.tensors, 100 + step)
    made.tensors["accepted"].fill_(99)
    made.tensors["accepted"][step] = accepted
    made.tensors["drafts"][:] = drafts or made.case.draft_len
    with touched(made.tensors) as record:
        assert made.step(step) == 1
    assert record.launches == 1 and not record.outside_lanes and not record.races
    return record


def after(made: Session, start: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return the state after some of the last step's tokens, by the oracle."""
    state = start[None]
    for token in range(tokens):
        state, _ = FAMILY.reference(state, FAMILY.token(made.tensors, token))
    return state[0]


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool(torch.linalg.vector_norm(found - expected) <= 1e-6 * torch.linalg.vector_norm(expected))


def own(made: Session, name: str) -> torch.Tensor:
    """Return the row's share of a buffer."""
    return made.tensors[name][int(made.tensors["slots"][0])]


def test_states_and_cache_of_a_fresh_row() -> None:
    made = session()
    record = run(made, 0, 0)
    checkpoint, end = own(made, "state")
    assert torch.equal(checkpoint, torch.full((2, 16, 16), 0.1))
    assert near(end.double(), after(made, torch.full((2, 16, 16), 0.1).double(), 3))
    assert all(not record.read[name] for name in CACHE)
    assert sum(record.written[name] for name in CACHE) == 3 * TOKEN
    assert torch.equal(own(made, "x_cache")[1], made.tensors["x"][0])
    assert torch.equal(own(made, "k_cache")[1], made.tensors["k"][0])
    assert own(made, "x_cache")[0].isnan().all()
    assert own(made, "cursor").tolist() == [(3 << 1) | 1] * 2


@pytest.mark.parametrize("accepted", [1, 2])
def test_a_prefix_is_replayed_from_the_checkpoint(accepted: int) -> None:
    """The end state, made NaN, is not read, and of the cache only what was accepted."""
    made = session()
    run(made, 0, 0)
    expected = after(made, own(made, "state")[0].double(), accepted)
    own(made, "state")[1] = float("nan")
    for name in CACHE:
        own(made, name)[1, accepted:] = float("nan")
    record = run(made, 1, accepted)
    checkpoint, end = own(made, "state").double()
    assert near(checkpoint, expected)
    assert near(end, after(made, expected, 3))
    assert sum(record.read[name] for name in CACHE) == accepted * TOKEN
    assert not any(tensor.isnan().any() for tensor in (checkpoint, end, made.tensors["out"]))


@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_a_step_whose_tokens_all_count_is_not_replayed(drafts: int) -> None:
    """However many it had: the end state becomes the checkpoint, bit for bit; cache and checkpoint are not read."""
    made = session()
    run(made, 0, 0, drafts)
    end = own(made, "state")[1].clone()
    own(made, "state")[0] = float("nan")
    for name in CACHE:
        own(made, name)[:] = float("nan")
    record = run(made, 1, drafts)
    assert torch.equal(own(made, "state")[0], end)
    assert near(own(made, "state")[1].double(), after(made, end.double(), 3))
    assert all(not record.read[name] for name in CACHE)
    assert record.written["state"] == 2 * record.read["state"] == 2 * 2 * 16 * 16 * 4


def test_halves_take_turns_by_row() -> None:
    """A row that sits out a step finds its inputs where it left them."""
    made = session()
    run(made, 0, 0)
    slots = made.tensors["slots"].clone()
    made.tensors["slots"].fill_(-1)
    record = run(made, 1, 2)
    assert record.bytes_written == 0 and record.bytes_read == 4
    made.tensors["slots"].copy_(slots)
    made.tensors["accepted"][2] = 2
    expected = METHOD.committed(made.case, made.tensors, 2)[0]
    run(made, 2, 2)
    assert near(own(made, "state")[0].double(), expected)
    assert own(made, "cursor").tolist() == [3 << 1] * 2
    assert torch.equal(own(made, "x_cache")[0], made.tensors["x"][0])


def test_a_hand_over_forgets_the_cache() -> None:
    made = session()
    run(made, 0, 0)
    METHOD.start(made.case, made.tensors, torch.full((1, 2, 16, 16), 0.5))
    assert own(made, "cursor").tolist() == [0, 0]
    made.tensors["accepted"][1] = 0
    assert torch.equal(METHOD.committed(made.case, made.tensors, 1)[0], torch.full((2, 16, 16), 0.5).double())


def test_counts() -> None:
    """Super, B = 256, T = 4, BF16 inputs: literals by hand."""
    point = Point.of(Case(SUPER, KEY, 256, None, 4, "T"))
    steps = [METHOD.step(SUPER, point, h, False) for h in (0, 1, 3, 4)]
    state, cursor = 4 * 128 * 64 * 128, 4 * 128
    token = 2 * (128 * 64 + 2 * 8 * 128 + 128)
    kept = 2 * (128 * 64 + 8 * 128) + 4 * 128
    least = 256 * (state + 4 * token + 12 + cursor) + 3 * 4 * 128
    assert [int(s.bytes_read) - least for s in steps] == [0, 256 * kept, 3 * 256 * kept, 0]
    assert {int(s.bytes_write) for s in steps} == {256 * (2 * state + 4 * 2 * 128 * 64 + 4 * kept + cursor)}
    assert [int(s.serial) for s in steps] == [4, 5, 7, 4]
    assert {int(s.launches) for s in steps} == {1}
    paper = METHOD.paper(SUPER, point)
    assert (paper.bytes_read, paper.bytes_write) == (256 * state, 2 * 256 * state)
    assert (paper.launches, paper.serial) == (1, 7)


def test_counts_of_rows_that_mix_lengths() -> None:
    """Two tokens accepted: of two they are all, of three they are replayed."""
    point = replace(Point.of(Case(SUPER, KEY, 1, None, 4)), last_draft_len=np.array([2, 3]))
    assert np.asarray(METHOD.step(SUPER, point, 2, False).serial).tolist() == [4, 6]


def test_trees_are_refused() -> None:
    assert "tree" in str(METHOD.supports(Case(SMALL, KEY, 1, None, 3, tree="0,0")))
    assert METHOD.supports(Case(SMALL, KEY, 1, None, 3)) is None
