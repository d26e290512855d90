"""ReplaySSM verify for Mamba-2: T positions against checkpoint and buffer; rollback is a cursor that does not move.

A step appends the records of its T positions behind the h committed ones and computes all outputs without a state
(Eq. 6). Rejected records lie beyond h and are overwritten by the next step. A row with h + T > L first folds its h
committed records into the checkpoint: they stay committed whatever the verifier returns, so this needs no acceptance.
T is the row's own in this step, and of a tree the longest path that it has: a row of one position waits until h = L.

A step is two launches: one serves the rows that flush and marks their cursors, the other all rows without a mark, and
takes it off. Each has the registers and tiles that its own work needs; in one kernel with a branch the fold's registers
took 20 % from rows that do not flush. Programs of the first stay and look for rows that flush by a cursor of each row
(:mod:`perfkit.kernels.flushing`), and the second follows it closely (:mod:`perfkit.kernels.following`). Both stream the
state: what a program's heads need beside it is computed at once and up front, then all tiles follow in one pipelined
loop.

One CUDA graph serves rows that flush and rows that do not. What the step before committed is added to the cursors at
the start of the next one, by the programs that own them (:mod:`perfkit.kernels.ring`), so that a chain needs no commit
launch, and a row that sits out keeps its acceptance. A tree's accepted path is gathered to the front by a launch of
its own (:mod:`perfkit.kernels.replay_commit`).

Source: paper, Alg. 2, Eq. 6, App. D; the masks of a tree are the ancestors of its nodes instead of all nodes before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfkit.kernels import replay
from perfkit.kernels.flushing import SCAN, fold_programs, how_many, ranked, verify_ranks
from perfkit.kernels.following import close_pair, follow, let_follow
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.layout import blocked_records
from perfkit.kernels.mamba2 import layout
from perfkit.kernels.mamba2.replay_parts import draft_weights, folds, key_products
from perfkit.kernels.paths import committed_by, paths
from perfkit.kernels.products import load_rows, of_head, product, product_exact, product_onto, store_rows
from perfkit.kernels.replay import SMALL_BATCH_HEADS, at_least_16, paired_heads, ring_slots, tiled_launch
from perfkit.kernels.replay_commit import BLOCK, commit_launch, value_blocks
from perfkit.kernels.ring import (
    cursor_h,
    cursor_keep,
    cursor_load,
    cursor_marked,
    cursor_origin,
    cursor_pack,
    cursor_with_mark,
    cursor_without_mark,
    wrap,
)
from perfkit.kernels.targets import apart, capability
from perfkit.method import (
    ACCEPTANCE_STEPS,
    Buffer,
    Case,
    Config,
    Launch,
)


@triton.jit
def _prepare(
    k_ring, dt_ring, k_base, q_base, dt_new, bias_ptr, skip_ptr, ancestors_ptr, a, at, place, old_j, j,
    h, n, stride_k, stride_q, stride_dt, keep,
    N_V: tl.constexpr, N_K: tl.constexpr, D_K: tl.constexpr, TREE: tl.constexpr,
    SPLIT: tl.constexpr, HEADS: tl.constexpr, DRAFTS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """What both launches compute of a program's heads before they stream the states; the drafts' records are kept.

    Returns q [d_k, positions], the drafts' weights [heads, drafts, positions] and decays [heads, positions], the
    committed records' weights [heads, records] and the checkpoint's decay [heads].
    """
    c = tl.arange(0, D_K)
    p = tl.arange(0, POSITIONS)
    q = tl.load(q_base + p[None, :] * stride_q + c[:, None], mask=(p < n)[None, :], other=0.0)
    k = load_rows(k_base, j * stride_k, j < n, D_K)
    if keep:
        store_rows(k_ring, place * (N_K * D_K), k, j < n, D_K)
    on_path, later = paths(ancestors_ptr, n, j, p, TREE)
    new_weights, decays = draft_weights(
        dt_ring, dt_new, a, bias_ptr, skip_ptr, key_products(k, q, SPLIT), on_path, later, place, j, p, n, stride_dt,
        N_V, HEADS, DRAFTS, POSITIONS, SPLIT,
    )  # fmt: skip
    old_weights, fold_decays = folds(dt_ring, a, at, old_j, h, N_V, HEADS, SPLIT)
    return q, new_weights, decays, old_weights, fold_decays


@triton.jit
def _fold(
    state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr, skip_ptr,
    slots_ptr, drafts_ptr, took_ptr, ancestors_ptr, out_ptr, row, piece, n_ring, row_x, row_k, row_q, row_dt, stride_x,
    stride_k, stride_q, stride_dt,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr, TREE: tl.constexpr,
    SPLIT: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, RECORDS: tl.constexpr, DRAFTS: tl.constexpr,
    POSITIONS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Outputs of HEADS heads of a row from their new checkpoints, into which their h records are folded."""
    tiles: tl.constexpr = (D_V + ROWS - 1) // ROWS
    blocks: tl.constexpr = (D_V + BLOCK - 1) // BLOCK
    pieces: tl.constexpr = N_V // HEADS
    first_head = piece % pieces * HEADS
    p = tl.arange(0, POSITIONS)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    masks_ptr = ancestors_ptr + row.to(tl.int64) * T
    n, took, _ = committed_by(drafts_ptr + row, took_ptr + row, masks_ptr, p, TREE)
    cursor = cursor_load(cursor_ptr + slot * N_V + first_head, HEADS)
    h = cursor_h(cursor) + took
    row = row.to(tl.int64)
    origin = cursor_origin(cursor)
    first = wrap(origin + h, n_ring)
    group = first_head // (N_V // N_K)
    j = tl.arange(0, DRAFTS)
    old_j = tl.arange(0, RECORDS)
    place = wrap(first + j, n_ring)
    at = wrap(origin + old_j, n_ring)
    i_head = tl.arange(0, HEADS)
    # Half a state row at a time takes half the registers.
    COLS: tl.constexpr = D_K // CHUNKS
    c0 = tl.arange(0, COLS)
    c1 = (CHUNKS - 1) * COLS + tl.arange(0, COLS)
    a = tl.load(a_ptr + first_head + i_head)
    q_base = q_ptr + row * row_q + group * D_K
    k_base = k_ptr + row * row_k + group * D_K
    k_ring = k_ring_ptr + slot * n_ring * (N_K * D_K) + group * D_K
    dt_ring = dt_ring_ptr + slot * n_ring * N_V + first_head
    x_ring = x_ring_ptr + (slot * N_V + first_head) * (blocks * BLOCK) * n_ring
    x_new = x_ptr + row * row_x + first_head * D_V
    _, new_weights, decays, old_weights, fold_decays = _prepare(
        k_ring, dt_ring, k_base, q_base, dt_ptr + row * row_dt + first_head, bias_ptr + first_head,
        skip_ptr + first_head, masks_ptr, a, at, place, old_j, j, h, n, stride_k, stride_q, stride_dt,
        first_head % (N_V // N_K) == 0, N_V, N_K, D_K, TREE, SPLIT, HEADS, DRAFTS, POSITIONS,
    )  # fmt: skip
    tl.store(cursor_ptr + slot * N_V + first_head + i_head,
             tl.full([HEADS], 0, tl.int32) + cursor_with_mark(cursor_pack(0, first)))  # fmt: skip

    held = (old_j < h)[:, None]
    k0 = tl.load(k_ring + at[:, None] * (N_K * D_K) + c0[None, :], mask=held, other=0.0)
    k1 = tl.load(k_ring + at[:, None] * (N_K * D_K) + c1[None, :], mask=held, other=0.0)
    q0 = tl.load(q_base + p[None, :] * stride_q + c0[:, None], mask=(p < n)[None, :], other=0.0)
    q1 = tl.load(q_base + p[None, :] * stride_q + c1[:, None], mask=(p < n)[None, :], other=0.0)
    s_base = state_ptr + (slot * N_V + first_head) * (D_V * D_K)
    out_base = out_ptr + row * (T * N_V * D_V) + first_head * D_V
    r = tl.arange(0, ROWS)
    for i in tl.range(0, HEADS * tiles, num_stages=STAGES):
        head = i // tiles
        v = i % tiles * ROWS + r
        live = (v < D_V)[:, None]
        s_ptr = s_base + head * (D_V * D_K) + v[:, None] * D_K
        s = tl.load(s_ptr + c0[None, :], mask=live, other=0.0).to(tl.float32)
        if CHUNKS == 2:
            s1 = tl.load(s_ptr + c1[None, :], mask=live, other=0.0).to(tl.float32)
        at_v = (head * D_V + v)[:, None]
        x_at = ((head * blocks + v // BLOCK)[:, None] * n_ring + at[None, :]) * BLOCK + (v % BLOCK)[:, None]
        x_old = tl.load(x_ring + x_at, mask=live & (old_j < h)[None, :], other=0.0)
        x = tl.load(x_new + j[None, :] * stride_x + at_v, mask=live & (j < n)[None, :], other=0.0)
        new_at = ((head * blocks + v // BLOCK)[:, None] * n_ring + place[None, :]) * BLOCK + (v % BLOCK)[:, None]
        tl.store(x_ring + new_at, x, mask=live & (j < n)[None, :])
        mine = i_head == head
        value = x_old.to(tl.float32) * of_head(old_weights, mine)[None, :]
        fold_decay = of_head(fold_decays, mine)
        s = s * fold_decay + product_exact(value, k0, SPLIT)
        tl.store(s_ptr + c0[None, :], s.to(state_ptr.dtype.element_ty), mask=live)
        out = product(s, q0, SPLIT)
        if CHUNKS == 2:
            s1 = s1 * fold_decay + product_exact(value, k1, SPLIT)
            tl.store(s_ptr + c1[None, :], s1.to(state_ptr.dtype.element_ty), mask=live)
            out += product(s1, q1, SPLIT)
        out = product_onto(out * of_head(decays, mine)[None, :], x, of_head(new_weights, mine), SPLIT)
        tl.store(out_base + p[None, :] * (N_V * D_V) + at_v, out.to(out_ptr.dtype.element_ty),
                 mask=live & (p < n)[None, :])  # fmt: skip


#: A function when compiled, too: in a loop over pieces, what holds for all of them would take its registers.
_fold_apart = triton.jit(noinline=True)(_fold.fn)


@triton.jit(
    do_not_specialize=["batch", "programs", "window", "n_ring"], do_not_specialize_on_alignment=["took_ptr"]
)  # fmt: skip
def _replay_flush_kernel(
    state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, row_cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr,
    bias_ptr, skip_ptr, slots_ptr, drafts_ptr, took_ptr, ancestors_ptr, out_ptr, batch, programs, window, n_ring,
    row_x, row_k, row_q, row_dt, stride_x, stride_k, stride_q, stride_dt,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr, TREE: tl.constexpr,
    SPLIT: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, RECORDS: tl.constexpr, DRAFTS: tl.constexpr,
    POSITIONS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, CHUNKS: tl.constexpr, SCAN: tl.constexpr,
    LOOP: tl.constexpr, APART: tl.constexpr, FOLLOWED: tl.constexpr,
):  # fmt: skip
    """Rows with h + T > window: fold the h committed records, outputs from the new checkpoint and the drafts alone."""
    pieces: tl.constexpr = N_V // HEADS
    let_follow(FOLLOWED)
    pid = tl.program_id(0)
    some = pid // programs * SCAN + tl.arange(0, SCAN)
    ranks = verify_ranks(slots_ptr, row_cursor_ptr, drafts_ptr, took_ptr, ancestors_ptr, some, batch, window, T,
                         TREE)  # fmt: skip
    if LOOP and (APART or ROWS < 64):
        for piece in tl.range(pid % programs, how_many(ranks) * pieces, programs, num_stages=1):
            row = ranked(ranks, some, piece // pieces + 1)
            _fold_apart(
                state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr,
                bias_ptr, skip_ptr, slots_ptr, drafts_ptr, took_ptr, ancestors_ptr, out_ptr, row, piece, n_ring, row_x,
                row_k, row_q, row_dt, stride_x, stride_k, stride_q, stride_dt, N_V, N_K, D_V, D_K, T, TREE, SPLIT,
                HEADS, ROWS, RECORDS, DRAFTS, POSITIONS, BLOCK, STAGES, CHUNKS,
            )  # fmt: skip
    elif pid % programs < how_many(ranks) * pieces:  # a program has one piece at most
        piece = pid % programs
        row = ranked(ranks, some, piece // pieces + 1)
        _fold(
            state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr,
            bias_ptr, skip_ptr, slots_ptr, drafts_ptr, took_ptr, ancestors_ptr, out_ptr, row, piece, n_ring, row_x,
            row_k, row_q, row_dt, stride_x, stride_k, stride_q, stride_dt, N_V, N_K, D_V, D_K, T, TREE, SPLIT,
            HEADS, ROWS, RECORDS, DRAFTS, POSITIONS, BLOCK, STAGES, CHUNKS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n_ring"], do_not_specialize_on_alignment=["took_ptr"])
def _replay_output_kernel(
    state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, row_cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr,
    bias_ptr, skip_ptr, slots_ptr, drafts_ptr, took_ptr, ancestors_ptr, out_ptr, n_ring, row_x, row_k, row_q, row_dt,
    stride_x, stride_k, stride_q, stride_dt,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr, TREE: tl.constexpr,
    SPLIT: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, RECORDS: tl.constexpr, DRAFTS: tl.constexpr,
    POSITIONS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    FOLLOWS: tl.constexpr,
):  # fmt: skip
    """Rows that did not flush: outputs from the checkpoint, the committed records and the drafts (Eq. 6)."""
    tiles: tl.constexpr = (D_V + ROWS - 1) // ROWS
    blocks: tl.constexpr = (D_V + BLOCK - 1) // BLOCK
    follow(FOLLOWS)
    pid = tl.program_id(0)
    row = pid // (N_V // HEADS)
    first_head = pid % (N_V // HEADS) * HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    cursor = cursor_load(cursor_ptr + slot * N_V + first_head, HEADS)
    if cursor_marked(cursor):  # the launch before served this row
        cursor_keep(cursor_ptr, row_cursor_ptr, slot, first_head, cursor_without_mark(cursor), N_V, HEADS)
        return
    s_base = state_ptr + (slot * N_V + first_head) * (D_V * D_K)
    p = tl.arange(0, POSITIONS)
    masks_ptr = ancestors_ptr + row.to(tl.int64) * T
    n, took, _ = committed_by(drafts_ptr + row, took_ptr + row, masks_ptr, p, TREE)
    h = cursor_h(cursor) + took
    row = row.to(tl.int64)
    origin = cursor_origin(cursor)
    first = wrap(origin + h, n_ring)
    group = first_head // (N_V // N_K)
    j = tl.arange(0, DRAFTS)
    old_j = tl.arange(0, RECORDS)
    place = wrap(first + j, n_ring)
    at = wrap(origin + old_j, n_ring)
    i_head = tl.arange(0, HEADS)
    c = tl.arange(0, D_K)
    a = tl.load(a_ptr + first_head + i_head)
    q_base = q_ptr + row * row_q + group * D_K
    k_base = k_ptr + row * row_k + group * D_K
    k_ring = k_ring_ptr + slot * n_ring * (N_K * D_K) + group * D_K
    dt_ring = dt_ring_ptr + slot * n_ring * N_V + first_head
    x_ring = x_ring_ptr + (slot * N_V + first_head) * (blocks * BLOCK) * n_ring
    x_new = x_ptr + row * row_x + first_head * D_V
    q, new_weights, decays, old_weights, fold_decays = _prepare(
        k_ring, dt_ring, k_base, q_base, dt_ptr + row * row_dt + first_head, bias_ptr + first_head,
        skip_ptr + first_head, masks_ptr, a, at, place, old_j, j, h, n, stride_k, stride_q, stride_dt,
        first_head % (N_V // N_K) == 0, N_V, N_K, D_K, TREE, SPLIT, HEADS, DRAFTS, POSITIONS,
    )  # fmt: skip
    cursor_keep(cursor_ptr, row_cursor_ptr, slot, first_head, cursor_pack(h, origin), N_V, HEADS)

    k = load_rows(k_ring, at * (N_K * D_K), old_j < h, D_K)
    kq = key_products(k, q, SPLIT)  # [records, positions]
    out_base = out_ptr + row * (T * N_V * D_V) + first_head * D_V
    for i in tl.range(0, HEADS * tiles, num_stages=STAGES):
        head = i // tiles
        v = i % tiles * ROWS + tl.arange(0, ROWS)
        live = (v < D_V)[:, None]
        at_v = (head * D_V + v)[:, None]
        s = tl.load(s_base + head * (D_V * D_K) + v[:, None] * D_K + c[None, :], mask=live, other=0.0)
        x_at = ((head * blocks + v // BLOCK)[:, None] * n_ring + at[None, :]) * BLOCK + (v % BLOCK)[:, None]
        x_old = tl.load(x_ring + x_at, mask=live & (old_j < h)[None, :], other=0.0)
        x = tl.load(x_new + j[None, :] * stride_x + at_v, mask=live & (j < n)[None, :], other=0.0)
        new_at = ((head * blocks + v // BLOCK)[:, None] * n_ring + place[None, :]) * BLOCK + (v % BLOCK)[:, None]
        tl.store(x_ring + new_at, x, mask=live & (j < n)[None, :])
        mine = i_head == head
        out = product(s.to(tl.float32), q, SPLIT) * of_head(fold_decays, mine)
        out = product_onto(out, x_old, kq * of_head(old_weights, mine)[:, None], SPLIT)
        out = product_onto(out * of_head(decays, mine)[None, :], x, of_head(new_weights, mine), SPLIT)
        tl.store(out_base + p[None, :] * (N_V * D_V) + at_v, out.to(out_ptr.dtype.element_ty),
                 mask=live & (p < n)[None, :])  # fmt: skip


class ReplayVerify(replay.ReplayVerify):
    """1R a step, 1R + 1W at a flush, plus the records."""

    family = "mamba2"
    source = "paper, Alg. 2, Eq. 6"
    layout = layout
    max_window = 64
    trees = True

    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return checkpoint, ring and cursors, all of them read and written.

        state [slots, n_v_heads, d_v, d_k] in the state dtype; the records x_ring [slots, n_v_heads, blocks, ring,
        BLOCK], blocks of 16 rows of d_v, and k_ring [slots, ring, n_k_heads, d_k] in the input dtype, dt_ring [slots,
        ring, n_v_heads] float32 after bias and softplus; cursor [slots, n_v_heads] int32, and row_cursor [slots] int32,
        that of the first head. ring = window + draft_len.
        What a tile of rows needs of x so lies together: one run of memory, not a sector of each record.
        """
        shape, slots, n_ring = case.shape, layout.n_slots(case), ring_slots(case)
        return {
            "state": layout.state(case),
            "x_ring": Buffer((slots, shape.n_v_heads, value_blocks(shape), n_ring, BLOCK), case.input_dtype, "record"),
            "k_ring": Buffer((slots, n_ring, shape.n_k_heads, shape.d_k), case.input_dtype, "record"),
            "dt_ring": Buffer((slots, n_ring, shape.n_v_heads), "float32", "record"),
            "cursor": Buffer((slots, shape.n_v_heads), "int32", "cursor"),
            "row_cursor": Buffer((slots,), "int32", "cursor"),
        }

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """Return the flushing and the output launch; for a tree, the one that gathers the accepted path comes first."""
        shape, t = case.shape, tensors
        window, nodes, n_ring = case.window or 1, case.draft_len, ring_slots(case)
        tree = case.tree is not None
        took = t["path" if tree else "accepted"][step % ACCEPTANCE_STEPS]
        if tree:
            yield commit_launch(case, t, took, n_ring)
        pointers = (t["state"], t["x_ring"], t["k_ring"], t["dt_ring"], t["cursor"], t["row_cursor"], t["x"],
                    t["k"], t["q"], t["dt"], t["a"], t["dt_bias"], t["d_skip"], t["slots"], t["drafts"], took,
                    t["ancestors"] if tree else took, t["out"])  # fmt: skip
        strides = [t[name].stride(axis) for axis in (0, 1) for name in ("x", "k", "q", "dt")]
        constants = {"N_V": shape.n_v_heads, "N_K": shape.n_k_heads, "D_V": shape.d_v, "D_K": shape.d_k, "T": nodes,
                     "TREE": tree, "SPLIT": case.input_dtype == "bfloat16",
                     "POSITIONS": max(triton.next_power_of_2(nodes), 8), "DRAFTS": at_least_16(nodes),
                     "BLOCK": BLOCK}  # fmt: skip
        heads, fold_heads = config["heads"], config["fold_heads"]
        cc = capability(t)
        # Products of 64 rows take memory that only a kernel has on compute capability 10.0, and in a loop they spill:
        # there APART, which is told for the GPU that is compiled for, leaves a program to each piece. So does a
        # configuration without programs.
        loop = config["fold_programs"] > 0
        resident = config["fold_programs"] if loop and (config["fold_rows"] < 64 or apart(cc)) else None
        grid, programs = fold_programs(case, t, resident, shape.n_v_heads // fold_heads)
        first = tiled_launch(
            _replay_flush_kernel, grid, (*pointers, case.batch, programs, window, n_ring, *strides),
            {**constants, "RECORDS": at_least_16(window), "CHUNKS": 2 if shape.d_k >= 64 else 1, "HEADS": fold_heads,
             "SCAN": SCAN, "LOOP": loop, "APART": True}, config, "fold_",
        )  # fmt: skip
        # records of a row that does not flush: one whose step has a single position holds most
        second = tiled_launch(
            _replay_output_kernel, case.batch * shape.n_v_heads // heads, (*pointers, n_ring, *strides),
            {**constants, "RECORDS": at_least_16(window - 1), "HEADS": heads}, config,
        )  # fmt: skip
        yield from close_pair(first, second, cc)

    def replayed(self, case: Case, tensors: Mapping[str, Any], slots: Any, at: Any, live: Any) -> Any:
        """Return the rows' checkpoints advanced by records (dt, x, k). Source: paper, Eq. 5."""
        cached = {name: tensors[f"{name}_ring"][slots[:, None], at] for name in ("dt", "k")}
        cached["x"] = blocked_records(tensors["x_ring"], slots, at, case.shape.d_v)
        return layout.replay_tokens(tensors, layout.load_state(tensors), cached, live)

    def configs(self, case: Case) -> Sequence[Config]:
        """Return heads a program, rows a tile, warps, stages and a limit of registers, of outputs and of the fold.

        ``fold_programs``: of the fold, that a multiprocessor holds at a time; 0 for a program to each piece, which is
        faster where most steps flush.
        A program serves 2 to 4 heads of one group: what it computes up front is then little beside the state that it
        streams. Three stages keep two tiles of a warp in flight.
        """
        shape, window = case.shape, case.window or 1
        outputs: list[tuple[int, ...]] = [(2, 16, 1, 3, 168), (4, 16, 1, 3, 168), (4, 32, 2, 3, 0)]
        fold: list[tuple[int, ...]] = [(2, 16, 1, 3, 0), (4, 16, 1, 3, 0)]
        whole: tuple[int, ...] = (1, 64, 4, 2, 0)
        # Left alone, the compiler spills a few bytes of 80 rows so that twelve warps fit, not eleven.
        most = 184 if shape.d_v % 64 else 0
        small = [whole, whole]  # of outputs and fold where there are few programs
        each: list[tuple[int, ...]] = []  # folds with a program to each piece
        if window > 32:
            outputs = [(2, 64, 4, 2, 0), (1, 32, 4, 2, 0)]
            fold = [(2, 64, 4, 2, 0)]  # the others spill
            small = [(1, 32, 4, 2, 0), fold[0]]
        elif window > 16:
            outputs = [(2, 16, 1, 3, 0), (4, 32, 2, 3, 0 if case.draft_len > 8 else most)]
            fold = [(2, 32, 2, 3, 0), (1, 32, 2, 3, 0), (2, 32, 2, 2, 0)]
            small[1] = fold[1]
            if case.draft_len > 8:  # the other two spill with one Triton or the other
                fold, each = [fold[1], fold[0], fold[2]], [(4, 32, 2, 3, 0)]
        elif case.draft_len > 8:
            outputs = [(2, 16, 1, 3, most), (4, 32, 2, 3, 0)]
            fold = [(2, 16, 1, 3, 0), (1, 16, 1, 3, 0)]
            if case.tree is not None:  # the first spills
                fold = fold[::-1]
            else:
                each = [(4, 16, 1, 3, 0)]
        elif case.tree is not None and shape.d_v % 64:  # a tree's masks take what the limit leaves of four heads
            del outputs[1]
        if case.batch * shape.n_v_heads <= SMALL_BATCH_HEADS:
            outputs, fold = [small[0], *outputs], [small[1], *fold]
        return paired_heads(shape, outputs, fold, each)


METHOD = ReplayVerify()
