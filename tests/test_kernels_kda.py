"""Kimi Delta Attention: the oracle against the recurrence as matrices and against Gated DeltaNet; kernels by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from levels import check_level_of_fp16_corrections

from perfkit.check import check_case
from perfkit.kernels.gdn.reference import FAMILY as GDN
from perfkit.kernels.gdn.reference import normalized
from perfkit.kernels.kda import layout
from perfkit.kernels.kda.reference import FAMILY
from perfkit.method import Case, Point
from perfkit.registry import get_method
from perfkit.session import Session, allocate
from perfkit.shape import Shape

SMALL = Shape("kda", 2, 2, 16, 16)
KIMI = Shape("kda", 32, 32, 128, 128)
CONVENTIONAL = get_method("kda", "conventional")
REPLAY = get_method("kda", "replay")
SNAPSHOT = get_method("kda", "snapshot", "verify")
VERIFY = get_method("kda", "replay", "verify")


def token(**arrays: Any) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in arrays.items()}


def drawn(heads: int, d_v: int, d_k: int, seed: int = 0) -> dict[str, Any]:
    """One token of one row and the layer's parameters, as arrays without a batch."""
    rng = np.random.default_rng(seed)
    return {
        "q": rng.standard_normal((heads, d_k)), "k": rng.standard_normal((heads, d_k)),
        "v": rng.standard_normal((heads, d_v)), "gate": rng.standard_normal((heads, d_k)),
        "beta": rng.standard_normal(heads), "a_log": np.log(rng.uniform(1, 16, heads)),
        "dt_bias": rng.standard_normal((heads, d_k)) - 3,
    }  # fmt: skip


def batched(one: dict[str, Any]) -> dict[str, torch.Tensor]:
    return token(**{name: value[None] if name in FAMILY.per_token else value for name, value in one.items()})


# The oracle.


def test_oracle_against_the_recurrence_as_matrices() -> None:
    """S diag(α) (I − β k kᵀ) + β v kᵀ, which the docstring turns into a correction; o = S q."""
    heads, d_v, d_k = 3, 3, 5
    start = np.random.default_rng(9).standard_normal((heads, d_v, d_k))
    state, expected = torch.as_tensor(start)[None], start
    for step in range(6):
        one = drawn(heads, d_v, d_k, step)
        state, out = FAMILY.reference(state, batched(one))
        new, outs = [], []
        for head in range(heads):
            k, q = one["k"][head], one["q"][head]
            k = k / math.sqrt(k @ k + 1e-6)
            q = q / math.sqrt(q @ q + 1e-6) / math.sqrt(d_k)
            alpha = np.exp(-math.exp(one["a_log"][head]) * np.logaddexp(0, one["gate"][head] + one["dt_bias"][head]))
            beta = 1 / (1 + math.exp(-one["beta"][head]))
            decayed = expected[head] @ np.diag(alpha)
            new.append(decayed @ (np.eye(d_k) - beta * np.outer(k, k)) + beta * np.outer(one["v"][head], k))
            outs.append(new[-1] @ q)
        expected = np.stack(new)
        assert np.allclose(state[0].numpy(), expected, rtol=1e-12, atol=1e-14)
        assert np.allclose(out[0].numpy(), np.stack(outs), rtol=1e-12, atol=1e-14)
    assert state.dtype == out.dtype == torch.float64


def test_channels_that_agree_are_gated_deltanet() -> None:
    state = torch.randn(1, 2, 3, 8).double()
    for step in range(4):
        one = drawn(2, 3, 8, step)
        one["gate"], one["dt_bias"] = one["gate"][:, :1].repeat(8, 1), one["dt_bias"][:, :1].repeat(8, 1)
        scalar = {**one, "gate": one["gate"][:, 0], "dt_bias": one["dt_bias"][:, 0]}
        for found, other in zip(
            FAMILY.reference(state, batched(one)), GDN.reference(state, batched(scalar)), strict=True
        ):
            assert torch.allclose(found, other, rtol=1e-12, atol=1e-14)
        state, _ = FAMILY.reference(state, batched(one))
    one["gate"][:, 0] += 1
    assert not torch.allclose(FAMILY.reference(state, batched(one))[0], GDN.reference(state, batched(scalar))[0])


