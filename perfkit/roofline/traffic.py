"""Bytes that state and replay buffer move: the paper's counts per head, and blocks of exact counts per layer.

The *paper* counts keys once per value head, leaves inputs and outputs out and takes a cycle as exactly L / a steps.
*Exact* counts are what DRAM moves: keys shared by a group count once, and what a step costs at each h is averaged
over the cursor's stationary distribution (:func:`expected`). Everything broadcasts over numpy arrays.

Source: paper, App. C.2, App. C.3, App. C.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from perfkit.errors import InputError
from perfkit.roofline.cursor import Chain
from perfkit.shape import Shape

GATE_BYTES = 4  # log-decay (Mamba-2: dt) is kept in FP32


class Counts(NamedTuple):
    """Bytes read and bytes written; numbers or arrays."""

    bytes_read: Any
    bytes_write: Any

    @property
    def total(self) -> Any:
        """Bytes moved in both directions."""
        return self.bytes_read + self.bytes_write


def state_bytes(shape: Shape, element_bytes: Any = 4) -> Any:
    """Return M_S, the bytes of one head's state."""
    return element_bytes * shape.d_v * shape.d_k


def record_bytes(shape: Shape, input_bytes: Any = 2, *, raw_gate: bool = False) -> Any:
    """Return r, the bytes of one head's record as the paper counts it: values, keys, decay.

    2 d_v + 2 d_k + 4 with BF16 inputs and an FP32 decay. KDA's decay is a vector: 2 d_v + 6 d_k, or 2 d_v + 4 d_k
    with ``raw_gate``, the gate kept as the BF16 input that it is computed from.

    Source: paper, App. C.3; KDA: arXiv 2510.26692 (a decay per channel), the same rule.
    """
    vectors = input_bytes * (shape.d_v + shape.d_k)
    if shape.family == "kda":
        return vectors + shape.d_k * (input_bytes if raw_gate else GATE_BYTES)
    if raw_gate:
        raise InputError("only a decay per channel has a raw gate to keep", field="family", value=shape.family)
    return vectors + GATE_BYTES


def m_conv(shape: Shape, window: Any, element_bytes: Any = 4) -> Any:
    """Return the bytes of L conventional steps of one head: 2 L M_S. Source: paper, Eq. 13."""
    return 2 * window * state_bytes(shape, element_bytes)


def m_replay(shape: Shape, window: Any, element_bytes: Any = 4, record: Any = None) -> Any:
    """Return the bytes of one replay window of L decode steps of one head. Source: paper, Eq. 13."""
    return window * replay_decode_counts(shape, window, element_bytes, record).total


def ratio_paper(shape: Shape, window: Any, element_bytes: Any = 4, record: Any = None) -> Any:
    """Return M_replay / M_conv: 0.5812 for 64 x 128 at L = 16. Source: paper, Eq. 13, App. C.3."""
    return m_replay(shape, window, element_bytes, record) / m_conv(shape, window, element_bytes)


def conventional_counts(shape: Shape, element_bytes: Any = 4) -> Counts:
    """Return the bytes of one conventional step of one head. Source: paper, App. C.1."""
    size = state_bytes(shape, element_bytes)
    return Counts(size, size)


def replay_decode_counts(shape: Shape, window: Any, element_bytes: Any = 4, record: Any = None) -> Counts:
    """Return the bytes of one replay decode step of one head, averaged over a window. Source: paper, App. C.3.

    The L steps read the checkpoint L times and L(L-1)/2 records; they write it once and L - 1 records.
    """
    window = np.asarray(window)
    size = state_bytes(shape, element_bytes)
    per_record = record_bytes(shape) if record is None else record
    return Counts(size + (window - 1) / 2 * per_record, (size + (window - 1) * per_record) / window)


def traffic_per_token(
    shape: Shape, window: Any, draft_len: Any = 1, accepted: Any = 1, element_bytes: Any = 4, record: Any = None
) -> Any:
    """Return f(L), the replay bytes of one head per committed token. Source: paper, Eq. 15."""
    window = np.asarray(window, dtype=np.float64)
    size = state_bytes(shape, element_bytes)
    per_record = record_bytes(shape) if record is None else record
    checkpoint = size / accepted + size / window
    reads = per_record * window / (2 * accepted) - per_record / 2
    writes = per_record * draft_len / accepted - per_record * draft_len / window
    return checkpoint + reads + writes


def replay_chain_counts(shape: Shape, chain: Chain, element_bytes: Any = 4, record: Any = None) -> Counts:
    """Return the bytes of one replay step of one head, averaged over the cursor's real cycle: [windows] each.

    Records and state are counted as the paper does; the cycle is the Markov chain's, flush steps of verify write
    their T records, and cycles of verify start at h = a.
    """
    size = state_bytes(shape, element_bytes)
    per_record = record_bytes(shape) if record is None else record
    stored = np.where(chain.flush, 0, 1) if chain.draft_len == 1 else chain.draft_len
    return Counts(
        chain.mean(size + chain.h * per_record),
        chain.mean(size * chain.flush + stored * per_record),
    )


def layer_state_bytes(shape: Shape, element_bytes: Any = 4) -> Any:
    """Return the bytes of one sequence's state in one layer."""
    return shape.state_elements * element_bytes


def layer_record_bytes(shape: Shape, input_bytes: Any = 2, gate_bytes: Any = GATE_BYTES) -> Any:
    """Return the bytes of one token's records in one layer, keys counted once per key head.

    Values and decay belong to value heads; KDA's decay has d_k channels a head.
    """
    values = shape.n_v_heads * shape.d_v * input_bytes
    keys = shape.n_k_heads * shape.d_k * input_bytes
    gates = shape.n_v_heads * (shape.d_k if shape.family == "kda" else 1) * gate_bytes
    return values + keys + gates


def expected(step_fn: Callable[[Any, Any], Any], chain: Chain) -> Any:
    """Return the expectation of a step over the cursor's stationary distribution.

    Args:
        step_fn: (h, flush) -> a frozen dataclass of numbers or [steps] arrays, such as ``perfkit.method.Step``; it is
            called once with the chain's flat arrays. For several windows it takes the window from ``chain.window``.
        chain: of one window or of several.

    Returns:
        The same dataclass: floats for one window, [windows] arrays for several.
    """
    step = step_fn(chain.h, chain.flush)
    means = {item.name: chain.mean(getattr(step, item.name)) for item in fields(step)}
    if len(chain.starts) == 1:
        return replace(step, **{name: float(value[0]) for name, value in means.items()})
    return replace(step, **means)
