"""Recovery schemes on both delta rules, stepped by hand: what is run again, what is kept of a token, what is stored."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from recoverysteps import walk_activation_replay

from perfkit.check import check_case
from perfkit.checker import bits
from perfkit.method import Case, Point
from perfkit.registry import family, get_method
from perfkit.session import Session
from perfkit.shape import Shape
from perfkit.tolerance import STEP_TOLERANCE
from perfkit.touched import Touched, touched
from perfkit.verify_checker import make_checker

FUSED, ACTIVATION = "fused_recovery", "activation_replay"
SMALL = {"gdn": Shape("gdn", 2, 1, 16, 16), "kda": Shape("kda", 2, 2, 16, 16)}
#: Qwen3.5-4B and Kimi-Linear.
REAL = {"gdn": Shape("gdn", 32, 16, 128, 128), "kda": Shape("kda", 32, 32, 128, 128)}
#: Bytes of one kept token of SMALL at FP32 inputs: k, v, g and beta.
TOKEN = {"gdn": 4 * (16 + 2 * 16 + 2 + 2), "kda": 4 * (2 * 16 + 2 * 16 + 2 * 16 + 2)}
#: The same of REAL at BF16 inputs, gates in FP32.
KEPT = {"gdn": 2 * (16 + 32) * 128 + 4 * 2 * 32, "kda": 2 * (32 + 32) * 128 + 4 * 32 * 129}
CACHE = ("k_cache", "v_cache", "g_cache", "beta_cache")

both = pytest.mark.parametrize("name", ["gdn", "kda"])


def session(name: str, key: str, draft_len: int = 3, **changes: Any) -> Session:
    """Return one row whose state is 0.1 everywhere, handed over just now."""
    made = Session(Case(SMALL[name], key, 1, None, draft_len, **{"input_dtype": "float32", **changes}), "cpu")
    made.method.start(made.case, made.tensors, torch.full((1, 2, 16, 16), 0.1))
    return made


def run(made: Session, step: int, accepted: int, drafts: int | None = None) -> Touched:
    """Run a step with inputs of its own, after one that committed ``accepted`` tokens."""
    made.family.fill_inputs(made.tensors, 100 + step)
    made.tensors["accepted"].fill_(99)
    made.tensors["accepted"][step] = accepted
    made.tensors["drafts"][:] = drafts or made.case.draft_len
    with touched(made.tensors) as record:
        assert made.step(step) == (1 if made.case.method == FUSED else 3)
    assert not record.outside_lanes and not record.races
    return record


def after(made: Session, start: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return the state after some of the last step's tokens, by the oracle."""
    state = start[None]
    for token in range(tokens):
        state, _ = made.family.reference(state, made.family.token(made.tensors, token))
    return state[0]


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool(torch.linalg.vector_norm(found - expected) <= 1e-6 * torch.linalg.vector_norm(expected))


def own(made: Session, name: str) -> torch.Tensor:
    """Return the row's share of a buffer."""
    return made.tensors[name][int(made.tensors["slots"][0])]


