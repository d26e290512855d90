"""Gated DeltaNet: the oracle against the paper's equations, gates, groups, normalization; kernels stepped by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from levels import check_level_of_fp16_corrections

from perfkit.check import check_case
from perfkit.checker import Checker
from perfkit.kernels.gates import inverse_norm, sigmoid
from perfkit.kernels.gdn import layout
from perfkit.kernels.gdn.reference import FAMILY, normalized
from perfkit.kernels.lang import tl, triton
from perfkit.method import Case, Point
from perfkit.registry import get_method
from perfkit.session import Session, allocate
from perfkit.shape import Shape
from perfkit.tolerance import drift_tolerance
from perfkit.verify_checker import make_checker

SMALL = Shape("gdn", 2, 1, 16, 16)
QWEN_4B, QWEN_122B = Shape("gdn", 32, 16, 128, 128), Shape("gdn", 64, 16, 128, 128)
CONVENTIONAL = get_method("gdn", "conventional")
REPLAY = get_method("gdn", "replay")
SNAPSHOT = get_method("gdn", "snapshot", "verify")


def token(**arrays: Any) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in arrays.items()}


def drawn(heads: int, groups: int, d_v: int, d_k: int, seed: int = 0) -> dict[str, Any]:
    """One token of one row and the layer's parameters, as arrays without a batch."""
    rng = np.random.default_rng(seed)
    return {
        "q": rng.standard_normal((groups, d_k)), "k": rng.standard_normal((groups, d_k)),
        "v": rng.standard_normal((heads, d_v)), "gate": rng.standard_normal(heads), "beta": rng.standard_normal(heads),
        "a_log": np.log(rng.uniform(1, 16, heads)), "dt_bias": rng.standard_normal(heads) - 3,
    }  # fmt: skip


def batched(one: dict[str, Any]) -> dict[str, torch.Tensor]:
    return token(**{name: value[None] if name in FAMILY.per_token else value for name, value in one.items()})


# The oracle.


