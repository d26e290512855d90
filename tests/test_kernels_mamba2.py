"""Mamba-2's oracle against a closed form, and its kernels stepped by hand: cursors, strides, hand-over, bytes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from perfkit.kernels import ring
from perfkit.kernels.mamba2.reference import FAMILY
from perfkit.method import Case, Config, Point
from perfkit.registry import get_method
from perfkit.session import Session, allocate
from perfkit.shape import Shape
from perfkit.spec import specs

SUPER = Shape("mamba2", 128, 8, 64, 128)
SMALL = Shape("mamba2", 2, 1, 16, 16)
CONVENTIONAL, REPLAY = get_method("mamba2", "conventional"), get_method("mamba2", "replay")


# The oracle


def token(**values: Any) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def test_oracle_by_hand() -> None:
    """dt = softplus(log(e − 1)) = 1, S = e⁻¹ + 2·3, o = S/2 + 2/4."""
    inputs = token(x=[[[2.0]]], k=[[[3.0]]], q=[[[0.5]]], dt=[[math.log(math.e - 1) - 0.5]], dt_bias=[0.5], a=[-1.0],
                   d_skip=[0.25])  # fmt: skip
    state, out = FAMILY.reference(torch.ones(1, 1, 1, 1, dtype=torch.float64), inputs)
    assert state.item() == pytest.approx(6.367879441171442, rel=1e-14)
    assert out.item() == pytest.approx(3.683939720585721, rel=1e-14)


def test_oracle_against_the_unrolled_sum() -> None:
    """Eq. 5: S_h = γ_{1:h} S_0 + Σ_j γ_{j+1:h} v_j k_jᵀ, with two heads a group; and the output reads the new state."""
    rng = np.random.default_rng(0)
    steps, heads, groups, d_v, d_k = 7, 4, 2, 3, 5
    x, k, q = (rng.standard_normal((steps, n, d)) for n, d in ((heads, d_v), (groups, d_k), (groups, d_k)))
    dt_raw, bias, skip = rng.standard_normal((steps, heads)), rng.standard_normal(heads), rng.standard_normal(heads)
    a, start = -rng.uniform(0.1, 2, heads), rng.standard_normal((heads, d_v, d_k))
    dt = np.logaddexp(0, dt_raw + bias)
    log_decay = a * dt
    expected = start * np.exp(log_decay.sum(0))[:, None, None]
    for j in range(steps):
        weight = np.exp(log_decay[j + 1 :].sum(0)) * dt[j]
        for head in range(heads):
            expected[head] += weight[head] * np.outer(x[j, head], k[j, head // 2])
    out_expected = np.stack([expected[head] @ q[-1, head // 2] + skip[head] * x[-1, head] for head in range(heads)])

    state = torch.as_tensor(start)[None]
    for j in range(steps):
        inputs = token(x=x[j][None], k=k[j][None], q=q[j][None], dt=dt_raw[j][None], dt_bias=bias, a=a, d_skip=skip)
        state, out = FAMILY.reference(state, inputs)
    assert np.allclose(state[0].numpy(), expected, rtol=1e-12, atol=1e-13)
    assert np.allclose(out[0].numpy(), out_expected, rtol=1e-12, atol=1e-13)
    assert state.dtype == out.dtype == torch.float64


def test_inputs_are_views_of_the_convolutions_output() -> None:
    case = Case(SUPER, "conventional", 2)
    buffers = FAMILY.inputs(case)
    assert buffers["packed"].shape == (2, 10240)  # 128·64 + 2·8·128
    tensors = allocate(buffers, "cpu")
    tensors["packed"].copy_(torch.arange(2 * 10240).view(2, 10240) % 1024)
    assert [tensors[name].data_ptr() - tensors["packed"].data_ptr() for name in "xkq"] == [0, 16384, 18432]
    assert tensors["k"].shape == (2, 8, 128) and tensors["k"].stride() == (10240, 128, 1)
    assert buffers["x"].nbytes == 0 and buffers["packed"].nbytes == 2 * 10240 * 2


def test_random_data_keeps_states_stationary() -> None:
    case = Case(Shape("mamba2", 64, 1, 16, 32), "conventional", 3, input_dtype="float32")
    tensors = allocate(FAMILY.inputs(case), "cpu")
    FAMILY.fill_params(tensors, 0)
    FAMILY.fill_inputs(tensors, 1)
    dt = torch.nn.functional.softplus(tensors["dt_bias"])
    assert dt.min() >= 1e-3 * 0.99 and dt.max() <= 0.1 * 1.01
    assert tensors["a"].min() >= -16.01 and tensors["a"].max() <= -0.99
    assert torch.exp(tensors["a"] * dt).min() >= 0.2 and torch.exp(tensors["a"] * dt).max() < 0.9991
    for name in ("x", "k", "q", "dt"):
        assert tensors[name].isfinite().all() and (tensors[name] != 0).all()
    assert tensors["k"].pow(2).sum(-1).mean() == pytest.approx(1.0, abs=0.5)
    first = tensors["packed"].clone()
    FAMILY.fill_inputs(tensors, 1)
    assert torch.equal(first, tensors["packed"])
    FAMILY.fill_inputs(tensors, 2)
    assert not torch.equal(first, tensors["packed"])


# Kernels, stepped by hand


def advance(session: Session, state: torch.Tensor, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Run one step; return the oracle's new state and output."""
    session.family.fill_inputs(session.tensors, 100 + index)
    expected = session.family.reference(state, session.tensors)
    session.step(index)
    return expected


