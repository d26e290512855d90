"""What one request keeps in one state-space layer between steps, by method, in bytes.

States, the second checkpoint of a low-precision read, records, inputs cached for a recovery, the convolution's inputs,
cursors. ``Method.buffers`` of the kernels says the same of what they allocate (a test compares the two); these formulas
need no kernel, and say it of formats and engines that have none here.

Source: paper, §4 (checkpoint and records), Alg. 3 and App. B.4 (two checkpoints), App. A (prior methods), App. E.4
(formats of a checkpoint).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from perfkit.errors import InputError
from perfkit.roofline.traffic import GATE_BYTES, layer_record_bytes
from perfkit.shape import DTYPE_BYTES, Shape, dtype_name

#: Formats in which a checkpoint is kept, in the recurrence or for reading.
CHECKPOINT_DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float4_e2m1")
CURSOR_BYTES = 4  # int32
#: FP8 has an FP32 scale per this many elements of a state's row, NVFP4 an FP8 scale per that many and an FP32 one per
#: state (paper, App. E.4).
FP8_BLOCK, FP4_BLOCK = 128, 16


@dataclass(frozen=True, slots=True)
class Holding:
    """What a method keeps of a request in a layer, as counts.

    Attributes:
        states: full states.
        states_per_draft: full states for each of the T positions, each with a convolution window of its own.
        tokens_per_draft: cached inputs for each of the T positions.
        ring: whether it has a replay buffer.
        head_cursors: cursors per value head.
        row_cursors: cursors per request.
        scratch_states: states that hold nothing between steps; one set serves all layers.
    """

    states: int = 1
    states_per_draft: int = 0
    tokens_per_draft: int = 0
    ring: bool = False
    head_cursors: int = 0
    row_cursors: int = 0
    scratch_states: int = 0


HOLDINGS: Mapping[str, Holding] = MappingProxyType(
    {
        "conventional": Holding(),
        "snapshot": Holding(states=0, states_per_draft=1),
        "replay": Holding(ring=True, head_cursors=1),
        "fused_recovery": Holding(states=2, tokens_per_draft=2, head_cursors=1),
        "activation_replay": Holding(tokens_per_draft=1, scratch_states=1),
        "joint_attainment": Holding(states=2, row_cursors=2),
        "stree": Holding(tokens_per_draft=1),
        "stree_released": Holding(tokens_per_draft=1, scratch_states=2),
    }
)


#: Families whose replay keeps a cursor a request too in decode, by which a launch finds the rows that flush; of verify
#: steps all do.
RING_ROW_CURSORS = ("gdn", "kda")


@dataclass(frozen=True, slots=True)
class Footprint:
    """One request's bytes in one layer.

    Attributes:
        slots: places that hold a state and a convolution window: T for snapshots, else 1.
        state: the states of the recurrence, all slots together.
        read: the second checkpoint, which steps that do not flush read; 0 where there is one checkpoint.
        records: replay buffer, or inputs cached for a recovery.
        conv: the convolution's last inputs, all slots together.
        cursors: positions in the buffer.
        scratch: what holds nothing between steps, so that one serves all layers.
    """

    slots: int
    state: int
    read: int
    records: int
    conv: int
    cursors: int
    scratch: int

    @property
    def kept(self) -> int:
        """Bytes that the layer keeps between steps."""
        return self.state + self.read + self.records + self.conv + self.cursors


def checkpoint_bytes(shape: Shape, dtype: str) -> int:
    """Return the bytes of one layer's checkpoint of one request in a format, scales included."""
    elements = int(shape.state_elements * DTYPE_BYTES[dtype])
    rows = shape.n_v_heads * shape.d_v
    if dtype == "float8_e4m3fn":
        return elements + rows * -(-shape.d_k // FP8_BLOCK) * 4
    if dtype == "float4_e2m1":
        return elements + rows * -(-shape.d_k // FP4_BLOCK) + shape.n_v_heads * 4
    return elements


def conv_bytes(shape: Shape, conv_kernel: int, draft_len: int, input_dtype: str = "bfloat16") -> int:
    """Return the bytes of the convolution's last K - 1 inputs, and of T - 1 more to roll drafts back."""
    return int(shape.conv_channels * (conv_kernel - 1 + draft_len - 1) * DTYPE_BYTES[input_dtype])


def footprint(
    shape: Shape,
    method: str,
    *,
    draft_len: int = 1,
    window: int | None = None,
    ring_slots: int | None = None,
    conv_kernel: int = 4,
    state_dtype: str = "float32",
    read_dtype: str | None = None,
    input_dtype: str = "bfloat16",
) -> Footprint:
    """Return the bytes that one request keeps in one layer.

    Args:
        shape: the layer's.
        method: a key of :data:`HOLDINGS`.
        draft_len: T, positions per step.
        window: L, of methods with a replay buffer.
        ring_slots: records that the buffer holds; L + T if None.
        conv_kernel: K, taps of the short convolution; 1 keeps nothing in decode.
        state_dtype: format of the recurrence's checkpoint.
        read_dtype: format that steps that do not flush read, if it is another one: a second checkpoint. Delta rules
            then keep v and beta in their records too, since a flush computes u again.
        input_dtype: dtype of values and keys in records, and of the convolution's inputs. Gates are FP32.

    Raises:
        InputError: an unknown method or dtype, T or L out of range, a read format without a replay buffer.
    """
    if method not in HOLDINGS:
        raise InputError("no memory per request known", field="method", value=method, allowed=HOLDINGS)
    holding = HOLDINGS[method]
    _check(method, holding, draft_len, window, ring_slots)
    state_dtype = dtype_name(state_dtype, field="state_dtype", allowed=CHECKPOINT_DTYPES)
    input_dtype = dtype_name(input_dtype, field="input_dtype", allowed=CHECKPOINT_DTYPES[:3])
    read_dtype = dtype_name(read_dtype or state_dtype, field="read_dtype", allowed=CHECKPOINT_DTYPES)
    two = read_dtype != state_dtype
    if two and not holding.ring:
        raise InputError(f"{method} reads the checkpoint that it updates", field="read_dtype", value=read_dtype,
                         allowed=state_dtype)  # fmt: skip
    row_cursors = holding.row_cursors + (holding.ring and (shape.family in RING_ROW_CURSORS or draft_len > 1))
    tokens = holding.tokens_per_draft * draft_len
    if holding.ring:
        tokens = ring_slots if ring_slots is not None else (window or 1) + draft_len
    states = holding.states + holding.states_per_draft * draft_len
    slots = max(holding.states_per_draft * draft_len, 1)
    one = checkpoint_bytes(shape, state_dtype)
    return Footprint(
        slots=slots,
        state=states * one,
        read=checkpoint_bytes(shape, read_dtype) if two else 0,
        records=int(tokens * _token_bytes(shape, holding, input_dtype, two)),
        conv=slots * conv_bytes(shape, conv_kernel, draft_len, input_dtype),
        cursors=CURSOR_BYTES * (holding.head_cursors * shape.n_v_heads + row_cursors),
        scratch=holding.scratch_states * one,
    )


def _token_bytes(shape: Shape, holding: Holding, input_dtype: str, two: bool) -> float:
    """Return the bytes of one cached token: keys, gates, and values or the delta rule's corrections u."""
    element = DTYPE_BYTES[input_dtype]
    record = float(layer_record_bytes(shape, element))
    if shape.family == "mamba2":
        return record
    betas, values = shape.n_v_heads * GATE_BYTES, shape.n_v_heads * shape.d_v * element
    if holding.ring:
        return record + (betas + values if two else 0)  # u in the record, and v and beta beside it
    return record + betas


def _check(method: str, holding: Holding, draft_len: int, window: int | None, ring_slots: int | None) -> None:
    if draft_len < 1:
        raise InputError("must be at least 1", field="draft", value=draft_len)
    if method == "conventional" and draft_len > 1:
        raise InputError("conventional decodes one token a step", field="draft", value=draft_len, allowed="1")
    if not holding.ring:
        if window is not None or ring_slots is not None:
            raise InputError(f"{method} has no replay buffer", field="window", value=window or ring_slots)
        return
    if window is None and ring_slots is None:
        raise InputError(f"{method} needs a window", field="window", allowed="a whole number of at least T")
    if window is not None and window < draft_len:
        raise InputError(f"T = {draft_len} is more than the window holds", field="window", value=window,
                         allowed=f"at least {draft_len}")  # fmt: skip
    if ring_slots is not None and ring_slots < max(window or 1, draft_len):
        raise InputError("fewer slots than the window has records", field="ring_slots", value=ring_slots,
                         allowed=f"at least {max(window or 1, draft_len)}")  # fmt: skip