def test_oracle_against_equation_2() -> None:
    """S = α S (I − β k kᵀ) + β v kᵀ with the projection as a matrix, o = S q; two heads share a key head."""
    heads, groups, d_v, d_k = 4, 2, 3, 5
    start = np.random.default_rng(9).standard_normal((heads, d_v, d_k))
    state, expected = torch.as_tensor(start)[None], start
    for step in range(6):
        one = drawn(heads, groups, d_v, d_k, step)
        state, out = FAMILY.reference(state, batched(one))
        new, outs = [], []
        for head in range(heads):
            k, q = one["k"][head // 2], one["q"][head // 2]
            k = k / math.sqrt(k @ k + 1e-6)
            q = q / math.sqrt(q @ q + 1e-6) / math.sqrt(d_k)
            alpha = math.exp(-math.exp(one["a_log"][head]) * np.logaddexp(0, one["gate"][head] + one["dt_bias"][head]))
            beta = 1 / (1 + math.exp(-one["beta"][head]))
            erased = expected[head] @ (np.eye(d_k) - beta * np.outer(k, k))
            new.append(alpha * erased + beta * np.outer(one["v"][head], k))
            outs.append(new[-1] @ q)
        expected = np.stack(new)
        assert np.allclose(state[0].numpy(), expected, rtol=1e-12, atol=1e-14)
        assert np.allclose(out[0].numpy(), np.stack(outs), rtol=1e-12, atol=1e-14)
    assert state.dtype == out.dtype == torch.float64


def test_a_key_that_is_written_at_full_strength_returns_its_value() -> None:
    """With β → 1, what the state held for k is gone: the same k reads v, whatever was there and whatever the decay."""
    one = drawn(2, 1, 3, 8)
    one["beta"] = np.full(2, 60.0)
    one["q"] = one["k"]
    _, out = FAMILY.reference(torch.randn(1, 2, 3, 8).double(), batched(one))
    unit = float(normalized(torch.as_tensor(one["k"])).square().sum())  # 1 but for the epsilon
    assert np.allclose(out[0].numpy() * math.sqrt(8), one["v"] * unit, rtol=1e-5)


def test_the_length_of_keys_and_queries_does_not_matter() -> None:
    one = drawn(2, 2, 3, 8)
    longer = {**one, "k": one["k"] * 50, "q": one["q"] * 0.2}
    start = torch.randn(1, 2, 3, 8).double()
    for found, other in zip(
        FAMILY.reference(start, batched(one)), FAMILY.reference(start, batched(longer)), strict=True
    ):
        assert torch.allclose(found, other, rtol=1e-4, atol=1e-6)
    assert normalized(torch.zeros(2, 4)).eq(0).all(), "of a zero vector there is no direction, and no NaN"
    assert normalized(torch.tensor([3e-4, 4e-4])).norm() == pytest.approx(0.447, abs=1e-3)  # the epsilon counts


def test_oracle_against_the_unrolled_sum() -> None:
    """Eq. 8: S_h = γ_h S_0 + Σ_j γ_{j+1:h} u_j k_jᵀ with the u that the steps derived, which is what records replay."""
    tokens, state = [], torch.randn(1, 2, 3, 4).double()
    start = state
    for step in range(7):
        inputs = batched(drawn(2, 1, 3, 4, step))
        decay, u, _, _ = FAMILY.update(state, inputs)
        tokens.append((decay.log(), u, inputs["k"]))
        state, _ = FAMILY.reference(state, inputs)
    cached = {name: torch.stack([one[i] for one in tokens], 1) for i, name in enumerate(("g", "u", "k"))}
    live = torch.ones(1, 7, dtype=torch.bool)
    assert torch.allclose(layout.replay_tokens(start, cached, live), state, rtol=1e-12, atol=1e-14)
    gamma = cached["g"].flip(1).cumsum(1).flip(1).exp()  # γ_{j:h}
    later = torch.cat([gamma[:, 1:], torch.ones_like(gamma[:, :1])], 1)
    keys = normalized(cached["k"]).expand(-1, -1, 2, -1)
    unrolled = gamma[:, 0, :, None, None] * start + torch.einsum("bjh,bjhv,bjhk->bhvk", later, cached["u"], keys)
    assert torch.allclose(unrolled, state, rtol=1e-12, atol=1e-14)
    live[0, 4:] = False
    assert not torch.allclose(layout.replay_tokens(start, cached, live), state)


def test_rounded_corrections_leave_the_state_within_its_slack() -> None:
    """Records of a window in FP16: replay is off by no more than the slack says, and not by much less."""
    state = torch.randn(3, 2, 16, 16).double() * 0.1
    exact, slack = state, torch.zeros_like(state)
    tokens = []
    for step in range(5):
        inputs = {name: value.expand(3, *value.shape[1:]) if name in FAMILY.per_token else value
                  for name, value in batched(drawn(2, 1, 16, 16, step)).items()}  # fmt: skip
        decay, u, _, _ = FAMILY.update(exact, inputs)
        tokens.append((decay.log(), u.half(), inputs["k"]))
        slack = FAMILY.slack(exact, inputs, lambda u: 2.0**-11 * 2.0 ** u.abs().log2().floor(), slack)
        exact, _ = FAMILY.reference(exact, inputs)
    cached = {name: torch.stack([one[i] for one in tokens], 1) for i, name in enumerate(("g", "u", "k"))}
    off = (layout.replay_tokens(state, cached, torch.ones(3, 5, dtype=torch.bool)) - exact).abs()
    assert (off <= slack * (1 + 1e-9)).all()
    assert off.max() > 0.2 * slack.max()


# Inputs.


def test_inputs_are_views_of_the_convolutions_output_in_its_order() -> None:
    buffers = FAMILY.inputs(Case(QWEN_4B, "conventional", 2))
    assert buffers["packed"].shape == (2, 8192)  # 2·16·128 + 32·128
    tensors = allocate(buffers, "cpu")
    assert [tensors[name].data_ptr() - tensors["packed"].data_ptr() for name in "qkv"] == [0, 4096, 8192]
    assert tensors["v"].shape == (2, 32, 128) and tensors["v"].stride() == (8192, 128, 1)
    verify = FAMILY.inputs(Case(QWEN_4B, "snapshot", 2, None, 4))
    assert (verify["k"].shape, verify["k"].strides) == ((2, 4, 16, 128), (4 * 8192, 8192, 128, 1))
    assert verify["beta"].shape == verify["gate"].shape == (2, 4, 32)
    assert {"drafts", "accepted"} <= set(verify)


def test_random_data_keeps_states_stationary() -> None:
    case = Case(Shape("gdn", 64, 2, 16, 32), "conventional", 3, input_dtype="float32")
    tensors = allocate(FAMILY.inputs(case), "cpu")
    FAMILY.fill_params(tensors, 0)
    FAMILY.fill_inputs(tensors, 1)
    decays = torch.exp(-tensors["a_log"].exp() * torch.nn.functional.softplus(tensors["dt_bias"]))
    assert decays.min() >= 0.2 and decays.max() < 0.9991
    assert tensors["a_log"].min() >= 0 and tensors["a_log"].max() <= math.log(16.01)
    assert tensors["gate"].std() == pytest.approx(0.5, abs=0.1) and tensors["beta"].std() == pytest.approx(1.0, abs=0.2)
    state = torch.zeros(3, 64, 16, 32).double()
    for seed in range(60):
        FAMILY.fill_inputs(tensors, seed)
        assert all((tensors[name] != 0).all() and tensors[name].isfinite().all() for name in FAMILY.per_token)
        state, _ = FAMILY.reference(state, tensors)
    assert 0.03 < state.square().mean().sqrt() < 1.0


# Gates on chip.


@triton.jit
def _gates_kernel(x_ptr, sigmoid_ptr, norm_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(sigmoid_ptr + i, sigmoid(x))
    tl.store(norm_ptr, inverse_norm(tl.sum(x * x, axis=0)))


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 25.0])
def test_gates_are_accurate_to_fp32(scale: float) -> None:
    x = (torch.linspace(-3, 3, 64) * scale).float()
    found, norm = torch.empty(64), torch.empty(1)
    _gates_kernel[(1,)](x, found, norm, 64)
    assert torch.allclose(found.double(), torch.sigmoid(x.double()), rtol=3e-7, atol=0)
    assert float(norm) == pytest.approx(float((x.double().square().sum() + 1e-6) ** -0.5), rel=3e-7)


