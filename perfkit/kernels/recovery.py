"""What recovery schemes of all families share beside their kernels: caches of a step's inputs, hand-over, bytes.

A step keeps the inputs of its T positions. Once the acceptance is known, the step after it runs the accepted ones again
from the state before them, in a launch of its own (activation replay) or in the one that goes on (fused recovery).

Source: paper, App. A.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from perfkit.kernels import layout
from perfkit.kernels.lang import triton
from perfkit.kernels.replay import SMALL_BATCH_HEADS
from perfkit.kernels.state_copy import COPY_CONFIGS
from perfkit.method import Buffer, Case, Config, Method, Number, Point, Step
from perfkit.roofline.flops import FLOPS
from perfkit.roofline.state_traffic import state_traffic
from perfkit.shape import Shape

#: Halves of the state cache of fused recovery, and of its cache of inputs.
CHECKPOINT, END, HALVES = 0, 1, 2
#: What a token leaves for its replay: extents and dtype of each of its inputs.
Kept = Mapping[str, tuple[tuple[int, ...], str]]


def cache_buffers(case: Case, kept: Kept, *halves: int) -> dict[str, Buffer]:
    """Return the caches ``NAME_cache`` [slots, *halves, T, *extents] of what each token leaves."""
    outer = (layout.n_slots(case), *halves, case.draft_len)
    return {f"{name}_cache": Buffer((*outer, *extents), dtype, "record") for name, (extents, dtype) in kept.items()}


def row_scale(shape: Shape) -> int:
    """Return by how much to multiply warps chosen at d_k = 128: longer state rows take more threads, not registers."""
    return max(1, shape.d_k // 128)


class Recovery(Method):
    """One family's recovery of the accepted state from the inputs of the step before."""

    phase = "verify"
    #: The family's layout module: bytes of inputs and outputs, what is supported.
    layout: ModuleType
    #: Why a step takes no draft tree.
    no_trees: str

    def supports(self, case: Case) -> str | None:
        """Return None, or why not: drafts must be a chain."""
        if case.tree is not None:
            return f"draft trees: {self.no_trees}"
        reason: str | None = self.layout.unsupported_verify(case)
        return reason

    def kept(self, case: Case) -> Kept:
        """Return what a token leaves for its replay, by name."""
        raise NotImplementedError

    def rerun(self, tensors: Mapping[str, Any], state: Any, cached: Mapping[str, Any], live: Any) -> Any:
        """Return states advanced by cached tokens, sequentially, in float64; for :meth:`committed`.

        Args:
            tensors: with the layer's parameters.
            state: [batch, n_v_heads, d_v, d_k] float64.
            cached: [batch, tokens, …] of each name of :meth:`kept`, as they are stored.
            live: [batch, tokens] bool, which of them to apply.
        """
        raise NotImplementedError

    def paper(self, shape: Shape, point: Point) -> Step:
        """Count the state alone, at the longest chain. Source: paper, App. A.1."""
        traffic, n = state_traffic(self.key), point.draft_len
        reads, writes = traffic.counts(n)
        state = point.batch * shape.state_elements * point.state_bytes
        flops = point.batch * shape.n_v_heads * self._head_flops(shape, n, traffic.chain(n) - n)
        return Step(reads * state, writes * state, flops, traffic.launches, traffic.chain(n))

    def _head_flops(self, shape: Shape, n: Number, again: Number) -> Number:
        """Return the FLOPs of a head that runs ``again`` tokens of the step before and n positions."""
        count = FLOPS[self.family]
        flops: Number = n * count.conventional(shape.d_v, shape.d_k) + count.recovery(shape.d_v, shape.d_k, again)
        return flops


