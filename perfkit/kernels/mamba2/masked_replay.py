"""The masked replay: run the tokens that the last step committed, from a cache of inputs, in place on the checkpoint.

The first launch of ``activation_replay`` and of ``stree``. It takes T steps whatever was accepted; a step whose token
was not accepted loads nothing of it and leaves the state as it is, bit for bit.

The steps' decays are gathered first: the state decays once by the product of all, and each token's outer product is
weighted by those after it, so that a token costs each element of the state one multiply-add and not two operations.

Source: paper, App. A.1 (activation replay of Snakes and Ladders; STree), Eq. 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfkit.kernels import recovery
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.mamba2 import layout
from perfkit.kernels.recovery import Kept, row_scale
from perfkit.method import ACCEPTANCE_STEPS, Buffer, Case, Launch, Number, Point
from perfkit.shape import Shape


@triton.jit
def _token(x_at, k_at, on, live):
    """Load x [ROWS] and k [D_K] of one token; −1 and 0 where it was not accepted."""
    x = tl.load(x_at, mask=live & on, other=-1.0)
    k = tl.load(k_at, mask=on, other=0.0)
    return x, k


@triton.jit
def _replay(s_at, x_at, k_at, dt_at, chosen, a, live, x_token, k_token, dt_token, T, AHEAD):
    """Return a tile of the state at ``s_at`` advanced by the tokens whose bits ``chosen`` has, FP32 [ROWS, D_K].

    x and k are loaded AHEAD tokens before they are used, the first before the state.
    """
    dts = ()
    for t in tl.static_range(T):
        dts += (tl.load(dt_at + t * dt_token, mask=(chosen >> t) % 2 == 1, other=0.0),)
    tokens = ()
    for t in tl.static_range(AHEAD):
        tokens += (_token(x_at + t * x_token, k_at + t * k_token, (chosen >> t) % 2 == 1, live),)
    s = tl.load(s_at, mask=live[:, None], other=0.0).to(tl.float32)

    later = 0.0  # sum of g = a·dt over the tokens after t
    weights = ()
    for i in tl.static_range(T):
        weights = (tl.exp(later) * dts[T - 1 - i],) + weights  # noqa: RUF005
        later += a * dts[T - 1 - i]
    # Where nothing was accepted the state decays by exp(0) = 1 and each token adds 0 · −1 · 0 = −0, which changes no
    # number, not even a negative zero.
    s *= tl.exp(later)
    for t in tl.static_range(T):
        if t + AHEAD < T:
            on = (chosen >> (t + AHEAD)) % 2 == 1
            tokens += (_token(x_at + (t + AHEAD) * x_token, k_at + (t + AHEAD) * k_token, on, live),)
        x, k = tokens[t]
        s += (weights[t] * x.to(tl.float32))[:, None] * k.to(tl.float32)[None, :]
    return s


# A row of ``accepted`` is aligned at some steps and not at others: one kernel has to serve all.
@triton.jit(do_not_specialize_on_alignment=["accepted_ptr"])
def _masked_replay_kernel(
    state_ptr, x_cache_ptr, k_cache_ptr, dt_cache_ptr, a_ptr, slots_ptr, accepted_ptr,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr,
    PATH: tl.constexpr, ROWS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """A program takes ROWS rows of one head's state. PATH: ``accepted`` holds a bitmask of tokens, not their number."""
    tiles: tl.constexpr = (D_V + ROWS - 1) // ROWS
    pid = tl.program_id(0)
    row = pid // (N_V * tiles)
    head = pid // tiles % N_V
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    accepted = tl.load(accepted_ptr + row)
    a = tl.load(a_ptr + head)
    chosen = accepted if PATH else (1 << accepted) - 1  # bit t: token t was accepted
    v = pid % tiles * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, D_K)
    live = v < D_V
    x_at = x_cache_ptr + (slot * (T * N_V) + head) * D_V + v
    k_at = k_cache_ptr + (slot * (T * N_K) + head // (N_V // N_K)) * D_K + c
    dt_at = dt_cache_ptr + slot * (T * N_V) + head
    s_at = state_ptr + (slot * N_V + head) * (D_V * D_K) + v[:, None] * D_K + c[None, :]
    s = _replay(s_at, x_at, k_at, dt_at, chosen, a, live, N_V * D_V, N_K * D_K, N_V, T, AHEAD)
    tl.store(s_at, s.to(state_ptr.dtype.element_ty), mask=live[:, None])


class InputCache:
    """What Mamba-2's recovery schemes keep of a token: x, k and dt."""

    def kept(self, case: Case) -> Kept:
        """Return x [n_v_heads, d_v] and k [n_k_heads, d_k] in the input dtype, and dt [n_v_heads] float32.

        dt is kept after bias and softplus.
        """
        shape = case.shape
        return {
            "x": ((shape.n_v_heads, shape.d_v), case.input_dtype),
            "k": ((shape.n_k_heads, shape.d_k), case.input_dtype),
            "dt": ((shape.n_v_heads,), "float32"),
        }

    def rerun(self, tensors: Mapping[str, Any], state: Any, cached: Mapping[str, Any], live: Any) -> Any:
        """Return states advanced by cached tokens, in float64. Source: paper, Eq. 5."""
        return layout.replay_tokens(tensors, state, cached, live)


def cache_buffers(case: Case) -> dict[str, Buffer]:
    """Return the cache of a step's inputs: written by the step, read by the replay of the next one."""
    return recovery.cache_buffers(case, InputCache().kept(case))


def replay_launch(case: Case, tensors: Mapping[str, Any], step: int, rows: int, warps: int) -> Launch:
    """Return the launch that brings the checkpoint ``state`` up to date at the start of step ``step``.

    Reads x_cache, k_cache and dt_cache of the accepted tokens, ``a``, ``slots`` and this step's ``accepted`` (of a
    tree ``path``); reads and writes ``state`` [slots, n_v_heads, d_v, d_k]. A program per row, head and tile of
    ``rows`` rows of the state.
    """
    shape, t = case.shape, tensors
    accepted = t["path" if case.tree is not None else "accepted"][step % ACCEPTANCE_STEPS]
    return Launch(
        _masked_replay_kernel,
        (case.batch * shape.n_v_heads * -(-shape.d_v // rows),),
        (t["state"], t["x_cache"], t["k_cache"], t["dt_cache"], t["a"], t["slots"], accepted),
        {"N_V": shape.n_v_heads, "N_K": shape.n_k_heads, "D_V": shape.d_v, "D_K": shape.d_k, "T": case.draft_len,
         "PATH": case.tree is not None, "ROWS": rows, "AHEAD": min(case.draft_len, AHEAD)},
        {"num_warps": warps, "num_stages": 1},
    )  # fmt: skip


def replay_bytes(shape: Shape, point: Point, accepted: Number) -> tuple[Number, Number]:
    """Return the bytes (read, written) per row by a masked replay of ``accepted`` tokens.

    The state once each way; x, k and dt of the accepted tokens; slot id and acceptance. The launch also reads ``a``,
    4·n_v_heads bytes for all rows.
    """
    state = shape.state_elements * point.state_bytes
    token = layout.verify_bytes(shape, point).keep / point.draft_len
    return state + accepted * token + 8, state


def replayed(tensors: Mapping[str, Any], step: int) -> Any:
    """Return the rows' checkpoints advanced by the tokens accepted at ``step``, float64 [batch, n_v_heads, d_v, d_k].

    What ``committed`` of a method with this cache is; zeros for padded rows.
    """
    slots = tensors["slots"].long()
    cached = {name: tensors[f"{name}_cache"][slots.clamp(min=0)] for name in ("x", "k", "dt")}
    on = layout.accepted_nodes(tensors, step, cached["dt"].shape[1]) & (slots >= 0)[:, None]
    return layout.replay_tokens(tensors, layout.load_state(tensors), cached, on)


#: Tokens loaded before they are used: a load then has the time of two tokens of all warps of an SM to arrive.
AHEAD = 2


#: Tile heights and warps at d_k = 128, the default first: small tiles keep the most requests to memory in flight.
REPLAY_TILES = ((16, 1), (8, 1), (4, 1), (32, 4))


def replay_configs(case: Case) -> list[tuple[int, int]]:
    """Return candidates (rows, warps), the default first."""
    return [(rows, warps * row_scale(case.shape)) for rows, warps in REPLAY_TILES]
