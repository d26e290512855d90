"""STree verify for Mamba-2 as released: two more copies of the state around the same replay and scan.

The released code keeps a checkpoint and a working state apart. A step replays what was committed in place on the
checkpoint; gathers the states that its beam search selected into a temporary and copies that back; copies the
checkpoint to the working state; and scans reading the working state. With one draft, chain or tree, a request selects
its own state, so the copies are identities and :mod:`perfkit.kernels.mamba2.stree_verify` leaves them out; here they
run as they would, each with a read and a write of the whole state. Five launches: the selection is a gather and a copy.

Source: paper, App. A, App. A.1 (STree, the released path).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfkit.kernels.mamba2 import layout
from perfkit.kernels.mamba2.masked_replay import replay_launch
from perfkit.kernels.mamba2.stree_verify import StreeVerify, stree_step
from perfkit.kernels.mamba2.tree_scan import scan_launch
from perfkit.kernels.state_copy import COPY_CONFIGS, copy_launch
from perfkit.method import Buffer, Case, Config, Launch, Number, Point, Step
from perfkit.shape import Shape

#: Copies of the state that the released path adds.
COPIES = 3


class StreeReleasedVerify(StreeVerify):
    """5R + 4W of the state at every step, whatever was accepted."""

    key = "stree_released"
    source = "paper, App. A.1 (STree, the released path)"

    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return what ``stree`` has, and two more caches of states: ``selected`` and ``working``, scratch."""
        other = replace(layout.state(case), role="scratch")
        return {**super().buffers(case), "selected": other, "working": other}

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """Five launches: masked replay, gather, copy back, copy to the working state, scan."""
        t, tile, warps = tensors, config["copy_tile"], config["copy_warps"]
        yield replay_launch(case, t, step, config["replay_rows"], config["replay_warps"])
        yield copy_launch(case, t, t["state"], t["selected"], tile, warps)
        yield copy_launch(case, t, t["selected"], t["state"], tile, warps)
        yield copy_launch(case, t, t["state"], t["working"], tile, warps)
        yield scan_launch(case, config, t, t["working"])

    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        """Count what ``stree`` does and the copies, each of which reads a row's slot too."""
        found = stree_step(shape, point, h)
        state = point.batch * shape.state_elements * point.state_bytes
        return replace(
            found,
            bytes_read=found.bytes_read + COPIES * (state + 4 * point.batch),
            bytes_write=found.bytes_write + COPIES * state,
            launches=found.launches + COPIES,
        )

    def configs(self, case: Case) -> Sequence[Config]:
        """Return those of ``stree`` with the first copy, then the other copies with the first of ``stree``."""
        both = super().configs(case)
        pairs = [(config, COPY_CONFIGS[0]) for config in both] + [(both[0], copy) for copy in COPY_CONFIGS[1:]]
        return [Config.of(**dict(config.values), copy_tile=tile, copy_warps=warps) for config, (tile, warps) in pairs]


METHOD = StreeReleasedVerify()
