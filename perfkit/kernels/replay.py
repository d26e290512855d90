"""What ReplaySSM's methods of all families share beside their kernels: ring, cursors, cycle, bytes.

A family's file has its kernels, its buffers, its launches and its launch configurations, and says in
:meth:`Replay.replayed` how its records make a state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from perfkit.kernels import ring
from perfkit.kernels.flushing import FOLD_PROGRAMS
from perfkit.kernels.lang import triton
from perfkit.kernels.replay_commit import commit_bytes
from perfkit.method import Case, Config, Launch, Method, Number, Point, Step, constant_acceptance
from perfkit.roofline.cursor import period
from perfkit.roofline.flops import FLOPS
from perfkit.roofline.traffic import layer_record_bytes, record_bytes, replay_decode_counts, state_bytes
from perfkit.shape import Shape

#: Up to this many rows times heads, configurations for small batches come first.
SMALL_BATCH_HEADS = 1024


def at_least_16(n: int) -> int:
    """Return the power of two that holds n records, and 16 at least: the shortest sum of the matrix unit."""
    return int(triton.next_power_of_2(max(n, 16)))


def ring_slots(case: Case) -> int:
    """Return the physical length of the ring: L committed records and T drafts."""
    return (case.window or 1) + case.draft_len


def tile(rows: int, warps: int, stages: int, maxnreg: int = 0, **more: int) -> dict[str, int]:
    """Return one launch's values of a configuration: rows a tile, warps, stages, a limit of registers (0: none)."""
    return {"rows": rows, "warps": warps, "stages": stages, "maxnreg": maxnreg, **more}