def test_oracle_against_the_unrolled_sum() -> None:
    """S_h = S_0 diag(e^{G_h}) + Σ_j u_j (k_j ⊙ e^{G_h − G_j})ᵀ, and products with a key that do not factor."""
    tokens, state = [], torch.randn(1, 2, 3, 4).double()
    start = state
    for step in range(7):
        inputs = batched(drawn(2, 3, 4, step))
        decay, u, _, _ = FAMILY.update(state, inputs)
        tokens.append((decay.log(), u, inputs["k"]))
        state, _ = FAMILY.reference(state, inputs)
    cached = {name: torch.stack([one[i] for one in tokens], 1) for i, name in enumerate(("g", "u", "k"))}
    live = torch.ones(1, 7, dtype=torch.bool)
    assert torch.allclose(layout.replay_tokens(start, cached, live), state, rtol=1e-12, atol=1e-14)
    after = cached["g"].flip(1).cumsum(1).flip(1) - cached["g"]
    keys = normalized(cached["k"]) * after.exp()
    unrolled = start * cached["g"].sum(1).exp()[..., None, :] + torch.einsum("bjhv,bjhk->bhvk", cached["u"], keys)
    assert torch.allclose(unrolled, state, rtol=1e-12, atol=1e-14)
    x = torch.randn(1, 2, 4).double()
    weights = torch.einsum("bjhk,bhk->bjh", keys, x)  # P_j(x)
    read = ((start * cached["g"].sum(1).exp()[..., None, :]) * x[..., None, :]).sum(-1)
    read += torch.einsum("bjhv,bjh->bhv", cached["u"], weights)
    assert torch.allclose(read, (state * x[..., None, :]).sum(-1), rtol=1e-12, atol=1e-14)
    live[0, 4:] = False
    assert not torch.allclose(layout.replay_tokens(start, cached, live), state)


def test_rounded_corrections_leave_the_state_within_its_slack() -> None:
    state = torch.randn(1, 2, 16, 16).double() * 0.1
    exact, slack = state, torch.zeros_like(state)
    tokens = []
    for step in range(5):
        inputs = batched(drawn(2, 16, 16, step))
        decay, u, _, _ = FAMILY.update(exact, inputs)
        tokens.append((decay.log(), u.half(), inputs["k"]))
        slack = FAMILY.slack(exact, inputs, lambda u: 2.0**-11 * 2.0 ** u.abs().log2().floor(), slack)
        exact, _ = FAMILY.reference(exact, inputs)
    cached = {name: torch.stack([one[i] for one in tokens], 1) for i, name in enumerate(("g", "u", "k"))}
    off = (layout.replay_tokens(state, cached, torch.ones(1, 5, dtype=torch.bool)) - exact).abs()
    assert (off <= slack * (1 + 1e-9)).all()
    assert off.max() > 0.2 * slack.max()


# Inputs.


def test_inputs_and_their_random_data() -> None:
    buffers = FAMILY.inputs(Case(KIMI, "conventional", 2))
    assert buffers["packed"].shape == (2, 12288)  # what Kimi-Linear's profile says of its convolution
    assert buffers["gate"].shape == (2, 32, 128) and buffers["beta"].shape == (2, 32)
    assert (buffers["dt_bias"].shape, buffers["dt_bias"].dtype) == ((32, 128), "float32")
    verify = FAMILY.inputs(Case(KIMI, "snapshot", 2, None, 4))
    assert verify["gate"].shape == (2, 4, 32, 128) and {"drafts", "accepted"} <= set(verify)
    tensors = allocate(FAMILY.inputs(Case(SMALL, "conventional", 3, input_dtype="float32")), "cpu")
    FAMILY.fill_params(tensors, 0)
    rate = -tensors["a_log"].exp()[:, None]
    decays = torch.exp(rate * torch.nn.functional.softplus(tensors["dt_bias"]))
    assert decays.min() >= 0.2 and decays.max() < 0.9991 and decays.std(1).min() > 0
    state = torch.zeros(3, 2, 16, 16).double()
    for seed in range(60):
        FAMILY.fill_inputs(tensors, seed)
        assert all((tensors[name] != 0).all() and tensors[name].isfinite().all() for name in FAMILY.per_token)
        state, _ = FAMILY.reference(state, tensors)
    assert 0.03 < state.square().mean().sqrt() < 1.0


# Kernels.


