"""Bytes of one request as a serving engine allocates it: a plain sum, or pages of one size.

``bytes`` adds up what a request keeps: states with their convolution windows, records, cursors, keys and values.

``vllm`` gives every layer of a hybrid model pages of one size, for which one state, its convolution window and its
records fit, or a whole number of tokens of attention. Layers are put into groups of G, the number of layers of the
rarer kind, attention; a page holds one layer's share, and a block G of them, one per layer of a group. A request takes

    blocks = ceil(n_ssm / G) * (T for snapshots, else 1) + ceil(n_attn / G) * ceil(context / tokens per page)

blocks of G pages. Where one kind of layer has less than a quarter more layers than the other, G is the larger number.
The attention layers of a drafter that the model brings along count as attention layers of the model.

Source: vLLM pull request 47576 (page and ring), vLLM's v1/core/kv_cache_utils.py (groups), platforms/interface.py
(size of a page).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from perfkit.errors import InputError
from perfkit.profiles.schema import Model
from perfkit.roofline.crossover import kv_bytes_per_token
from perfkit.roofline.footprint import HOLDINGS, Footprint, footprint
from perfkit.roofline.split import part_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How an engine allocates.

    Attributes:
        key: its name.
        paged: whether all layers have pages of one size.
        ring_drafts: whether the replay buffer has T slots beside its L; without them a flush, which comes at
            h + T > L all the same, reuses what it folds.
        ring_power: whether the buffer's slots are rounded up to a power of two.
        page_tokens: pages hold a multiple of this many tokens. vLLM's attention kernels ask for 16 or more; the
            published arithmetic has whole tokens, which makes a page of thousands at most 15 tokens smaller.
        utilization: share of a GPU's memory that the engine takes unless told otherwise (vLLM: what the pull request's
            script of speculative decoding passes).
    """

    key: str
    paged: bool
    ring_drafts: bool
    ring_power: bool
    page_tokens: int = 1
    utilization: float = 1.0

    def ring_slots(self, window: int, draft_len: int) -> int:
        """Return the records that the replay buffer has room for."""
        slots = window + draft_len if self.ring_drafts else window
        return 1 << (slots - 1).bit_length() if self.ring_power else slots


ENGINES: Mapping[str, Engine] = MappingProxyType(
    {
        "bytes": Engine(key="bytes", paged=False, ring_drafts=True, ring_power=False),
        "vllm": Engine(key="vllm", paged=True, ring_drafts=False, ring_power=True, utilization=0.9),
    }
)


