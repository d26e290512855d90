"""STree verify for Mamba-2: replay what was committed in place, then scan the positions without storing a state.

Two launches: the masked replay brings the checkpoint up to what the last step committed, from the cache of that step's
inputs; the scan reads it once as its initial state, writes outputs only, and caches this step's inputs. A tree's replay
goes by path membership, and its scan weighs each node's ancestors by path sums; for one chain the tree mask is a
causal mask, which the scan computes instead of loading it.

Source: paper, App. A, App. A.1 (STree, as its algorithm).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfkit.kernels.mamba2 import layout
from perfkit.kernels.mamba2.masked_replay import (
    cache_buffers,
    replay_bytes,
    replay_configs,
    replay_launch,
    replayed,
)
from perfkit.kernels.mamba2.tree_scan import scan_bytes, scan_configs, scan_launch
from perfkit.method import Buffer, Case, Config, Launch, Method, Number, Point, Step
from perfkit.roofline.flops import output_only_verify_flops
from perfkit.roofline.state_traffic import state_traffic
from perfkit.shape import Shape


def stree_flops(shape: Shape, point: Point) -> Number:
    """Return the FLOPs of a step: T updates of the state (decay, outer product, sum), and outputs without a state."""
    n = point.draft_len
    replay = 3 * n * shape.d_v * shape.d_k
    return point.batch * shape.n_v_heads * (replay + output_only_verify_flops(shape.d_v, shape.d_k, 0, n))


def stree_step(shape: Shape, point: Point, h: Number) -> Step:
    """Count the two launches: each reads the state and a row's slot, the first writes the state, the second outputs."""
    read, write = replay_bytes(shape, point, h)
    scan_read, scan_write, shared = scan_bytes(shape, point)
    shared = shared + 4 * shape.n_v_heads  # the replay reads ``a`` as well
    return Step(
        bytes_read=point.batch * (read + scan_read) + shared,
        bytes_write=point.batch * (write + scan_write),
        flops=stree_flops(shape, point),
        launches=2,
        serial=point.draft_len,
        shared_read=shared,
    )


class StreeVerify(Method):
    """2R + 1W of the state at every step, whatever was accepted."""

    key = "stree"
    family = "mamba2"
    phase = "verify"
    source = "paper, App. A.1 (STree)"
    trees = True

    def supports(self, case: Case) -> str | None:
        """Return None, or why not."""
        return layout.unsupported_verify(case)

    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return the state cache [slots, n_v_heads, d_v, d_k] in the state dtype and the cache of a step's inputs.

        All of them are read and written: state, x_cache, k_cache, dt_cache.
        """
        return {"state": layout.state(case), **cache_buffers(case)}

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """Two launches: masked replay, then scan."""
        yield replay_launch(case, tensors, step, config["replay_rows"], config["replay_warps"])
        yield scan_launch(case, config, tensors, tensors["state"])

    def start(self, case: Case, tensors: Mapping[str, Any], state: Any, origin: Any = 0) -> None:
        """Store the rows' states in their slots; the step that comes next has nothing to replay."""
        layout.store_state(tensors, state)

    def committed(self, case: Case, tensors: Mapping[str, Any], step: int = 0) -> Any:
        """Return the checkpoints advanced by the accepted tokens, float64; zeros for padded rows."""
        return replayed(tensors, step)

    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        """Count the state twice read and once written, the h cached tokens, inputs, outputs and the new cache."""
        return stree_step(shape, point, h)

    def paper(self, shape: Shape, point: Point) -> Step:
        """Count the state alone. Source: paper, App. A.1."""
        traffic = state_traffic(self.key)
        reads, writes = traffic.counts(point.draft_len)
        state = point.batch * shape.state_elements * point.state_bytes
        flops = stree_flops(shape, point)
        return Step(reads * state, writes * state, flops, traffic.launches, traffic.chain(point.draft_len))

    def configs(self, case: Case) -> Sequence[Config]:
        """Return the replay's tile height and warps with the scan's configuration: one varies, the other is default."""
        scans, replays = scan_configs(case), replay_configs(case)
        pairs = [(replays[0], scan) for scan in scans] + [(replay, scans[0]) for replay in replays[1:]]
        return [Config.of(replay_rows=rows, replay_warps=warps, **scan) for (rows, warps), scan in pairs]


METHOD = StreeVerify()
