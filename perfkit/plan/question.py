"""What a plan is asked: a model on a GPU under a load, and what may be chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from perfkit.errors import InputError
from perfkit.method import Method
from perfkit.plan.drafts import Drafts
from perfkit.plan.methods import built_in
from perfkit.presets import FLUSH_PHASES
from perfkit.profiles import Gpu, Model
from perfkit.roofline import (
    NO_OVERHEADS,
    OVERHEAD_ESTIMATES,
    ROUTINGS,
    Budget,
    Engine,
    Overheads,
    Roofs,
    StepModel,
    find_engine,
    part_of,
    request_budget,
    step_model,
)
from perfkit.roofline.efficiency import OURS
from perfkit.roofline.footprint import HOLDINGS
from perfkit.roofline.weights import QUANTIZED_DTYPES

#: Windows that are compared where nobody says which.
WINDOWS = tuple(range(2, 65))
#: What serving engines have; the methods of earlier papers are for those who name them.
METHODS = ("conventional", "snapshot", "replay")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Everything that a plan depends on.

    Attributes:
        model: the whole model.
        gpu: each of the ``tp`` GPUs.
        roofs: of that GPU.
        concurrency: requests at once.
        context: tokens of a request: what its memory holds, and what attention reads at every step.
        engine: whose memory per request.
        drafts: draft lengths and acceptance.
        windows: L to choose from; () for all that the engine takes.
        methods: keys.
        state_dtypes: of the checkpoint, to choose from.
        input_dtype: of inputs and records.
        kv_dtype: of keys and values.
        weight_dtype: of routed experts, and of all weights of a dense model, in place of the model's.
        tp: GPUs that share the model.
        routing: how rows pick experts.
        slowdown: φ, of the state-space kernels inside the model.
        overheads: an engine's own time.
        memory_gb: of one GPU, in place of its own.
        utilization: share of it that the engine takes, in place of the engine's.
        reserve_gb: what the engine sets aside.
        flush_phase: staggered, rows at different points of their cycles, or aligned.
        impls: whose kernels: of each method those of the first that is known to have some.
        sla_ms: limit on ``sla_on``; None for none.
        sla_on: ``step``, the 99th percentile of a step, or ``token``, the mean time per token that a user sees.
    """

    model: Model
    gpu: Gpu
    roofs: Roofs
    concurrency: int
    context: int
    engine: Engine
    drafts: Drafts = field(default_factory=Drafts)
    windows: tuple[int, ...] = ()
    methods: tuple[str, ...] = METHODS
    state_dtypes: tuple[str, ...]
    input_dtype: str = "bfloat16"
    kv_dtype: str = "float8_e4m3fn"
    weight_dtype: str | None = None
    tp: int = 1
    routing: str = "independent"
    slowdown: float = 1.0
    overheads: Overheads = NO_OVERHEADS
    memory_gb: float | None = None
    utilization: float | None = None
    reserve_gb: float = 0.0
    flush_phase: str = "staggered"
    impls: tuple[str, ...] = (OURS,)
    sla_ms: float | None = None
    sla_on: str = "step"

    def __post_init__(self) -> None:
        for name, value, least in (("concurrency", self.concurrency, 1), ("context", self.context, 1)):
            if value < least:
                raise InputError(f"must be at least {least}", field=f"--{name}", value=value)
        most = self.model.max_context
        if most is not None and self.context > most:
            raise InputError(f"longer than {self.model.key} takes", field="--context", value=self.context,
                             allowed=f"1..{most}")  # fmt: skip
        if self.flush_phase not in FLUSH_PHASES:
            raise InputError("unknown flush phase", field="--flush-phase", value=self.flush_phase,
                             allowed=FLUSH_PHASES)  # fmt: skip
        if self.routing not in ROUTINGS:
            raise InputError("how rows pick experts", field="--routing", value=self.routing, allowed=ROUTINGS)
        if not 1 <= self.slowdown < float("inf"):
            raise InputError("must be at least 1", field="--slowdown", value=self.slowdown)
        if self.sla_ms is not None and not 0 < self.sla_ms < float("inf"):
            raise InputError("must be above 0 ms", field="--sla-ms", value=self.sla_ms)
        if self.sla_on not in ("step", "token"):
            raise InputError("what the limit is on", field="--sla-on", value=self.sla_on, allowed="step, token")
        if self.windows and max(self.windows) < max(self.drafts.lengths):
            raise InputError("T does not fit into any window: it must be at most L", field="--window",
                             value=",".join(map(str, self.windows)),
                             allowed=f"{max(self.drafts.lengths)} or more")  # fmt: skip

    @property
    def part(self) -> Model:
        """What one GPU holds of the model."""
        return part_of(self.model, self.tp)

    @property
    def drafter(self) -> bool:
        """Whether the model's own layers draft, where drafts are made."""
        return self.model.n_mtp_layers > 0

    def candidates(self, draft_len: int) -> tuple[int, ...]:
        """Return the windows to choose from at T, ascending: those of the engine, or those that were named."""
        if self.windows:
            return tuple(sorted(window for window in set(self.windows) if window >= draft_len))
        return tuple(window for window in WINDOWS if window >= draft_len and engine_takes(self.engine, window))

    def budget(self, draft_len: int) -> Budget:
        """Return the memory for requests; with drafts the drafter's weights are beside the model's.

        Raises:
            InputError: the weights do not fit.
        """
        return request_budget(
            self.model, self.gpu, memory_gb=self.memory_gb, engine=self.engine, utilization=self.utilization,
            reserve_gb=self.reserve_gb, tp=self.tp, drafter=draft_len > 1 and self.drafter,
            expert_dtype=self.weight_dtype,
        )  # fmt: skip

    def step_model(self) -> StepModel:
        """Return what a whole step is made of."""
        return step_model(self.model, self.gpu, roofs=self.roofs, tp=self.tp, kv_dtype=self.kv_dtype,
                          expert_dtype=self.weight_dtype, overheads=self.overheads)  # fmt: skip

    def known_methods(self, draft_len: int) -> list[Method]:
        """Return the methods of a phase whose memory per request is known, in the order of the question."""
        phase = "decode" if draft_len == 1 else "verify"
        found = (built_in(self.model.family, key, phase) for key in self.methods)
        return [method for method in found if method is not None]

    def but(self, **changes: Any) -> Question:
        """Return the same question with something else about it."""
        return replace(self, **changes)