class FusedRecovery(Recovery):
    """1R + 2W of the state at every step, and the inputs of the accepted tokens once more.

    The cache has two halves: a step reads the one that the last step wrote and fills the other. With one half, the
    program that stores a group's k would race with the other heads' that still read the old one. Which half, and how
    many tokens the last step had, is a cursor of each head, read and written by the one program that owns the head; so
    a row that sits out steps keeps its place. A program therefore takes whole heads, a tile of rows after the other.
    """

    key = "fused_recovery"
    source = "paper, App. A.1 (The Mamba in the Llama)"
    no_trees = "the end state is the state after one path, and the replay runs a prefix"
    #: Tiles of one warp, the default of large batches first.
    warp_tiles: Sequence[tuple[int, int]] = ((16, 1), (8, 1))

    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return states, cached inputs and cursors, all of them read and written.

        state [slots, 2, n_v_heads, d_v, d_k] in the state dtype: checkpoint and end state. The two halves of each cache
        [slots, 2, T, …] of what :meth:`kept` has. cursor [slots, n_v_heads] int32: bit 0 the half that holds the last
        step's inputs, the bits above how many positions that step had.
        """
        shape, slots = case.shape, layout.n_slots(case)
        states = (slots, HALVES, shape.n_v_heads, shape.d_v, shape.d_k)
        return {
            "state": Buffer(states, case.state_dtype, "state"),
            **cache_buffers(case, self.kept(case), HALVES),
            "cursor": Buffer((slots, shape.n_v_heads), "int32", "cursor"),
        }

    def start(self, case: Case, tensors: Mapping[str, Any], state: Any, origin: Any = 0) -> None:
        """Store the checkpoint and empty the cache."""
        layout.store_state(tensors, state, tensors["state"][:, CHECKPOINT])
        slots = tensors["slots"].long()
        tensors["cursor"][slots[slots >= 0]] = 0

    def committed(self, case: Case, tensors: Mapping[str, Any], step: int = 0) -> Any:
        """Return the end state where all was accepted, else the checkpoint and the accepted tokens; float64."""
        slots = tensors["slots"].long()
        row = slots.clamp(min=0)
        on = layout.accepted_nodes(tensors, step, case.draft_len)
        cursor = tensors["cursor"][row, 0].long()
        cached = {name: tensors[f"{name}_cache"][row, cursor % 2] for name in self.kept(case)}
        checkpoint = layout.load_state(tensors, tensors["state"][:, CHECKPOINT])
        replayed = self.rerun(tensors, checkpoint, cached, on & (slots >= 0)[:, None])
        end = layout.load_state(tensors, tensors["state"][:, END])
        ended = (on.sum(1) > 0) & (on.sum(1) == cursor // 2)
        return end.where(ended[:, None, None, None], replayed)

    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        """Count the state read once and written twice, the cache, cursors, inputs and outputs.

        ``h`` tokens were accepted; they are read again from the cache unless they were all of the last step's.
        """
        token = self.layout.verify_bytes(shape, point)
        state, n = shape.state_elements * point.state_bytes, point.draft_len
        last = n if point.last_draft_len is None else point.last_draft_len
        replayed = np.where(np.equal(h, last), 0, h)
        cursor = 4 * shape.n_v_heads
        kept = token.keep / n
        return Step(
            bytes_read=point.batch * (state + token.read + token.row + cursor + replayed * kept) + token.shared,
            bytes_write=point.batch * (2 * state + token.write + token.keep + cursor),
            flops=point.batch * shape.n_v_heads * self._head_flops(shape, n, replayed),
            serial=n + replayed,
            shared_read=token.shared,
        )

    def large_tiles(self, head: int) -> Sequence[tuple[int, int]]:
        """Return tile heights and warps at d_k = 128 that hold a whole head, of ``head`` rows, or much of it."""
        return (head, max(1, head // 8)), (head, max(1, head // 16))

    def configs(self, case: Case) -> Sequence[Config]:
        """Return tile heights and warps: tiles of one warp at large batches, whole heads at small ones."""
        shape, scale = case.shape, row_scale(case.shape)
        head = triton.next_power_of_2(shape.d_v)
        # Whole heads of longer rows spill.
        large = self.large_tiles(head) if scale == 1 else ()
        if case.batch * shape.n_v_heads <= SMALL_BATCH_HEADS:
            choices = (*large, (16, 4), (16, 2), (32, 4), *self.warp_tiles[:1])
        else:
            choices = (*self.warp_tiles, (16, 2), (32, 4), *large)
        fit = [(rows, warps * scale) for rows, warps in choices if rows in (8, 16, head) or shape.d_v % rows == 0]
        return [Config.of(rows=rows, warps=warps) for rows, warps in dict.fromkeys(fit)]


class ActivationReplay(Recovery):
    """3R + 3W of the state at every step, whatever was accepted.

    Three launches, each of which loads and stores the state of the batch: the masked replay brings the checkpoint up to
    what the last step committed, from the cache of that step's inputs; a copy of it becomes the working state; and the
    scan runs this step's T positions in place on the working state: it stores the end state, which nothing reads, and
    the inputs for the next step's replay.
    """

    key = "activation_replay"
    source = "paper, App. A.1 (Snakes and Ladders, activation replay)"
    no_trees = "the scan in place holds one state a row, and branches need several"
    #: Tile heights and warps of replay and scan at d_k = 128, the default first: small tiles give the memory system the
    #: most independent requests.
    replay_tiles: Sequence[tuple[int, int]]
    scan_tiles: Sequence[tuple[int, int]] = ((16, 1), (8, 1), (32, 4), (16, 4))

    def replay_shared(self, shape: Shape) -> int:
        """Return the bytes of parameters that the replay reads for all rows."""
        return 0

    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return checkpoint, working state and the cache of a step's inputs, all of them read and written.

        ``state`` [slots, n_v_heads, d_v, d_k] in the state dtype; ``working``, the same, scratch that holds nothing
        from step to step; the caches [slots, T, …] of what :meth:`kept` has.
        """
        state = layout.state(case)
        return {"state": state, "working": replace(state, role="scratch"), **cache_buffers(case, self.kept(case))}

    def start(self, case: Case, tensors: Mapping[str, Any], state: Any, origin: Any = 0) -> None:
        """Store the rows' states in their slots; the step that comes next has nothing to replay."""
        layout.store_state(tensors, state)

    def committed(self, case: Case, tensors: Mapping[str, Any], step: int = 0) -> Any:
        """Return the checkpoints advanced by the accepted tokens, float64; zeros for padded rows."""
        slots = tensors["slots"].long()
        cached = {name: tensors[f"{name}_cache"][slots.clamp(min=0)] for name in self.kept(case)}
        on = layout.accepted_nodes(tensors, step, case.draft_len) & (slots >= 0)[:, None]
        return self.rerun(tensors, layout.load_state(tensors), cached, on)

    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        """Count three reads and writes of the state, the h cached tokens, inputs, outputs and the new cache.

        Each launch reads the row's slot id, the first its acceptance and the last its T.
        """
        io, state, n = self.layout.verify_bytes(shape, point), shape.state_elements * point.state_bytes, point.draft_len
        shared = io.shared + self.replay_shared(shape)
        return Step(
            bytes_read=point.batch * (3 * state + h * io.keep / n + io.read + io.row + 2 * 4) + shared,
            bytes_write=point.batch * (3 * state + io.write + io.keep),
            flops=point.batch * shape.n_v_heads * self._head_flops(shape, n, n),
            launches=3,
            serial=2 * n,
            shared_read=shared,
        )

    def configs(self, case: Case) -> Sequence[Config]:
        """Return tile heights and warps of replay and scan with the copy's tile: one varies, the others are default."""
        scale = row_scale(case.shape)
        scans = [(rows, warps) for rows, warps in self.scan_tiles if rows <= 16 or case.shape.d_v % rows == 0]
        replays, copies = self.replay_tiles, COPY_CONFIGS
        triples = [
            *((replays[0], copies[0], scan) for scan in scans),
            *((replay, copies[0], scans[0]) for replay in replays[1:]),
            *((replays[0], copy, scans[0]) for copy in copies[1:]),
        ]
        return [
            Config.of(replay_rows=replay[0], replay_warps=replay[1] * scale, copy_tile=copy[0], copy_warps=copy[1],
                      rows=scan[0], warps=scan[1] * scale)
            for replay, copy, scan in triples
        ]  # fmt: skip
