"""What the conventional update and the snapshots of all families share beside their kernels: buffers and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from perfkit.kernels import layout
from perfkit.method import Buffer, Case, Method, Number, Point, Step
from perfkit.roofline.flops import FLOPS
from perfkit.roofline.state_traffic import state_traffic
from perfkit.shape import Shape


class Conventional(Method):
    """1R + 1W of the state at every step."""

    key = "conventional"
    phase = "decode"
    #: The family's layout module: bytes of inputs and outputs, what is supported.
    layout: ModuleType

    def supports(self, case: Case) -> str | None:
        """Return None, or why not: d_k must be a power of two."""
        reason: str | None = self.layout.unsupported(case)
        return reason

    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return ``state`` [slots, n_v_heads, d_v, d_k] in the state dtype, read and written."""
        return {"state": layout.state(case)}

    def start(self, case: Case, tensors: Mapping[str, Any], state: Any, origin: Any = 0) -> None:
        """Store the rows' states in their slots."""
        layout.store_state(tensors, state)

    def committed(self, case: Case, tensors: Mapping[str, Any], step: int = 0) -> Any:
        """Return the rows' states, float64; zeros for padded rows."""
        return layout.load_state(tensors)

    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        """Count the state read and written once, and the token's inputs and output."""
        token = self.layout.token_bytes(shape, point)
        state = shape.state_elements * point.state_bytes
        return Step(
            bytes_read=point.batch * (state + token.read) + token.shared,
            bytes_write=point.batch * (state + token.write),
            flops=point.batch * shape.n_v_heads * FLOPS[self.family].conventional(shape.d_v, shape.d_k),
            shared_read=token.shared,
        )

    def paper(self, shape: Shape, point: Point) -> Step:
        """Count the state alone, read and written once. Source: paper, App. C.1, Eq. 13."""
        state = point.batch * shape.state_elements * point.state_bytes
        return Step(state, state, point.batch * shape.n_v_heads * FLOPS[self.family].conventional(shape.d_v, shape.d_k))


class Snapshot(Method):
    """1R + T·W of the state at every step."""

    key = "snapshot"
    phase = "verify"
    trees = True
    #: The family's layout module: bytes of inputs and outputs, what is supported.
    layout: ModuleType

    def supports(self, case: Case) -> str | None:
        """Return None, or why not."""
        reason: str | None = self.layout.unsupported_verify(case)
        return reason

    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return ``state`` [slots, T, n_v_heads, d_v, d_k] in the state dtype, read and written: T snapshots."""
        shape = case.shape
        extents = (layout.n_slots(case), case.draft_len, shape.n_v_heads, shape.d_v, shape.d_k)
        return {"state": Buffer(extents, case.state_dtype, "state")}

    def start(self, case: Case, tensors: Mapping[str, Any], state: Any, origin: Any = 0) -> None:
        """Store the rows' states in snapshot 0, which a row that has accepted nothing starts from."""
        layout.store_state(tensors, state, tensors["state"][:, 0])

    def committed(self, case: Case, tensors: Mapping[str, Any], step: int = 0) -> Any:
        """Return the snapshot after each row's last accepted token, float64; zeros for padded rows."""
        on = layout.accepted_nodes(tensors, step, case.draft_len)
        last = (on * on.new_ones(case.draft_len).cumsum(0)).amax(1).sub(1).clamp(min=0)
        slots = tensors["slots"].long()
        found = tensors["state"][slots.clamp(min=0), last].double()
        return found.where((slots >= 0)[:, None, None, None], 0.0)

    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        """Count the state read once, and again at a tree's branches, and written T times; inputs and outputs."""
        token = self.layout.verify_bytes(shape, point)
        state, n = shape.state_elements * point.state_bytes, point.draft_len
        return Step(
            bytes_read=point.batch * (state * (1 + point.rereads) + token.read + token.row) + token.shared,
            bytes_write=point.batch * (state * n + token.write),
            flops=point.batch * shape.n_v_heads * n * FLOPS[self.family].conventional(shape.d_v, shape.d_k),
            serial=n,
            shared_read=token.shared,
        )

    def paper(self, shape: Shape, point: Point) -> Step:
        """Count the state alone: read once, written T times. Source: paper, App. A.1."""
        traffic, n = state_traffic(self.key), point.draft_len
        reads, writes = traffic.counts(n)
        state = point.batch * shape.state_elements * point.state_bytes
        flops = point.batch * shape.n_v_heads * n * FLOPS[self.family].conventional(shape.d_v, shape.d_k)
        return Step(reads * state, writes * state, flops, traffic.launches, traffic.chain(n))