@pytest.mark.parametrize("window", [1, 2, 3])
def test_cursors_follow_the_rule_and_the_ring_wraps(window: int) -> None:
    """h + 1 = L flushes and moves the ring's origin on by h; rows start at the ring's end and middle."""
    session = Session(Case(SMALL, "replay", 3, window, input_dtype="float32"), "cpu")
    tensors, method = session.tensors, session.method
    n_ring = window + 1
    assert tensors["x_ring"].shape[1] == n_ring
    tensors["slots"][1] = -1
    start = torch.randn(3, 2, 16, 16) * 0.1
    origins = [n_ring - 1, 0, n_ring // 2]
    method.start(session.case, tensors, start, torch.tensor(origins))
    state, h = start.double(), 0
    for index in range(3 * window + 2):
        state, out = advance(session, state, index)
        if h + 1 == window:
            h, origins = 0, [(origin + h) % n_ring for origin in origins]
        else:
            h += 1
        for row in (0, 2):
            cursor = tensors["cursor"][tensors["slots"][row]]
            assert ring.committed_h(cursor).tolist() == [h, h]
            assert ring.origin_of(cursor).tolist() == [origins[row]] * 2
            assert torch.allclose(tensors["out"][row].double(), out[row], rtol=1e-5, atol=1e-6)
        found = method.committed(session.case, tensors, index + 1)
        assert torch.allclose(found[[0, 2]], state[[0, 2]], rtol=1e-5, atol=1e-6)
        assert not found[1].any()
    assert tensors["out"][1].isnan().all()


def test_unused_records_are_never_read() -> None:
    session = Session(Case(SMALL, "replay", 1, 4, input_dtype="float32"), "cpu")
    assert session.tensors["x_ring"].isnan().all() and session.tensors["dt_ring"].isnan().all()
    for index in range(2):
        session.family.fill_inputs(session.tensors, index)
        session.step(index)
        slot = int(session.tensors["slots"][0])
        used = ~session.tensors["dt_ring"][slot].isnan().any(1)
        assert used.tolist() == [position <= index for position in range(5)]
        assert session.tensors["out"].isfinite().all()


@pytest.mark.parametrize("stale", [math.nan, 1e4])
def test_a_row_starts_anew_while_another_goes_on(stale: float) -> None:
    session = Session(Case(SMALL, "replay", 2, 4, input_dtype="float32"), "cpu")
    tensors, method, case = session.tensors, session.method, session.case
    state = method.committed(case, tensors, 0)
    for index in range(2):
        state, _ = advance(session, state, index)
    slot = int(tensors["slots"][0])
    for name in ("x_ring", "k_ring", "dt_ring"):
        tensors[name][slot] = stale
    fresh = torch.randn(2, 2, 16, 16) * 0.1
    view = {**tensors, "slots": torch.tensor([slot, -1], dtype=torch.int32)}
    method.start(case, view, fresh, 3)
    state[0] = fresh[0].double()
    hs = []
    for index in range(2, 8):
        state, out = advance(session, state, index)
        assert torch.allclose(tensors["out"].double(), out, rtol=1e-5, atol=1e-6)
        hs.append(ring.committed_h(tensors["cursor"][tensors["slots"].long(), 0]).tolist())
    assert hs == [[1, 3], [2, 0], [3, 1], [0, 2], [1, 3], [2, 0]]
    assert torch.allclose(method.committed(case, tensors, 8), state, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("method", "window"), [("conventional", None), ("replay", 2)])
def test_inputs_of_other_strides_give_the_same_bits(method: str, window: int | None) -> None:
    case = Case(Shape("mamba2", 4, 2, 16, 16), method, 2, window, input_dtype="float16")
    packed, apart = Session(case, "cpu"), Session(case, "cpu")
    for index in range(3):
        for session in (packed, apart):
            session.family.fill_inputs(session.tensors, index)
        for name, padding in (("x", 5), ("k", 3), ("q", 1), ("dt", 7)):
            given = packed.tensors[name]
            width = given[0].numel()
            memory = torch.full((2, width + padding), math.nan, dtype=given.dtype)
            memory[:, :width] = given.reshape(2, width)
            apart.tensors[name] = memory[:, :width].unflatten(1, given.shape[1:])
            assert apart.tensors[name].stride(0) == width + padding != given.stride(0)
        assert packed.step(index) == apart.step(index) == 1
        assert torch.equal(packed.tensors["out"], apart.tensors["out"])
    assert packed.tensors["out"].isfinite().all()
    for name in packed.snapshot()[0]:
        ours, theirs = packed.tensors[name], apart.tensors[name]
        assert torch.equal(ours.nan_to_num(9), theirs.nan_to_num(9)), name


def test_slot_ids_need_not_be_row_ids() -> None:
    case = Case(SMALL, "replay", 2, 3, input_dtype="float32", options=(("n_slots", 9),))
    session = Session(case, "cpu")
    assert session.tensors["state"].shape[0] == 9
    tensors = session.tensors
    tensors["slots"].copy_(torch.tensor([8, 3], dtype=torch.int32))
    start = torch.randn(2, 2, 16, 16)
    session.method.start(case, tensors, start)
    others = [slot for slot in range(9) if slot not in (8, 3)]
    before = tensors["state"][others].clone()
    state = start.double()
    for index in range(4):
        state, out = advance(session, state, index)
        assert torch.allclose(tensors["out"].double(), out, rtol=1e-5, atol=1e-6)
    assert torch.equal(tensors["state"][others], before)
    assert tensors["x_ring"][others].isnan().all()


# Declarations


def test_window_is_a_run_time_argument() -> None:
    """A sweep over L must not compile again: what a kernel is specialized for depends on L only by powers of two."""

    def specialized(window: int) -> list[Any]:
        case = Case(SUPER, "replay", 256, window)
        launches = REPLAY.launches(case, REPLAY.configs(case)[0], specs(case, REPLAY, FAMILY), 0)
        return [(launch.name, dict(launch.constexprs), dict(launch.config)) for launch in launches]

    assert specialized(9) == specialized(12) == specialized(16)
    assert specialized(16) != specialized(17)
    case = Case(SUPER, "replay", 256, 12)
    launches = list(REPLAY.launches(case, REPLAY.configs(case)[0], specs(case, REPLAY, FAMILY), 0))
    assert any(12 in [arg for arg in launch.args if isinstance(arg, int)] for launch in launches)


def test_conventional_bytes_of_super() -> None:
    """By hand: 4 MiB of state each way; x 16384, k and q 2048 each, dt 256 and a slot id a row; 1536 of parameters."""
    step = CONVENTIONAL.step(SUPER, Point.of(Case(SUPER, "conventional", 256)), 0, False)
    assert step.bytes_read == 256 * (4194304 + 16384 + 2 * 2048 + 256 + 4) + 1536
    assert step.bytes_write == 256 * (4194304 + 16384)
    assert (step.launches, step.shared_read) == (1, 1536)


def test_replay_bytes_of_super() -> None:
    """A record is x 16384, k 2048 and dt 512 bytes a layer; a step that flushes writes the state and no record."""
    point = Point.of(Case(SUPER, "replay", 1, 16))
    quiet, flush = (REPLAY.step(SUPER, point, h, due) for h, due in ((10, False), (15, True)))
    idle = REPLAY.step(SUPER, point, 0, False)
    assert quiet.bytes_read - idle.bytes_read == 10 * 18944
    assert flush.bytes_read - idle.bytes_read == 15 * 18944
    assert flush.bytes_write - quiet.bytes_write == 4194304 - 18944
    assert quiet.bytes_write == 16384 + 18944 + 4 * 128


def test_steps_are_counted_for_arrays_as_for_numbers() -> None:
    h, due = np.arange(16), np.arange(16) == 15
    many = REPLAY.step(SUPER, Point.of(Case(SUPER, "replay", 8, 16)), h, due)
    for i in range(16):
        one = REPLAY.step(SUPER, Point.of(Case(SUPER, "replay", 8, 16)), int(h[i]), bool(due[i]))
        assert many.bytes_read[i] == one.bytes_read and many.bytes_write[i] == one.bytes_write
        assert many.flops[i] == one.flops


def test_memory_per_request() -> None:
    """Super: 4 MiB of state a layer whatever the batch; replay adds a ring of L + 1 records and the cursors."""
    for batch in (1, 3, 256):
        assert CONVENTIONAL.memory_per_request(Case(SUPER, "conventional", batch)) == 4194304
        ours = REPLAY.memory_per_request(Case(SUPER, "replay", batch, 16))
        assert ours == 4194304 + 17 * 18944 + 4 * 128
    half = replace(Case(SUPER, "conventional", 4), state_dtype="bfloat16")
    assert CONVENTIONAL.memory_per_request(half) == 2097152


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case(SUPER, "replay", 1, None), "window None"),
        (Case(SUPER, "replay", 1, 129), "window 129"),
        (Case(Shape("mamba2", 2, 1, 16, 48), "replay", 1, 4), "d_k = 48 is not a power of two"),
        (Case(SUPER, "replay", 1, 4, state_dtype="float8_e4m3fn"), "state dtype float8_e4m3fn"),
        (Case(SUPER, "conventional", 1, input_dtype="int32"), "input dtype int32"),
    ],
)
def test_what_kernels_do_not_support_has_a_reason(case: Case, reason: str) -> None:
    said = get_method("mamba2", case.method).supports(case)
    assert said is not None and said.startswith(reason)


@pytest.mark.parametrize("shape", [SUPER, Shape("mamba2", 96, 8, 80, 128), Shape("mamba2", 3, 1, 16, 16)])
@pytest.mark.parametrize("method", [CONVENTIONAL, REPLAY], ids=lambda method: method.key)
def test_configurations_divide_the_heads_and_survive_as_text(method: Any, shape: Shape) -> None:
    for batch in (1, 4, 5, 512):
        configs = method.configs(Case(shape, method.key, batch, 16 if method.windowed else None))
        assert len(set(configs)) == len(configs) >= 1
        for config in configs:
            assert Config.parse(str(config)) == config
            values = dict(config.values)
            assert shape.heads_per_group % values.get("heads", 1) == 0


def test_periods() -> None:
    assert CONVENTIONAL.period(Case(SUPER, "conventional", 1)) == 1
    assert REPLAY.period(Case(SUPER, "replay", 1, 16)) == 16
