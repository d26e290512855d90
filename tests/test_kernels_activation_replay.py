"""Activation replay on Mamba-2, stepped by hand, and its masked replay: what is skipped must not change a bit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from recoverysteps import walk_activation_replay

from perfkit.check import check_case
from perfkit.checker import bits
from perfkit.kernels.mamba2 import layout
from perfkit.kernels.mamba2.masked_replay import cache_buffers, replay_configs, replay_launch, replayed
from perfkit.kernels.mamba2.reference import FAMILY
from perfkit.method import Case, Point
from perfkit.registry import get_method
from perfkit.session import allocate
from perfkit.shape import Shape

KEY = "activation_replay"
METHOD = get_method("mamba2", KEY, "verify")
SMALL = Shape("mamba2", 2, 1, 16, 16)
CACHE = ("x_cache", "k_cache", "dt_cache")


# The masked replay


def cached(state_dtype: str = "float32", tree: str | None = None) -> tuple[Case, dict[str, Any]]:
    """Return a case of three rows, the second padded, and tensors with a random state and cache; d_v is no tile's."""
    case = Case(Shape("mamba2", 4, 2, 20, 16), KEY, 3, draft_len=4, tree=tree, input_dtype="float16",
                state_dtype=state_dtype)  # fmt: skip
    tensors = allocate({**FAMILY.inputs(case), "state": layout.state(case), **cache_buffers(case)}, "cpu")
    torch.manual_seed(0)
    FAMILY.fill_params(tensors, 0)
    tensors["slots"].copy_(torch.tensor([3, -1, 0]))
    tensors["state"].normal_()
    for name in CACHE:
        tensors[name].uniform_(0.1, 1.0)
    return case, tensors


@pytest.mark.parametrize("state_dtype", ["float32", "float16", "bfloat16"])
def test_nothing_accepted_leaves_every_bit(state_dtype: str) -> None:
    """Negative zeros, tiny numbers and infinities too; and of a cache of NaN nothing is read."""
    case, tensors = cached(state_dtype)
    tiny = torch.finfo(tensors["state"].dtype).smallest_normal
    tiny /= 1 if state_dtype == "bfloat16" else 4  # the interpreter makes zeros of BF16's subnormal numbers
    tensors["state"][:, 0, 0, :6] = torch.tensor([-0.0, 0.0, tiny, -tiny, math.inf, -math.inf])
    for name in CACHE:
        tensors[name].fill_(math.nan)
    tensors["accepted"][5].fill_(0)
    before = bits(tensors["state"])
    replay_launch(case, tensors, 5, 8, 1)()
    assert torch.equal(before, bits(tensors["state"]))


@pytest.mark.parametrize(("rows", "warps"), replay_configs(Case(SMALL, KEY, 3, draft_len=4)))
def test_replay_runs_the_accepted_tokens_only(rows: int, warps: int) -> None:
    case, tensors = cached()
    tensors["accepted"].fill_(4)
    tensors["accepted"][7].copy_(torch.tensor([3, 2, 4]))
    for name in CACHE:
        tensors[name][3, 3:] = math.nan  # not accepted
    expected, before = replayed(tensors, 7), bits(tensors["state"])
    assert not expected[1].any()
    replay_launch(case, tensors, 64 + 7, rows, warps)()
    found = layout.load_state(tensors)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6) and not torch.equal(bits(tensors["state"]), before)
    assert torch.equal(bits(tensors["state"])[1:3], before[1:3])  # slots that no row has


def test_replay_goes_by_membership_of_the_path() -> None:
    """Nodes 0, 1 and 3 of the tree: node 2, a sibling, must neither be read nor decay anything."""
    case, tensors = cached(tree="0,0,1")
    tensors["path"].fill_(0b0001)
    tensors["path"][2].copy_(torch.tensor([0b1011, 0, 0b0101]))
    for name in CACHE:
        tensors[name][3, 2] = math.nan
        tensors[name][0, [1, 3]] = math.nan
    expected = replayed(tensors, 2)
    assert expected.isfinite().all()
    replay_launch(case, tensors, 2, 32, 4)()
    assert torch.allclose(layout.load_state(tensors), expected, rtol=1e-5, atol=1e-6)


# The method


def test_steps_against_the_oracle_whatever_the_working_state_held() -> None:
    case = Case(SMALL, KEY, 2, draft_len=3, input_dtype="float32")
    walk_activation_replay(case, ["_masked_replay_kernel", "_state_copy_kernel", "_in_place_verify_kernel"])


def test_check_finds_a_replay_that_skips_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(SMALL, KEY, 1, draft_len=2, input_dtype="float32")
    assert check_case(case, "cpu").ok
    sound = METHOD.launches

    def short(self: Any, case: Case, config: Any, tensors: Any, step: int = 0) -> Any:
        return sound(case, config, {**tensors, "accepted": (tensors["accepted"] - 1).clamp(min=0)}, step)

    monkeypatch.setattr(type(METHOD), "launches", short)
    found = check_case(case, "cpu", count_bytes=False)
    assert not found.ok and "error" in str(found.reason)


def test_bytes_by_hand() -> None:
    """One row, two heads of a group, 16 x 16, FP32: T = 3, two tokens were accepted."""
    point = Point(batch=1, window=1, draft_len=3, input_bytes=4, state_bytes=4, read_bytes=4)
    step = METHOD.step(SMALL, point, 2, False)
    state = 2 * 16 * 16 * 4
    token = (2 * 16 + 16) * 4 + 2 * 4  # x and k, dt in FP32
    inputs = 3 * (2 * 16 + 16 + 16 + 2) * 4
    assert step.bytes_read == 3 * state + 2 * token + inputs + (8 + 4 + 8) + (1 + 3) * 2 * 4
    assert step.bytes_write == 3 * state + 3 * 2 * 16 * 4 + 3 * token
    assert (step.launches, step.serial, step.shared_read) == (3, 6, 32)
    paper = METHOD.paper(SMALL, replace(point, batch=5))
    assert (paper.bytes_read, paper.bytes_write, paper.launches, paper.serial) == (15 * state, 15 * state, 3, 6)


def test_what_it_refuses() -> None:
    case = Case(SMALL, KEY, 1, draft_len=3)
    assert METHOD.supports(case) is None
    assert "one state a row" in str(METHOD.supports(replace(case, tree="0,0")))
    assert "17" in str(METHOD.supports(replace(case, draft_len=17)))