@pytest.mark.parametrize(("method", "draft_len"), [("conventional", 1), ("replay", 1), ("snapshot", 3)])
def test_inputs_of_other_strides_give_the_same_bits(method: str, draft_len: int) -> None:
    window = 3 if method == "replay" else None
    case = Case(SMALL, method, 2, window, draft_len, input_dtype="float16")
    packed, apart = Session(case, "cpu"), Session(case, "cpu")
    for index in range(4):
        for session in (packed, apart):
            session.family.fill_inputs(session.tensors, index)
        for padding, name in enumerate(FAMILY.per_token, start=1):
            given = packed.tensors[name]
            start = given.dim() - (1 if name == "beta" else 2)
            width = given.shape[start:].numel()
            memory = torch.full((*given.shape[:start], width + padding), math.nan, dtype=given.dtype)
            memory[..., :width] = given.flatten(start)
            apart.tensors[name] = memory[..., :width].unflatten(-1, given.shape[start:])
        assert packed.step(index) == apart.step(index) == (2 if method == "replay" else 1)
        assert torch.equal(packed.tensors["out"], apart.tensors["out"])
        assert torch.equal(packed.tensors["state"].nan_to_num(9), apart.tensors["state"].nan_to_num(9))
    assert packed.tensors["out"].isfinite().all()


def test_extreme_gates() -> None:
    """A channel that underflows forgets; one of decay 1 stays as it is, to the bit, where nothing is written."""
    case = Case(SMALL, "conventional", 1, input_dtype="float32")
    session = Session(case, "cpu")
    t = session.tensors
    before = CONVENTIONAL.committed(case, t, 0)
    t["gate"].fill_(-200.0)
    t["gate"][..., 3] = 80.0
    t["beta"].fill_(-200.0)
    session.step()
    after = CONVENTIONAL.committed(case, t, 1)
    assert after[..., 3].eq(0).all()
    kept = [c for c in range(16) if c != 3]
    assert torch.equal(after[..., kept], before[..., kept])
    assert t["out"].isfinite().all()


def test_records_of_channels_that_underflow() -> None:
    """Sums of log decays far below what e^x can hold neither overflow nor poison the other channels."""
    case = Case(SMALL, "replay", 2, 4, input_dtype="float32")
    session = Session(case, "cpu")
    t = session.tensors
    state = REPLAY.committed(case, t, 0)
    for index in range(9):
        FAMILY.fill_inputs(t, index)
        t["gate"][..., ::3] = 60.0
        if index % 2:
            t["gate"][..., 1::3] = -200.0
        state, out = FAMILY.reference(state, t)
        session.step(index)
        assert torch.allclose(t["out"].double(), out, rtol=1e-5, atol=1e-6)
        assert torch.allclose(REPLAY.committed(case, t, index + 1), state, rtol=1e-5, atol=1e-6)


def test_corrections_saturate_in_fp16() -> None:
    case = Case(SMALL, "replay", 1, 8, input_dtype="float16")
    session = Session(case, "cpu")
    t = session.tensors
    t["state"].mul_(1e6)
    session.step()
    assert t["u_ring"][t["slots"].long()].nan_to_num(0).abs().max() == 65504


def test_drafts_of_channels_that_underflow() -> None:
    """Decays between drafts are sums of log decays: no overflow, no NaN, and the other channels are right."""
    case = Case(SMALL, "replay", 2, 7, 4, "2", input_dtype="float32")
    session = Session(case, "cpu")
    t = session.tensors
    t["drafts"].fill_(4)
    for index in range(6):
        t["accepted"][index % 64] = 2 if index else 0
        state = VERIFY.committed(case, t, index)
        FAMILY.fill_inputs(t, index)
        t["gate"][..., ::3] = 60.0
        t["gate"][:, ::2, :, 1::3] = -200.0
        session.step(index)
        for s in range(4):
            state, out = FAMILY.reference(state, FAMILY.token(t, s))
            assert torch.allclose(t["out"][:, s].double(), out, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [18, 40])
def test_replay_of_long_windows(window: int) -> None:
    case = Case(Shape("kda", 1, 1, 16, 16), "replay", 1, window, input_dtype="float32")
    assert check_case(case, "cpu", REPLAY.configs(case)[0]).reason is None