# Kernels.


@pytest.mark.parametrize(("method", "draft_len"), [("conventional", 1), ("snapshot", 3)])
def test_inputs_of_other_strides_give_the_same_bits(method: str, draft_len: int) -> None:
    case = Case(Shape("gdn", 4, 2, 16, 16), method, 2, None, draft_len, input_dtype="float16")
    packed, apart = Session(case, "cpu"), Session(case, "cpu")
    for index in range(2):
        for session in (packed, apart):
            session.family.fill_inputs(session.tensors, index)
        for padding, name in enumerate(FAMILY.per_token, start=1):
            given = packed.tensors[name]
            start = given.dim() - (1 if name in ("gate", "beta") else 2)
            width = given.shape[start:].numel()
            memory = torch.full((*given.shape[:start], width + padding), math.nan, dtype=given.dtype)
            memory[..., :width] = given.flatten(start)
            apart.tensors[name] = memory[..., :width].unflatten(-1, given.shape[start:])
        assert packed.step(index) == apart.step(index) == 1
        assert torch.equal(packed.tensors["out"], apart.tensors["out"])
        assert torch.equal(packed.tensors["state"].nan_to_num(9), apart.tensors["state"].nan_to_num(9))
    assert packed.tensors["out"].isfinite().all()


def test_extreme_gates() -> None:
    """A decay that underflows forgets everything; one of 1 and no writing leaves the state as it is, to the bit."""
    case = Case(SMALL, "conventional", 2, input_dtype="float32")
    session = Session(case, "cpu")
    t = session.tensors
    before = CONVENTIONAL.committed(case, t, 0)
    t["gate"][0], t["beta"][0] = 80.0, 80.0
    t["gate"][1], t["beta"][1] = -200.0, -200.0
    session.step()
    after = CONVENTIONAL.committed(case, t, 1)
    assert torch.equal(after[1], before[1])
    k = normalized(t["k"][0].double())
    assert torch.allclose(after[0], t["v"][0].double()[..., None] * k[:, None, :], rtol=1e-6, atol=1e-7)
    assert t["out"].isfinite().all()


def test_a_tree_reads_the_snapshot_of_a_parent_that_does_not_come_just_before() -> None:
    case = Case(SMALL, "snapshot", 2, None, 5, tree="0,0,1,1", input_dtype="float32")
    made = Session(case, "cpu")
    start = SNAPSHOT.committed(case, made.tensors, 0)
    made.step(0)
    states = made.tensors["state"][made.tensors["slots"].long()].double()
    for path in ((0,), (0, 1), (0, 2), (0, 1, 3), (0, 1, 4)):
        state = start
        for node in path:
            state, _ = FAMILY.reference(state, FAMILY.token(made.tensors, node))
        assert torch.allclose(states[:, path[-1]], state, rtol=1e-5, atol=1e-6)