def paired(case: Case, outputs: Sequence[Mapping[str, int]], folds: Sequence[Mapping[str, int]]) -> list[Config]:
    """Return configurations of both launches of a step: the first tiles of both, then each other one beside a first.

    Tiles of as many ``heads`` as do not divide the shape's groups are left out. A state row of more than 128 elements
    takes more warps, not more registers.
    """
    scale = max(1, case.shape.d_k // 128)
    outputs, folds = (
        list({str(one): {**one, "warps": one["warps"] * scale} for one in tiles
              if case.shape.heads_per_group % one.get("heads", 1) == 0}.values())
        for tiles in (outputs, folds)
    )  # fmt: skip
    pairs = [(outputs[0], fold) for fold in folds] + [(output, folds[0]) for output in outputs[1:]]
    return [
        Config.of(**output, **{f"fold_{name}": fold[name] for name in fold}, fold_programs=max(1, 8 // fold["warps"]))
        for output, fold in pairs
    ]


#: What a launch of heads is told, and takes whatever the shape's groups are.
_HEADED = ("heads", "rows", "warps", "stages", "maxnreg")
_ONE_HEAD = (1, 16, 1, 3, 0)
Tile = tuple[int, ...]


def paired_heads(
    shape: Shape, outputs: Sequence[Tile], folds: Sequence[Tile], each: Sequence[Tile] = ()
) -> list[Config]:
    """Return configurations of both launches of a verify step: the first of both, then each other one beside a first.

    Args:
        shape: tiles of as many heads as do not divide its groups are left out; one head is always there.
        outputs: heads a program, rows a tile, warps, stages and a limit of registers (0: none), of the launch of
            outputs.
        folds: the same of the launch of rows that flush, whose programs stay: as many as a multiprocessor holds.
        each: the same of one with a program to each piece of work.
    """

    def fit(tiles: Sequence[Tile]) -> list[Tile]:
        return [one for one in dict.fromkeys(tiles) if shape.heads_per_group % one[0] == 0]

    first, *others = fit(outputs) or [_ONE_HEAD]
    dealt = [(*one, FOLD_PROGRAMS[one[2]]) for one in fit(folds) or [_ONE_HEAD]] + [(*one, 0) for one in fit(each)]
    pairs = [(first, one) for one in dealt] + [(one, dealt[0]) for one in others]
    folded = [f"fold_{name}" for name in (*_HEADED, "programs")]
    return [
        Config.of(**dict(zip(_HEADED, output, strict=True)), **dict(zip(folded, fold, strict=True)))
        for output, fold in pairs
    ]


def tiled_launch(
    kernel: Any, programs: int, args: Sequence[Any], constexprs: Mapping[str, Any], config: Config, prefix: str = ""
) -> Launch:
    """Return a launch with the :func:`tile` of the configuration whose names start with ``prefix``."""
    rows, warps, stages, limit = (config[prefix + name] for name in tile(0, 0, 0))
    return Launch(
        kernel, (programs,), tuple(args), {**constexprs, "ROWS": rows, "STAGES": stages},
        {"num_warps": warps, "num_stages": stages} | ({"maxnreg": limit} if limit else {}),
    )  # fmt: skip


class Replay(Method):
    """One family's replay in one phase."""

    key = "replay"
    windowed = True
    #: The family's layout module: bytes of inputs and outputs, what is supported, the state cache.
    layout: ModuleType
    #: Longest window: the records of a program's heads are held on chip at once.
    max_window: int

    def replayed(self, case: Case, tensors: Mapping[str, Any], slots: Any, at: Any, live: Any) -> Any:
        """Return the rows' checkpoints advanced by records, in float64; for :meth:`committed` here.

        Args:
            case: whose rings they are.
            tensors: its buffers.
            slots: [batch] int64, of padded rows 0.
            at: [batch, records] int64, places in the ring.
            live: [batch, records] bool, which of them to apply.
        """
        raise NotImplementedError

    def start(self, case: Case, tensors: Mapping[str, Any], state: Any, origin: Any = 0) -> None:
        """Store the checkpoint and empty the ring."""
        self.layout.store_state(tensors, state)
        slots = tensors["slots"].long()
        live = slots >= 0
        starts = slots.new_zeros(slots.shape) + origin
        cursor = (ring.pack(0) + (starts << 15)).to(tensors["cursor"].dtype)[live]
        tensors["cursor"][slots[live]] = cursor[:, None]
        if self.apart:
            tensors["row_cursor"][slots[live]] = cursor


class ReplayDecode(Replay):
    """1R a step, 1R + 1W at a flush, plus the records."""

    phase = "decode"

    def supports(self, case: Case) -> str | None:
        """Return None, or why not."""
        if case.window is None or not 1 <= case.window <= self.max_window:
            return f"window {case.window}: 1 to {self.max_window}"
        reason: str | None = self.layout.unsupported(case)
        return reason

    def committed(self, case: Case, tensors: Mapping[str, Any], step: int = 0) -> Any:
        """Return Replay(checkpoint, records) of every row in float64; zeros for padded rows. Source: paper, Eq. 5."""
        slots = tensors["slots"].long().clamp(min=0)
        cursor = tensors["cursor"][slots][:, 0].long()  # the heads of a row agree
        h, origin = ring.committed_h(cursor), ring.origin_of(cursor)
        j = cursor.new_tensor(range(case.window or 1))[None, :]
        at = (origin[:, None] + j) % ring_slots(case)
        live = (j < h[:, None]) & tensors["slots"].ge(0)[:, None]
        return self.replayed(case, tensors, slots, at, live)

    def period(self, case: Case) -> int:
        """L steps bring h back; the ring's origin need not come back, since no time depends on it."""
        return case.window or 1

    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        """Count checkpoint, records, cursors, and the token's inputs and output.

        Where a launch of its own serves the rows that flush, it looks at the slot and the cursor of every row, and at
        those of the heads of rows that flush. The second one looks at all heads', takes the mark off those of rows that
        flushed, and keeps the row's.
        """
        token = self.layout.token_bytes(shape, point)
        elements, flops = shape.state_elements, FLOPS[self.family]
        cursor = 4 * shape.n_v_heads
        record = layer_record_bytes(shape, point.input_bytes)
        flush = np.asarray(flush, dtype=bool)
        output = flops.output_only_decode(shape.d_v, shape.d_k, h)
        fold = flops.materialized_decode(shape.d_v, shape.d_k, h)
        read = elements * point.read_bytes + token.read + cursor + h * record + self.apart * (8 + flush * cursor)
        folded = elements * point.state_bytes + self.apart * cursor
        write = token.write + cursor + self.apart * 4 + np.where(flush, folded, record)
        return Step(
            bytes_read=point.batch * read + token.shared,
            bytes_write=point.batch * write,
            flops=point.batch * shape.n_v_heads * np.where(flush, fold, output),
            launches=1 + self.apart,
            shared_read=token.shared,
            # Records are folded by products; what a step reads off the state is summed up.
            tensor_flops=point.batch * shape.n_v_heads * flush * 2 * (np.asarray(h) + 1) * shape.d_v * shape.d_k,
        )

    def paper(self, shape: Shape, point: Point) -> Step:
        """Count checkpoint and records of a step, amortized over a window. Source: paper, Eq. 13."""
        heads = point.batch * shape.n_v_heads
        counts = replay_decode_counts(shape, point.window, point.state_bytes)
        h = (point.window - 1) / 2
        flops = heads * FLOPS[self.family].output_only_decode(shape.d_v, shape.d_k, h)
        return Step(heads * counts.bytes_read, heads * counts.bytes_write, flops, launches=1 + self.apart)


class ReplayVerify(Replay):
    """1R a step, 1R + 1W at a flush, plus the records."""

    phase = "verify"
    apart = True

    def supports(self, case: Case) -> str | None:
        """Return None, or why not."""
        if case.window is None or not case.depth <= case.window <= self.max_window:
            return f"window {case.window}: {case.depth} to {self.max_window}"
        reason: str | None = self.layout.unsupported_verify(case)
        return reason

    def committed(self, case: Case, tensors: Mapping[str, Any], step: int = 0) -> Any:
        """Return Replay(checkpoint, committed records) of every row in float64; zeros for padded rows.

        The h records of the cursor, then the accepted ones of the T behind them. Source: paper, Eq. 5 and 8.
        """
        slots = tensors["slots"].long().clamp(min=0)
        cursor = tensors["cursor"][slots][:, 0].long()  # the heads of a row agree
        h, origin = ring.committed_h(cursor), ring.origin_of(cursor)
        nodes = case.draft_len
        j = cursor.new_tensor(range((case.window or 1) + nodes))[None, :]
        at = (origin[:, None] + j) % ring_slots(case)
        accepted = self.layout.accepted_nodes(tensors, step, nodes)
        pending = (j - h[:, None]).clamp(0, nodes - 1)
        is_draft = (j >= h[:, None]) & (j < h[:, None] + nodes)
        live = (j < h[:, None]) | (is_draft & accepted.gather(1, pending))
        live &= tensors["slots"].ge(0)[:, None]
        return self.replayed(case, tensors, slots, at, live)

    def period(self, case: Case) -> int:
        """A cycle of constant acceptance: h starts at a and is back there after the step that flushes."""
        a = constant_acceptance(case)
        return super().period(case) if a is None else int(period(case.window, case.depth, a))

    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        """Count what each launch moves of checkpoint, records, cursors, inputs and outputs.

        The flushing launch looks at every row and its cursor, and at those of the heads of rows that flush; the launch
        of outputs looks at all heads', and keeps the row's.
        """
        io = self.layout.verify_bytes(shape, point)
        cursor = 4 * shape.n_v_heads
        record = layer_record_bytes(shape, point.input_bytes)
        flush = np.asarray(flush, dtype=bool)
        gathered = commit_bytes(shape, point)
        elements = shape.state_elements
        read = elements * point.read_bytes + io.read + h * record
        read += io.row + 4 + flush * cursor + np.where(flush, 4, io.row) + cursor + gathered[0]
        write = io.write + point.draft_len * record + cursor + 4
        write = write + flush * (cursor + elements * point.state_bytes)
        count = FLOPS[self.family].output_only_verify
        outputs = count(shape.d_v, shape.d_k, np.where(flush, 0, h), point.draft_len)
        fold = flush * (2 * np.asarray(h) + 1) * shape.d_v * shape.d_k
        return Step(
            bytes_read=point.batch * read + io.shared,
            bytes_write=point.batch * (write + gathered[1]),
            flops=point.batch * shape.n_v_heads * (outputs + fold),
            tensor_flops=point.batch * shape.n_v_heads * (outputs + fold),
            launches=3 if point.tree else 2,
            serial=0,
            shared_read=io.shared,
        )

    def paper(self, shape: Shape, point: Point) -> Step:
        """Count checkpoint and records of a step over a cycle of L / a steps. Source: paper, App. C.5, Eq. 15."""
        heads, a, window = point.batch * shape.n_v_heads, point.accepted, point.window
        size, record = state_bytes(shape, point.state_bytes), record_bytes(shape)
        read = size + record * (window - a) / 2
        write = size * a / window + record * point.draft_len * (1 - a / window)
        flops = FLOPS[self.family].output_only_verify(shape.d_v, shape.d_k, (window - a) / 2, point.draft_len)
        return Step(heads * read, heads * write, heads * flops, launches=3 if point.tree else 2, serial=0)
