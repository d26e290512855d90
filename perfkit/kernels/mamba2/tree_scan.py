"""Read-only scan of a step's T positions: outputs from one state, nothing stored but the inputs.

The second half of a STree step. With S the state that the last step committed, M the positions' mutual weights and D
their decays since S, head by head and as matrix products,

    out[s] = D_s S q_s + Σ_j W_js dt_j (k_j · q_s) x_j + d_skip x_s

where W_js = exp(sum of g over the path from j, exclusive, to s) for j an ancestor of s or s itself, else 0, and
D_s = exp(sum of g over the path to s). A chain is the tree in which everything earlier is an ancestor. For BF16 inputs
the FP32 factors are split into BF16 terms whose products tensor cores add up in FP32: the state and M in two (an error
of 2⁻¹⁷), the exponents' g in three, which hold it whole.

What it leaves for the next step's replay is the input cache: x and k as they came, dt in FP32 after bias and softplus.

Source: paper, App. A.1 (STree), Eq. 6; path sums for trees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfkit.kernels.gates import softplus
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.mamba2 import layout
from perfkit.kernels.replay import SMALL_BATCH_HEADS
from perfkit.method import Case, Config, Launch, Number, Point
from perfkit.shape import Shape


@triton.jit
def _two_terms(value):
    """Split FP32 into two BF16 terms, high and low."""
    high = value.to(tl.bfloat16)
    return high, (value - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _product(q, k, acc, SPLIT: tl.constexpr):
    """acc + q·kᵀ, both in the input dtype."""
    if SPLIT:
        acc = tl.dot(q, tl.trans(k), acc)
    else:
        acc += tl.dot(q.to(tl.float32), tl.trans(k.to(tl.float32)), input_precision="ieee")
    return acc


@triton.jit
def _product_state(q, s, acc, SPLIT: tl.constexpr):
    """acc + q·sᵀ of a q in the input dtype and an s in the state's, which one BF16 term holds if that is BF16."""
    if SPLIT:
        if s.dtype == tl.bfloat16:
            acc = tl.dot(q, tl.trans(s), acc)
        else:
            high, low = _two_terms(s.to(tl.float32))
            acc = tl.dot(q, tl.trans(high), tl.dot(q, tl.trans(low), acc))
    else:
        acc += tl.dot(q.to(tl.float32), tl.trans(s.to(tl.float32)), input_precision="ieee")
    return acc


@triton.jit
def _product_weights(weight, x, acc, SPLIT: tl.constexpr):
    """acc + weight·x of an FP32 weight and an x in the input dtype."""
    if SPLIT:
        high, low = _two_terms(weight)
        acc = tl.dot(high, x, tl.dot(low, x, acc))
    else:
        acc += tl.dot(weight, x.to(tl.float32), input_precision="ieee")
    return acc


@triton.jit
def _weights(ancestor, g, dt, kq, skip, SPLIT: tl.constexpr):
    """Weights of all positions' x in all outputs, [s, j], and each position's decay since the state, [s].

    Args:
        ancestor: [s, j] bool, j is an ancestor of s or s itself.
        g: [NODES] FP32, log decays, zero where there is no position.
        dt: [NODES] FP32.
        kq: [s, j] FP32, k_j · q_s.
        skip: the head's d_skip: the weight of a position's own x grows by it.
    """
    node = tl.arange(0, ancestor.shape[0])
    # exponent[s, j] = Σ_l g_l over the ancestors l of s that are not j's: sums, never differences of sums.
    after = tl.where(tl.trans(ancestor), 0.0, g[:, None])  # [l, j]
    if SPLIT:
        high, rest = _two_terms(after)
        left = after - high.to(tl.float32) - rest.to(tl.float32)
        path = ancestor.to(tl.bfloat16)
        exponent = tl.dot(path, high, tl.dot(path, rest, tl.dot(path, left.to(tl.bfloat16))))
    else:
        exponent = tl.dot(ancestor.to(tl.float32), after, input_precision="ieee")
    weight = tl.where(ancestor, tl.exp(exponent) * dt[None, :] * kq, 0.0)
    weight += tl.where(node[:, None] == node[None, :], skip, 0.0)
    return weight, tl.exp(tl.sum(tl.where(ancestor, g[None, :], 0.0), axis=1))


