"""What replay of both delta rules shares in both phases, beside its kernels: records (g, u, k), and what kernels take.

Source: paper, Alg. 4 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfkit.kernels.delta import INPUTS
from perfkit.kernels.replay import Replay
from perfkit.method import Case


class DeltaReplay(Replay):
    """One delta rule's replay: a record is the log decay, the correction and the key."""

    def rounds(self, case: Case) -> str | None:
        """Return the dtype that rounds the corrections u: FP16; None where inputs, and they, are FP32."""
        return None if case.input_dtype == "float32" else "float16"

    def replayed(self, case: Case, tensors: Mapping[str, Any], slots: Any, at: Any, live: Any) -> Any:
        """Return the rows' checkpoints advanced by records (g, u, k). Source: paper, Eq. 5 and 8."""
        records = self.layout.records(case, tensors, slots, at)
        return self.layout.replay_tokens(self.layout.load_state(tensors), records, live)

    def pointers(self, tensors: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return what kernels take first: state, rings, cursors, a token's inputs, the layer's parameters, slots."""
        names = ("state", "u_ring", "k_ring", "g_ring", "cursor", "row_cursor", *INPUTS, "a_log", "dt_bias", "slots")
        return tuple(tensors[name] for name in names)

    def strides(self, tensors: Mapping[str, Any], axes: int) -> tuple[int, ...]:
        """Return the inputs' strides in elements: of all from row to row, then with two axes from token to token."""
        return tuple(tensors[name].stride(axis) for axis in range(axes) for name in INPUTS)