@pytest.mark.parametrize(
    ("method", "window", "inputs", "steps", "limit"),
    [
        ("conventional", None, "float16", 500, 5e-6),
        ("replay", 16, "float32", 150, 5e-6),
    ],
)
def test_an_fp32_state_is_fp32_end_to_end(
    method: str, window: int | None, inputs: str, steps: int, limit: float
) -> None:
    """At α = 0.999 errors would add up; a checkpoint cast to BF16 would leave 4.4e-3, tf32 products 3.6e-4."""
    case = Case(Shape("kda", 1, 1, 16, 16), method, 1, window, input_dtype=inputs)
    session = Session(case, "cpu")
    t, of = session.tensors, session.method
    t["a_log"].zero_()
    t["dt_bias"].fill_(math.log(math.expm1(1e-3)))  # α = exp(−softplus(bias)) = 0.999
    state = of.committed(case, t, 0)
    for index in range(steps):
        FAMILY.fill_inputs(t, index)
        t["gate"].zero_()
        state, _ = FAMILY.reference(state, t)
        session.step(index)
    error = torch.linalg.vector_norm(of.committed(case, t, steps) - state) / torch.linalg.vector_norm(state)
    assert error < limit


def test_corrections_in_fp16_leave_the_same_error_at_any_time() -> None:
    case = Case(Shape("kda", 1, 1, 16, 128), "replay", 1, 16, input_dtype="float16")
    check_level_of_fp16_corrections(FAMILY, REPLAY, case)


# Declarations.


def test_bytes_by_hand() -> None:
    """q, k, v, gate, beta and slot read, out written; a_log and a bias per channel once a step; records of 1024 B."""
    heads, state = 32, 2 * 2**20
    inputs = 2 * (4 * heads * 128 + heads)
    shared = 4 * heads * 129
    step = CONVENTIONAL.step(KIMI, Point.of(Case(KIMI, "conventional", 256)), 0, False)
    assert step.bytes_read == 256 * (state + inputs + 4) + shared
    assert step.bytes_write == 256 * (state + 2 * heads * 128)
    assert (step.flops, step.shared_read) == (256 * heads * (7 * 128 * 128 + 128), shared)
    point = Point.of(Case(KIMI, "replay", 256, 16))
    step = REPLAY.step(KIMI, point, 7, False)
    assert step.bytes_read == 256 * (state + inputs + 8 + (4 + 4 * heads) + 7 * heads * 1024) + shared
    assert step.bytes_write == 256 * (2 * heads * 128 + 4 * heads + 4 + heads * 1024)
    assert (step.launches, REPLAY.paper(KIMI, point).launches) == (2, 2)
    assert REPLAY.step(KIMI, point, 15, True).bytes_write == 256 * (state + 2 * heads * 128 + 2 * 4 * heads + 4)
    point = Point.of(Case(KIMI, "replay", 256, 16, 4, "T"))
    for flush in (False, True):
        step = VERIFY.step(KIMI, point, 8, flush)
        rows = (12 + 4) if flush else 2 * 12
        cursors = 4 + 4 * heads * (1 + flush)
        assert step.bytes_read == 256 * (state + 4 * inputs + 8 * heads * 1024 + cursors + rows) + shared
        written = 4 * heads * (2 * 128 + 1024) + 4 * heads + 4 + flush * (state + 4 * heads)
        assert (step.bytes_write, step.launches) == (256 * written, 2)
    verify = SNAPSHOT.step(KIMI, Point.of(Case(KIMI, "snapshot", 256, None, 4, "T")), 4, False)
    assert verify.bytes_read == 256 * (state + 4 * inputs + 12) + shared
    assert verify.bytes_write == 256 * 4 * (state + 2 * heads * 128)


def test_what_kernels_do_not_support_has_a_reason() -> None:
    assert "power of two" in str(CONVENTIONAL.supports(Case(Shape("kda", 2, 2, 16, 24), "conventional", 1)))
    fewer = Case(Shape("kda", 4, 2, 16, 16), "snapshot", 1, None, 3)
    assert "4 value heads and 2 key heads" in str(SNAPSHOT.supports(fewer))
    assert "input dtype int32" in str(CONVENTIONAL.supports(Case(SMALL, "conventional", 1, input_dtype="int32")))
    assert "window 65: 1 to 64" in str(REPLAY.supports(Case(SMALL, "replay", 1, 65)))
    assert "window 2: 3 to 64" in str(VERIFY.supports(Case(SMALL, "replay", 1, 2, 5, tree="0,0,1,1")))
    assert "window 3: 4 to 64" in str(VERIFY.supports(Case(SMALL, "replay", 1, 3, 4)))
    assert "draft length T = 17" in str(SNAPSHOT.supports(Case(SMALL, "snapshot", 1, None, 17)))