@triton.jit
def _tree_scan_kernel(
    state_ptr, x_cache_ptr, k_cache_ptr, dt_cache_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr, skip_ptr,
    slots_ptr, drafts_ptr, ancestors_ptr, out_ptr,
    row_x, row_k, row_q, row_dt, stride_x, stride_k, stride_q, stride_dt,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr, TREE: tl.constexpr,
    SPLIT: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program serves HEADS heads of one group of one row; K·Q once for all of them."""
    NODES: tl.constexpr = 16  # the most positions of a step, and the shortest sum of a matrix product
    per_group: tl.constexpr = N_V // N_K
    pid = tl.program_id(0)
    row = pid // (N_V // HEADS)
    first_head = pid % (N_V // HEADS) * HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    n = tl.load(drafts_ptr + row)
    row = row.to(tl.int64)
    group = first_head // per_group
    node = tl.arange(0, NODES)
    real = node < n
    if TREE:
        masks = tl.load(ancestors_ptr + row * T + node, mask=real, other=0)
        ancestor = ((masks[:, None] >> node[None, :]) & 1) == 1
    else:
        ancestor = (node[None, :] <= node[:, None]) & real[:, None]

    # The state row is taken in two halves, one after the other, so that half the registers hold it; so are k and q.
    c = tl.arange(0, HALF)
    at_k = group * D_K + c[None, :]
    q_base = q_ptr + row * row_q + node[:, None] * stride_q + at_k
    k_base = k_ptr + row * row_k + node[:, None] * stride_k + at_k
    k_cache = k_cache_ptr + (slot * T + node[:, None]) * (N_K * D_K) + at_k
    keeps = real[:, None] & (first_head % per_group == 0)
    q = tl.load(q_base, mask=real[:, None], other=0.0)
    k = tl.load(k_base, mask=real[:, None], other=0.0)
    tl.store(k_cache, k, mask=keeps)
    kq = _product(q, k, tl.zeros([NODES, NODES], tl.float32), SPLIT)  # [s, j]
    q_rest = q
    if HALF < D_K:
        q_rest = tl.load(q_base + HALF, mask=real[:, None], other=0.0)
        k = tl.load(k_base + HALF, mask=real[:, None], other=0.0)
        tl.store(k_cache + HALF, k, mask=keeps)
        kq = _product(q_rest, k, kq, SPLIT)

    for i in tl.range(0, HEADS, num_stages=1):
        head = first_head + i
        raw = tl.load(dt_ptr + row * row_dt + node * stride_dt + head, mask=real, other=0.0).to(tl.float32)
        dt = tl.where(real, softplus(raw + tl.load(bias_ptr + head)), 0.0)
        tl.store(dt_cache_ptr + (slot * T + node) * N_V + head, dt, mask=real)
        weight, decay = _weights(ancestor, dt * tl.load(a_ptr + head), dt, kq, tl.load(skip_ptr + head), SPLIT)
        s_base = state_ptr + (slot * N_V + head) * (D_V * D_K) + c[None, :]
        x_base = x_ptr + row * row_x + head * D_V + node[:, None] * stride_x
        x_cache = x_cache_ptr + (slot * T * N_V + head) * D_V + node[:, None] * (N_V * D_V)
        out_base = out_ptr + (row * T * N_V + head) * D_V + node[:, None] * (N_V * D_V)
        for v0 in tl.range(0, D_V, ROWS, num_stages=STAGES):
            v = v0 + tl.arange(0, ROWS)
            live = v < D_V
            here = real[:, None] & live[None, :]
            x = tl.load(x_base + v[None, :], mask=here, other=0.0)
            tl.store(x_cache + v[None, :], x, mask=here)
            s = tl.load(s_base + v[:, None] * D_K, mask=live[:, None], other=0.0)
            out = _product_state(q, s, tl.zeros([NODES, ROWS], tl.float32), SPLIT)
            if HALF < D_K:
                s = tl.load(s_base + v[:, None] * D_K + HALF, mask=live[:, None], other=0.0)
                out = _product_state(q_rest, s, out, SPLIT)
            out = _product_weights(weight, x, out * decay[:, None], SPLIT)
            tl.store(out_base + v[None, :], out.to(out_ptr.dtype.element_ty), mask=here)


def scan_launch(case: Case, config: Config, tensors: Mapping[str, Any], states: Any) -> Launch:
    """Return the scan of a step.

    Args:
        case: a verify case.
        config: with ``heads`` of a program, ``rows`` of d_v a tile, ``warps`` and ``stages`` of the tiles' pipeline.
        tensors: the family's inputs, read, and ``out``, written; the input cache, written: ``x_cache`` [slots, T,
            n_v_heads, d_v] and ``k_cache`` [slots, T, n_k_heads, d_k] in the input dtype, ``dt_cache`` [slots, T,
            n_v_heads] FP32. A row's positions from its T on are left alone.
        states: [slots, n_v_heads, d_v, d_k] in the state dtype, read: what the step before committed.
    """
    shape, t = case.shape, tensors
    strides = [t[name].stride(dim) for dim in (0, 1) for name in ("x", "k", "q", "dt")]
    masks = t["slots"] if case.tree is None else t["ancestors"]  # a chain reads none
    return Launch(
        _tree_scan_kernel,
        (case.batch * shape.n_v_heads // config["heads"],),
        (states, t["x_cache"], t["k_cache"], t["dt_cache"], t["x"], t["k"], t["q"], t["dt"], t["a"], t["dt_bias"],
         t["d_skip"], t["slots"], t["drafts"], masks, t["out"], *strides),
        {"N_V": shape.n_v_heads, "N_K": shape.n_k_heads, "D_V": shape.d_v, "D_K": shape.d_k, "T": case.draft_len,
         "TREE": case.tree is not None, "SPLIT": case.input_dtype == "bfloat16", "HEADS": config["heads"],
         "ROWS": config["rows"], "HALF": max(shape.d_k // 2, min(shape.d_k, 16)), "STAGES": config["stages"]},
        {"num_warps": config["warps"], "num_stages": config["stages"]},
    )  # fmt: skip


def scan_bytes(shape: Shape, point: Point) -> tuple[Number, Number, Number]:
    """Return the bytes that a scan reads and writes per row, and those that it reads once for all rows.

    The state, the inputs, slot id, T and a tree's masks; outputs and the cache of the inputs; a, dt_bias and d_skip.
    """
    io = layout.verify_bytes(shape, point)
    row = io.row - 4  # the acceptance is the replay's to read
    return shape.state_elements * point.state_bytes + io.read + row, io.write + io.keep, io.shared


def scan_configs(case: Case) -> Sequence[Mapping[str, int]]:
    """Return heads a program, rows of d_v a tile, warps and pipeline stages; the default first.

    One-warp programs of one head need the fewest registers, so that most of them are in flight; several heads share
    K·Q but hold more.
    """
    shape = case.shape
    tiled = ((1, 16, 1, 2), (1, 16, 1, 3), (1, 32, 1, 2), (1, 32, 2, 2), (2, 16, 1, 2))
    whole = ((1, 64, 4, 1),) if shape.d_v % 64 == 0 else ((1, 16, 2, 2),)
    small = case.batch * shape.n_v_heads <= SMALL_BATCH_HEADS
    scale = max(1, shape.d_k // 128)  # a longer state row takes more threads, not more registers
    return [
        {"heads": heads, "rows": rows, "warps": warps * scale, "stages": stages}
        for heads, rows, warps, stages in ((*whole, *tiled) if small else (*tiled, *whole))
        if shape.heads_per_group % heads == 0 and (rows == 16 or shape.d_v % rows == 0)
    ]