def gates(made: Session, token: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return g and beta of a token as the layer's equations have them."""
    t = {name: value.double() for name, value in made.family.token(made.tensors, token).items()}
    rate = t["a_log"].exp()
    rate = rate[:, None] if made.case.shape.family == "kda" else rate
    g = -rate * torch.nn.functional.softplus(t["gate"][0] + t["dt_bias"])
    return g, torch.sigmoid(t["beta"][0])


# Fused recovery.


@both
def test_states_and_cache_of_a_fresh_row(name: str) -> None:
    made = session(name, FUSED)
    record = run(made, 0, 0)
    checkpoint, end = own(made, "state")
    assert torch.equal(checkpoint, torch.full((2, 16, 16), 0.1))
    assert near(end.double(), after(made, torch.full((2, 16, 16), 0.1).double(), 3))
    assert all(not record.read[cache] for cache in CACHE)
    assert sum(record.written[cache] for cache in CACHE) == 3 * TOKEN[name]
    assert torch.equal(own(made, "k_cache")[1], made.tensors["k"][0])
    assert torch.equal(own(made, "v_cache")[1], made.tensors["v"][0])
    for token in range(3):
        g, beta = gates(made, token)
        assert torch.allclose(own(made, "g_cache")[1, token].double(), g, rtol=1e-6)
        assert torch.allclose(own(made, "beta_cache")[1, token].double(), beta, rtol=1e-6)
    assert own(made, "v_cache")[0].isnan().all()
    assert own(made, "cursor").tolist() == [(3 << 1) | 1] * 2


@both
@pytest.mark.parametrize("accepted", [1, 2])
def test_a_prefix_is_run_again_from_the_checkpoint(name: str, accepted: int) -> None:
    """The end state, made NaN, is not read, and of the cache only what was accepted."""
    made = session(name, FUSED)
    run(made, 0, 0)
    expected = after(made, own(made, "state")[0].double(), accepted)
    own(made, "state")[1] = math.nan
    for cache in CACHE:
        own(made, cache)[1, accepted:] = math.nan
    record = run(made, 1, accepted)
    checkpoint, end = own(made, "state").double()
    assert near(checkpoint, expected)
    assert near(end, after(made, expected, 3))
    assert sum(record.read[cache] for cache in CACHE) == accepted * TOKEN[name]
    assert made.tensors["out"].isfinite().all()


@both
@pytest.mark.parametrize("drafts", [1, 3])
def test_a_step_whose_tokens_all_count_is_not_run_again(name: str, drafts: int) -> None:
    """However many it had: the end state becomes the checkpoint, bit for bit; cache and checkpoint are not read."""
    made = session(name, FUSED)
    run(made, 0, 0, drafts)
    end = own(made, "state")[1].clone()
    own(made, "state")[0] = math.nan
    for cache in CACHE:
        own(made, cache)[:] = math.nan
    record = run(made, 1, drafts)
    assert torch.equal(own(made, "state")[0], end)
    assert near(own(made, "state")[1].double(), after(made, end.double(), 3))
    assert all(not record.read[cache] for cache in CACHE)
    assert record.written["state"] == 2 * record.read["state"] == 2 * 2 * 16 * 16 * 4


@both
def test_halves_take_turns_by_row(name: str) -> None:
    """A row that sits out a step finds its inputs where it left them; a hand-over forgets them."""
    made = session(name, FUSED)
    run(made, 0, 0)
    slots = made.tensors["slots"].clone()
    made.tensors["slots"].fill_(-1)
    record = run(made, 1, 2)
    assert record.bytes_written == 0 and record.bytes_read == 4
    made.tensors["slots"].copy_(slots)
    made.tensors["accepted"][2] = 2
    expected = made.method.committed(made.case, made.tensors, 2)[0]
    run(made, 2, 2)
    assert near(own(made, "state")[0].double(), expected)
    assert own(made, "cursor").tolist() == [3 << 1] * 2
    assert torch.equal(own(made, "k_cache")[0], made.tensors["k"][0])
    made.method.start(made.case, made.tensors, torch.full((1, 2, 16, 16), 0.5))
    made.tensors["accepted"][3] = 0
    assert torch.equal(made.method.committed(made.case, made.tensors, 3)[0], torch.full((2, 16, 16), 0.5).double())


# Activation replay.


@both
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # infinity times 0 is computed and not taken
@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_nothing_accepted_leaves_every_bit(name: str, state_dtype: str) -> None:
    """Negative zeros, tiny numbers and infinities too; and of a cache of NaN nothing is read."""
    made = session(name, ACTIVATION, state_dtype=state_dtype)
    tiny = torch.finfo(made.tensors["state"].dtype).smallest_normal
    own(made, "state")[0, 0, :6] = torch.tensor([-0.0, 0.0, tiny, -tiny, math.inf, -math.inf])
    for cache in CACHE:
        own(made, cache)[:] = math.nan
    made.tensors["accepted"].fill_(0)
    before = bits(made.tensors["state"])
    next(iter(made.method.launches(made.case, made.config, made.tensors, 5)))()
    assert torch.equal(before, bits(made.tensors["state"]))


@both
def test_steps_against_the_oracle_whatever_the_working_state_held(name: str) -> None:
    case = Case(SMALL[name], ACTIVATION, 2, draft_len=3, input_dtype="float32")
    walk_activation_replay(case, ["_delta_masked_replay_kernel", "_state_copy_kernel", "_delta_in_place_verify_kernel"])


# Both.


@both
@pytest.mark.parametrize("key", [FUSED, ACTIVATION])
def test_a_replay_that_takes_kept_values_for_corrections_is_found(
    name: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With v in place of u = β (v − α S k), as if the state held nothing: tokens added up like Mamba-2's inputs."""
    case = Case(SMALL[name], key, 1, draft_len=3, input_dtype="float32")
    assert check_case(case, "cpu", count_bytes=False).ok
    method = get_method(name, key, "verify")

    def added(self: Any, tensors: Any, state: Any, cached: Any, live: Any) -> Any:
        for token in range(live.shape[1]):
            v, decay = cached["v"][:, token].double(), cached["g"][:, token].double().exp()
            k = torch.nn.functional.normalize(cached["k"][:, token].double(), dim=-1)
            k = k.repeat_interleave(state.shape[1] // k.shape[1], dim=1)
            new = state * (decay[..., None, :] if name == "kda" else decay[..., None, None])
            new = new + (cached["beta"][:, token].double()[..., None] * v)[..., None] * k[..., None, :]
            state = new.where(live[:, token, None, None, None], state)
        return state

    monkeypatch.setattr(type(method), "rerun", added)
    found = check_case(case, "cpu", count_bytes=False)
    assert not found.ok and "error" in str(found.reason)


@both
@pytest.mark.parametrize("key", [FUSED, ACTIVATION])
def test_extreme_gates_of_kept_tokens(name: str, key: str) -> None:
    """Decays that underflow and decays of 1, next to each other: no NaN, and the states are the oracle's."""
    made = session(name, key)
    t, state = made.tensors, torch.full((1, 2, 16, 16), 0.1).double()
    for step in range(3):
        made.family.fill_inputs(t, step)
        t["gate"][:, 0], t["gate"][:, 1] = 60.0, -200.0
        if name == "kda":
            t["gate"][:, 2, :, ::3] = 60.0
        t["accepted"][step] = 2 if step else 0
        t["drafts"].fill_(3)
        made.step(step)
        for token in range(2):
            state, _ = made.family.reference(state, made.family.token(t, token))
        t["accepted"][step + 1] = 2
        assert torch.allclose(made.method.committed(made.case, t, step + 1), state, rtol=1e-5, atol=1e-6)
        assert t["out"].isfinite().all()


@both
@pytest.mark.parametrize("key", [FUSED, ACTIVATION])
def test_inputs_of_other_strides_give_the_same_bits(name: str, key: str) -> None:
    packed, apart = session(name, key, input_dtype="float16"), session(name, key, input_dtype="float16")
    for index in range(2):
        for made in (packed, apart):
            made.family.fill_inputs(made.tensors, index)
            made.tensors["accepted"].fill_(2 if index else 0)
        for padding, item in enumerate(made.family.per_token, start=1):
            given = packed.tensors[item]
            width = given.shape[2:].numel()
            memory = torch.full((1, 3, width + padding), math.nan, dtype=given.dtype)
            memory[..., :width] = given.flatten(2)
            apart.tensors[item] = memory[..., :width].unflatten(-1, given.shape[2:])
        packed.step(index)
        apart.step(index)
        assert torch.equal(packed.tensors["out"], apart.tensors["out"])
        assert torch.equal(packed.tensors["state"].nan_to_num(9), apart.tensors["state"].nan_to_num(9))


@both
@pytest.mark.parametrize("key", [FUSED, ACTIVATION])
@pytest.mark.parametrize("draft_len", [2, 9, 16])
def test_every_draft_length_and_acceptance(name: str, key: str, draft_len: int) -> None:
    """One program a launch: T − 1, the longest chain of fused recovery, then 1 and T; then fewer drafts than T."""
    shape = Shape(name, 1, 1, 16, 16)
    checker = make_checker(Case(shape, key, 1, None, draft_len, input_dtype="float32"), "cpu")
    for _ in range(6):
        checker.step(None, True)
    checker.finish()
    assert checker.worst < STEP_TOLERANCE


# Declarations.


@both
def test_counts_of_fused_recovery(name: str) -> None:
    """B = 256, T = 4, BF16 inputs: literals by hand. h of T were accepted; all of them are none to run again."""
    shape, heads, groups = REAL[name], 32, REAL[name].n_k_heads
    method, point = get_method(name, FUSED, "verify"), Point.of(Case(shape, FUSED, 256, None, 4, "T"))
    steps = [method.step(shape, point, h, False) for h in (0, 1, 3, 4)]
    state, cursor = 4 * heads * 128 * 128, 4 * heads
    inputs = 2 * (2 * groups * 128 + heads * 128 + heads + heads * (128 if name == "kda" else 1))
    shared = 4 * heads * (129 if name == "kda" else 2)
    least = 256 * (state + 4 * inputs + 12 + cursor) + shared
    assert [int(s.bytes_read) - least for s in steps] == [0, 256 * KEPT[name], 3 * 256 * KEPT[name], 0]
    written = 256 * (2 * state + 4 * 2 * heads * 128 + 4 * KEPT[name] + cursor)
    assert {int(s.bytes_write) for s in steps} == {written}
    assert [int(s.serial) for s in steps] == [4, 5, 7, 4]
    # A token's step has 7 d_v d_k + d_v FLOPs, of which its readout 2 d_v d_k − d_v are not needed to run it again.
    plain, again = 7 * 128 * 128 + 128, 5 * 128 * 128 + 2 * 128
    assert [int(s.flops) for s in steps] == [256 * heads * (4 * plain + n * again) for n in (0, 1, 3, 0)]
    paper = method.paper(shape, point)
    assert (paper.bytes_read, paper.bytes_write) == (256 * state, 2 * 256 * state)
    assert (paper.launches, paper.serial, paper.flops) == (1, 7, 256 * heads * (4 * plain + 3 * again))
    mixed = replace(point, batch=1, last_draft_len=np.array([2, 3]))
    assert np.asarray(method.step(shape, mixed, 2, False).serial).tolist() == [4, 6]


@both
def test_counts_of_activation_replay(name: str) -> None:
    """Three launches read slots, the first acceptance, the last T and the parameters; T tokens run, whatever counts."""
    shape, heads, groups = REAL[name], 32, REAL[name].n_k_heads
    method, point = get_method(name, ACTIVATION, "verify"), Point.of(Case(shape, ACTIVATION, 256, None, 4, "2"))
    step = method.step(shape, point, 2, False)
    state = 4 * heads * 128 * 128
    inputs = 2 * (2 * groups * 128 + heads * 128 + heads + heads * (128 if name == "kda" else 1))
    shared = 4 * heads * (129 if name == "kda" else 2)
    assert step.bytes_read == 256 * (3 * state + 2 * KEPT[name] + 4 * inputs + 8 + 4 + 8) + shared
    assert step.bytes_write == 256 * (3 * state + 4 * 2 * heads * 128 + 4 * KEPT[name])
    assert (step.launches, step.serial, step.shared_read) == (3, 8, shared)
    assert step.flops == 256 * heads * 4 * (12 * 128 * 128 + 3 * 128)
    paper = method.paper(shape, point)
    assert (paper.bytes_read, paper.bytes_write) == (3 * 256 * state, 3 * 256 * state)
    assert (paper.launches, paper.serial, paper.flops) == (3, 8, step.flops)


@both
@pytest.mark.parametrize("key", [FUSED, ACTIVATION])
def test_memory_and_what_is_refused(name: str, key: str) -> None:
    """A request keeps two states, or one with working room aside, and one or two sets of inputs."""
    method, case = get_method(name, key, "verify"), Case(REAL[name], key, 1, None, 4)
    state = 4 * 32 * 128 * 128
    keeps = 2 * state + 2 * 4 * KEPT[name] + 4 * 32 if key == FUSED else state + 4 * KEPT[name]
    assert method.memory_per_request(case) == keeps
    assert "draft trees" in str(method.supports(replace(case, draft_len=3, tree="0,0")))
    assert "draft length T = 17" in str(method.supports(replace(case, draft_len=17)))
    assert method.supports(case) is None and method.rounds(case) is None
    assert family(name).name == name