def find_engine(engine: str | Engine) -> Engine:
    """Return an engine by its key; one that is given is returned.

    Raises:
        InputError: no such engine.
    """
    if isinstance(engine, Engine):
        return engine
    if engine not in ENGINES:
        raise InputError("unknown engine", field="engine", value=engine, allowed=ENGINES)
    return ENGINES[engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMemory:
    """One request's bytes on one GPU, all layers together.

    Attributes:
        engine: whose rules.
        total: what the engine allocates, padding and scratch included.
        state: states of the recurrence, and second checkpoints.
        records: replay buffers or cached inputs, and cursors.
        conv: convolution windows.
        kv: keys and values of ``context`` tokens.
        ring_slots: records that each replay buffer has room for; 0 without one.
        page: bytes of a page; None where the engine has none.
        group: layers of a group, G, and so pages of a block; None without pages.
        blocks: blocks of a request; None without pages.
        page_tokens: tokens of attention in a page; None without pages or attention.
    """

    engine: str
    total: int
    state: int
    records: int
    conv: int
    kv: int
    ring_slots: int = 0
    page: int | None = None
    group: int | None = None
    blocks: int | None = None
    page_tokens: int | None = None

    @property
    def padding(self) -> int:
        """What is allocated and holds nothing: ends of pages, layers that a group lacks, scratch."""
        return self.total - self.state - self.records - self.conv - self.kv


def request_memory(
    model: Model,
    method: str,
    *,
    context: int,
    engine: str | Engine = "vllm",
    draft_len: int = 1,
    window: int | None = None,
    tp: int = 1,
    drafter: bool = False,
    kv_dtype: str = "float8_e4m3fn",
    state_dtype: str | None = None,
    read_dtype: str | None = None,
    input_dtype: str = "bfloat16",
) -> RequestMemory:
    """Return the bytes of one request on each of ``tp`` GPUs.

    Args:
        model: the whole model.
        method: conventional, snapshot, replay or a prior method.
        context: tokens that the request has at its longest, prompt included.
        engine: a key of :data:`ENGINES` or rules of one's own.
        draft_len: T, positions per step: drafted tokens and one.
        window: L, of replay.
        tp: GPUs that share the model.
        drafter: whether the model's own draft layers run beside it and keep keys and values too.
        kv_dtype: format of keys and values.
        state_dtype: format of the recurrence's checkpoint; the model's if None.
        read_dtype: format of a second checkpoint that most steps read, if there is one.
        input_dtype: dtype of records and of the convolution's inputs.

    Raises:
        InputError: a context beyond the model's, T > L, a model that does not split evenly, or an unknown name.
    """
    rules, part = find_engine(engine), part_of(model, tp)
    if context < 1:
        raise InputError("must be at least 1 token", field="context", value=context)
    if model.max_context is not None and context > model.max_context:
        raise InputError(f"longer than {model.key} takes", field="context", value=context,
                         allowed=f"1..{model.max_context}")  # fmt: skip
    slots = None
    if window is not None and method in HOLDINGS and HOLDINGS[method].ring:
        slots = rules.ring_slots(window, draft_len)
    held = footprint(part.shape, method, draft_len=draft_len, window=window, ring_slots=slots,
                     conv_kernel=model.conv_kernel, state_dtype=state_dtype or model.state_dtype,
                     read_dtype=read_dtype, input_dtype=input_dtype)  # fmt: skip
    n_attn = model.n_attn_layers + (model.n_mtp_layers if drafter and model.n_attn_layers else 0)
    token = kv_bytes_per_token(part, kv_dtype) / model.n_attn_layers if model.n_attn_layers else 0.0
    n_ssm = model.n_ssm_layers
    memory = RequestMemory(
        engine=rules.key, total=0, state=n_ssm * (held.state + held.read), conv=n_ssm * held.conv,
        records=n_ssm * (held.records + held.cursors), kv=int(n_attn * token * context), ring_slots=slots or 0,
    )  # fmt: skip
    if rules.paged:
        return _paged(memory, rules, held, n_ssm, n_attn, token, context)
    return replace(memory, total=n_ssm * held.kept + memory.kv + held.scratch)


def group_size(n_ssm: int, n_attn: int) -> int:
    """Return G, the layers of a group: the rarer kind's number, or the other's where it is less than 1.25 times that.

    Source: vLLM, v1/core/kv_cache_utils.py.
    """
    if not n_attn:
        return n_ssm
    low, high = min(n_ssm, n_attn), max(n_ssm, n_attn)
    return high if high < 1.25 * low else low


def _paged(
    memory: RequestMemory, rules: Engine, held: Footprint, n_ssm: int, n_attn: int, token: float, context: int
) -> RequestMemory:
    """Return the request in pages. Cursors are no part of them: the engine has one a block, not one a head."""
    page = -(-(held.kept - held.cursors) // held.slots)
    group = group_size(n_ssm, n_attn)
    blocks, tokens = -(-n_ssm // group) * held.slots, None
    if n_attn:
        unit = token * rules.page_tokens
        tokens = rules.page_tokens * math.ceil(page / unit)
        page = math.ceil(tokens * token)
        blocks += -(-n_attn // group) * -(-context // tokens)
    return replace(memory, page=page, group=group, blocks=blocks, page_tokens=tokens, records=n_ssm * held.records,
                   total=blocks * group * page + held.scratch)  # fmt: skip