def test_an_fp32_state_is_fp32_end_to_end() -> None:
    """2,000 steps at α = 0.999: at most 1e-4; a checkpoint cast to BF16 would leave 4.4e-3, tf32 products 3.6e-4."""
    case = Case(Shape("gdn", 1, 1, 16, 16), "conventional", 1, input_dtype="float16")
    session = Session(case, "cpu")
    t = session.tensors
    t["a_log"].zero_()
    t["dt_bias"].fill_(math.log(math.expm1(1e-3)))  # α = exp(−softplus(bias)) = 0.999
    state = CONVENTIONAL.committed(case, t, 0)
    for index in range(2000):
        FAMILY.fill_inputs(t, index)
        t["gate"].zero_()
        state, _ = FAMILY.reference(state, t)
        session.step(index)
    error = torch.linalg.vector_norm(CONVENTIONAL.committed(case, t, 2000) - state) / torch.linalg.vector_norm(state)
    assert error < 5e-6


def test_corrections_in_fp16_leave_the_same_error_at_any_time() -> None:
    case = Case(Shape("gdn", 1, 1, 16, 128), "replay", 1, 16, input_dtype="float16")
    check_level_of_fp16_corrections(FAMILY, REPLAY, case)


@pytest.mark.parametrize("window", [18, 40, 65])
def test_replay_of_long_windows(window: int) -> None:
    case = Case(Shape("gdn", 1, 1, 16, 16), "replay", 1, window, input_dtype="float32")
    assert check_case(case, "cpu", REPLAY.configs(case)[0]).reason is None


# What checks say of a delta rule.


def test_a_scaled_key_is_seen() -> None:
    """The norm takes any one factor out again, so checks perturb by more than that."""
    checker = make_checker(Case(SMALL, "snapshot", 2, None, 3, input_dtype="float32"), "cpu")
    checker.step()
    assert checker.sees("state")
    assert isinstance(checker, Checker)


def test_drift_of_rounded_corrections() -> None:
    assert drift_tolerance(None) == drift_tolerance("float32") == 1e-5
    assert drift_tolerance("float16") == pytest.approx(1e-5 + 2**-11)


# Declarations.


@pytest.mark.parametrize(("shape", "mib"), [(QWEN_4B, 2), (QWEN_122B, 4)])
def test_bytes_by_hand(shape: Shape, mib: int) -> None:
    """q, k, v, gate and beta read, out written; two parameters a head once a step."""
    heads, state = shape.n_v_heads, mib * 2**20
    inputs = 2 * (2 * 16 * 128 + heads * 128 + 2 * heads)
    step = CONVENTIONAL.step(shape, Point.of(Case(shape, "conventional", 256)), 0, False)
    assert step.bytes_read == 256 * (state + inputs + 4) + 2 * 4 * heads
    assert step.bytes_write == 256 * (state + 2 * heads * 128)
    assert (step.flops, step.shared_read) == (256 * heads * (7 * 128 * 128 + 128), 2 * 4 * heads)
    point, record = Point.of(Case(shape, "replay", 256, 16)), heads * (2 * 128 + 4) + 16 * 2 * 128
    step = REPLAY.step(shape, point, 7, False)  # one launch reads slots and the rows' cursors, the other the heads'
    assert step.bytes_read == 256 * (state + inputs + 7 * record + 8 + (4 + 4 * heads)) + 2 * 4 * heads
    assert step.bytes_write == 256 * (2 * heads * 128 + record + 4 * heads + 4)
    assert (step.launches, REPLAY.paper(shape, point).launches) == (2, 2)
    assert REPLAY.step(shape, point, 15, True).bytes_write == 256 * (state + 2 * heads * 128 + 2 * 4 * heads + 4)
    verify = SNAPSHOT.step(shape, Point.of(Case(shape, "snapshot", 256, None, 4, "T")), 4, False)
    assert verify.bytes_read == 256 * (state + 4 * inputs + 12) + 2 * 4 * heads
    assert verify.bytes_write == 256 * 4 * (state + 2 * heads * 128)
    assert SNAPSHOT.memory_per_request(Case(shape, "snapshot", 1, None, 4)) == 4 * state


def test_what_kernels_do_not_support_has_a_reason() -> None:
    assert "power of two" in str(CONVENTIONAL.supports(Case(Shape("gdn", 2, 1, 16, 24), "conventional", 1)))
    assert "input dtype int32" in str(CONVENTIONAL.supports(Case(SMALL, "conventional", 1, input_dtype="int32")))
    assert "draft length T = 17" in str(SNAPSHOT.supports(Case(SMALL, "snapshot", 1, None, 17)))
