"""Bytes that one more request needs, as a plain sum: states, replay records, convolution state.

Serving engines round this up to pages and add their own pools; those rules are not here.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfkit.errors import InputError
from perfkit.roofline.traffic import layer_record_bytes, layer_state_bytes
from perfkit.shape import Shape


@dataclass(frozen=True, slots=True)
class RequestBytes:
    """One request's bytes in one state-space layer."""

    state: int
    records: int
    conv: int

    @property
    def total(self) -> int:
        """Their sum."""
        return self.state + self.records + self.conv


def request_bytes(
    shape: Shape,
    *,
    states: int = 1,
    slots: int = 0,
    draft_len: int = 1,
    conv_kernel: int = 4,
    state_bytes: float = 4,
    input_bytes: float = 2,
) -> RequestBytes:
    """Return the bytes of one request in one layer.

    Args:
        shape: the layer's.
        states: states kept: 1 for conventional and replay, T for snapshots.
        slots: records that the ring holds, at least L + T for replay; 0 without a replay buffer.
        draft_len: T; the convolution keeps its last ``conv_kernel - 1`` inputs and those of T - 1 drafts.
        conv_kernel: taps of the short convolution.
        state_bytes: bytes per element of the state.
        input_bytes: bytes per element of records and convolution.

    Raises:
        InputError: a count is negative or zero where there must be one.
    """
    for field, value, least in (("states", states, 1), ("slots", slots, 0), ("draft", draft_len, 1)):
        if value < least:
            raise InputError(f"must be at least {least}", field=field, value=value)
    return RequestBytes(
        state=int(states * layer_state_bytes(shape, state_bytes)),
        records=int(slots * layer_record_bytes(shape, input_bytes)),
        conv=int(shape.conv_channels * (conv_kernel - 1 + draft_len - 1) * input_bytes),
    )


def requests_that_fit(memory_bytes: float, per_layer: RequestBytes, n_layers: int) -> int:
    """Return how many requests' state fits into a budget; weights and KV cache are the caller's to take off."""
    return max(0, int(memory_bytes // (per_layer.total * n_layers)))