def engine_takes(engine: Engine, window: int) -> bool:
    """Say whether a window is one of the engine's: where it rounds its ring to a power of two, others are that one."""
    return not engine.ring_power or engine.ring_slots(window, 0) == window


def make_question(
    model: Model, gpu: Gpu, roofs: Roofs, *, engine: str = "vllm", context: int | None = None,
    state_dtypes: tuple[str, ...] = (), kv_dtype: str | None = None, overheads: str | None = None,
    methods: tuple[str, ...] = METHODS, **given: Any,
) -> Question:  # fmt: skip
    """Return a question with what nobody said filled in.

    Args:
        model: the model.
        gpu: the GPU.
        roofs: of that GPU.
        engine: a key of :data:`perfkit.roofline.ENGINES`.
        context: 8,192 tokens, or what the model takes at most, if None.
        state_dtypes: the model's if empty.
        kv_dtype: FP8 for checkpoints of quantized weights, BF16 for others, if None.
        overheads: ``none`` or a key of :data:`perfkit.roofline.OVERHEAD_ESTIMATES`; if None the engine's estimate
            where there is one: leaving it out makes gains look larger than they are.
        methods: keys, or ``all``.
        given: fields of :class:`Question`.

    Raises:
        InputError: names the flag, the value and what is allowed.
    """
    rules = find_engine(engine)
    estimates: Mapping[str, Overheads] = {"none": NO_OVERHEADS, **OVERHEAD_ESTIMATES}
    named = overheads if overheads is not None else rules.key if rules.key in estimates else "none"
    if named not in estimates:
        raise InputError("unknown estimate", field="--overheads", value=named, allowed=estimates)
    quantized = (given.get("weight_dtype") or model.weight_dtype) in QUANTIZED_DTYPES
    most = model.max_context or 8192
    return Question(
        model=model, gpu=gpu, roofs=roofs, engine=rules, context=context if context is not None else min(8192, most),
        state_dtypes=state_dtypes or (model.state_dtype,), overheads=estimates[named],
        kv_dtype=kv_dtype or ("float8_e4m3fn" if quantized else "bfloat16"),
        methods=_methods(model.family, methods), **given,
    )  # fmt: skip


def _methods(family: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the methods of a plan.

    Raises:
        InputError: a key that no family has, or a plug-in: what a request keeps is not known of one.
    """
    for key in keys:
        if key not in ("all", *HOLDINGS):
            raise InputError("no memory per request is known of it", field="--method", value=key,
                             allowed=["all", *HOLDINGS])  # fmt: skip
    found = tuple(HOLDINGS) if "all" in keys else keys
    # Without the conventional step there is nothing to gain over.
    return tuple(dict.fromkeys(("conventional", *found)))
