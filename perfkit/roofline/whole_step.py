"""The time of a whole decode step of a model, as a sum of terms that each say what they are made of.

    t = n_ssm * t_layer * phi                       state-space kernels; t_layer is measured, recorded or predicted
      + sum over kinds of weights of max(bytes / beta, FLOPs / rate)
      + max(KV bytes / beta, FLOPs / rate)          attention over the context
      + (T - 1) * (weights, keys and values of a draft pass + m)
      + c * B * T + t0                              an engine's own, given or 0

Weights are read once a step whatever the batch; of routed experts those that some row picks
(:mod:`perfkit.roofline.experts`). Kinds of weights differ in format and run after each other, so the longer of reading
and multiplying is taken of each (:mod:`perfkit.roofline.matmuls`). How well an implementation's state-space kernel
does stays in t_layer, and nothing here is fitted.

Left out: prefill, arrivals, communication unless given (``comm_us``), the convolution and activations beyond what c
holds. phi is by how much the state-space kernels run slower inside the model than alone, as under a power cap: 1 unless
measured.

Source: paper, App. C.2 (state against keys and values), E.2.1 (what bounds the gain of a step).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import InputError
from perfkit.profiles.schema import Gpu, Model
from perfkit.roofline.crossover import kv_bytes_per_token
from perfkit.roofline.experts import distinct_rows, hit_share
from perfkit.roofline.matmuls import MatMul, draft_matmuls, step_matmuls, tensor_tflops
from perfkit.roofline.overheads import NO_OVERHEADS, Overheads
from perfkit.roofline.roof import Roofs
from perfkit.roofline.split import part_of

Term = Literal["ssm", "weights", "kv", "draft", "rows", "fixed", "comm"]
#: In the order in which a breakdown shows them.
TERMS: tuple[Term, ...] = ("ssm", "weights", "kv", "draft", "rows", "fixed", "comm")


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStep:
    """A step's time by term, in microseconds; floats, or arrays that broadcast.

    Attributes:
        batch: B, requests.
        draft_len: T, positions per request.
        ssm: state-space kernels.
        weights: matrix products of the model.
        kv: attention over keys and values.
        draft: draft passes.
        rows: c * B * T.
        fixed: t0.
        comm: all-reduces, as given.
    """

    batch: Any
    draft_len: Any
    ssm: Any
    weights: Any
    kv: Any
    draft: Any
    rows: Any
    fixed: Any
    comm: Any = 0.0

    @property
    def terms(self) -> Mapping[Term, Any]:
        """The terms by name, in microseconds."""
        return {name: getattr(self, name) for name in TERMS}

    @property
    def us(self) -> Any:
        """Their sum."""
        return self.ssm + self.rest

    @property
    def rest(self) -> Any:
        """All but the state-space kernels."""
        return self.weights + self.kv + self.draft + self.rows + self.fixed + self.comm

    @property
    def ssm_share(self) -> Any:
        """Share of the state-space kernels in the step."""
        return self.ssm / self.us

    @property
    def speedup_limit(self) -> Any:
        """What the step would gain from state-space kernels that take no time."""
        return self.us / self.rest

    def with_kernel_speedup(self, ratio: Any) -> WholeStep:
        """Return the step with state-space kernels ``ratio`` times as fast, everything else the same.

        Raises:
            InputError: a ratio that is not above 0.
        """
        _require(np.asarray(ratio) > 0, "must be above 0", "ratio", ratio)
        return replace(self, ssm=self.ssm / ratio)

    def speedup(self, ratio: Any) -> Any:
        """Return what the whole step gains from kernels ``ratio`` times as fast; below 1 it loses.

        Raises:
            InputError: a ratio that is not above 0.
        """
        return self.us / self.with_kernel_speedup(ratio).us

    def tokens_per_s(self, accepted: Any = 1.0) -> Any:
        """Return the tokens per second of all requests together, each committing ``accepted`` a step on average.

        Raises:
            InputError: below 1 or above T.
        """
        return np.multiply(self.batch, self.user_tokens_per_s(accepted))[()]

    def user_tokens_per_s(self, accepted: Any = 1.0) -> Any:
        """Return the tokens per second that one request sees; its inverse is the time per output token.

        Raises:
            InputError: as :meth:`tokens_per_s`.
        """
        mean = np.asarray(accepted, dtype=np.float64)
        _require((mean >= 1) & (mean <= self.draft_len), "must be 1..T tokens a step", "accepted", accepted)
        return (mean / self.us * 1e6)[()]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """What a step of one model on one GPU is made of; :func:`step_model` makes one.

    Attributes:
        model: key.
        n_ssm: state-space layers.
        matmuls: of a pass through the model.
        draft_matmuls: of a draft pass; () where the model brings no draft layers.
        kv_bytes: of one token of one request in all attention layers.
        kv_flops: of one row over one token of context in all attention layers.
        draft_kv: the share of them that a draft pass reads and makes.
        kv_tflops: the rate of attention, 10^12 FLOPs per second.
        read_gb_s: beta, bandwidth at which weights, keys and values are read, 10^9 bytes per second.
        top_k: experts that a row picks; None without routed experts.
        experts: of a layer.
        max_context: of the model, in tokens; None where it is not known.
        overheads: the engine's own.
    """

    model: str
    n_ssm: int
    matmuls: tuple[MatMul, ...]
    draft_matmuls: tuple[MatMul, ...]
    kv_bytes: float
    kv_flops: float
    draft_kv: float
    kv_tflops: float
    read_gb_s: float
    top_k: int | None
    experts: int | None
    max_context: int | None
    overheads: Overheads

    def step(
        self, layer_us: Any, batch: Any, *, draft_len: Any = 1, context: Any = 0, routing: str = "independent",
        slowdown: Any = 1.0, comm_us: Any = 0.0,
    ) -> WholeStep:  # fmt: skip
        """Return the time of a step by term; all arguments but ``routing`` may be arrays that broadcast.

        Args:
            layer_us: of one state-space layer at this batch and T, flushes included, in microseconds.
            batch: B, requests that run at once.
            draft_len: T, positions per request; the T - 1 drafts of the next step are part of this one.
            context: tokens that attention reads of each request, on average.
            routing: independent or identical (:func:`perfkit.roofline.experts.distinct_rows`).
            slowdown: phi, of the state-space kernels inside the model.
            comm_us: of all-reduces, where GPUs share the model.

        Raises:
            InputError: a number out of range, a context that the model does not take, or an unknown routing.
        """
        _require(np.asarray(layer_us) > 0, "must be above 0", "layer_us", layer_us)
        _require(np.asarray(batch) >= 1, "must be at least 1", "batch", batch)
        _require(np.asarray(draft_len) >= 1, "must be at least 1", "draft", draft_len)
        _require(np.asarray(context) >= 0, "must be at least 0", "context", context)
        _require(np.asarray(slowdown) >= 1, "must be at least 1", "slowdown", slowdown)
        _require(np.asarray(comm_us) >= 0, "must be at least 0", "comm_us", comm_us)
        if self.max_context is not None:
            _require(np.asarray(context) <= self.max_context, f"longer than {self.model} takes", "context", context)
        rows = np.multiply(batch, draft_len, dtype=np.float64)
        passes = np.subtract(draft_len, 1.0)
        # A draft pass has one row of each request; what it commits of the last step it does in its first, uncounted.
        one = self._matmul_us(self.draft_matmuls, np.asarray(batch), distinct_rows(routing, batch))
        one = one + self.draft_kv * self._kv_us(batch, 1, context) + self.overheads.pass_us
        terms = {
            "ssm": self.n_ssm * np.multiply(layer_us, slowdown),
            "weights": self._matmul_us(self.matmuls, rows, distinct_rows(routing, batch, draft_len)),
            "kv": self._kv_us(batch, draft_len, context),
            "draft": passes * one,
            "rows": self.overheads.row_us * rows,
        }
        return WholeStep(batch=batch, draft_len=draft_len, fixed=self.overheads.step_us, comm=comm_us,
                         **{name: np.asarray(term, dtype=np.float64)[()] for name, term in terms.items()})  # fmt: skip

    def weight_bytes_read(self, rows: Any) -> Any:
        """Return W_hit, the bytes of weights that a step with ``rows`` distinct rows reads; arrays broadcast."""
        hit = self._hit(rows)
        return sum((part.bytes_read(hit) for part in self.matmuls), np.float64(0.0))

    def crossover_tokens(self, layer_us: Any, batch: Any, *, draft_len: Any = 1, slowdown: Any = 1.0) -> Any:
        """Return the context at which attention over keys and values takes as long as the state-space kernels.

        Infinite without attention. Where both run at one bandwidth it is the count of bytes,
        :func:`perfkit.roofline.crossover.crossover_tokens`: 81,920 tokens for Nemotron-3-Super.
        """
        with np.errstate(divide="ignore"):
            return (self.n_ssm * np.multiply(layer_us, slowdown) / self._kv_us(batch, draft_len, 1.0))[()]

    def _hit(self, rows: Any) -> Any:
        return hit_share(rows, self.top_k, self.experts) if self.top_k and self.experts else 1.0

    def _matmul_us(self, matmuls: tuple[MatMul, ...], rows: Any, distinct: Any) -> NDArray[np.float64]:
        hit = self._hit(distinct)
        times = [part.time_us(rows, hit, self.read_gb_s) for part in matmuls]
        return np.asarray(sum(times, np.zeros_like(rows, dtype=np.float64)))

    def _kv_us(self, batch: Any, draft_len: Any, context: Any) -> NDArray[np.float64]:
        """The T rows of a request share one read of its keys and values."""
        tokens = np.multiply(batch, context, dtype=np.float64)
        memory, multiply = self.kv_bytes / (self.read_gb_s * 1e3), self.kv_flops / (self.kv_tflops * 1e6)
        return np.asarray(tokens * np.maximum(memory, np.multiply(draft_len, multiply)))


def step_model(
    model: Model, gpu: Gpu, *, read_gb_s: float | None = None, roofs: Roofs | None = None, tp: int = 1,
    kv_dtype: str = "float8_e4m3fn", expert_dtype: str | None = None, dense_dtype: str | None = None,
    drafter: bool = True, overheads: Overheads = NO_OVERHEADS,
) -> StepModel:  # fmt: skip
    """Return what a step of a model on a GPU is made of, on each of ``tp`` GPUs.

    Args:
        model: the whole model.
        gpu: its rates of matrix products.
        read_gb_s: bandwidth of reading weights, keys and values, in 10^9 bytes per second; the read roof if None.
        roofs: the GPU's roofs: bandwidth where it is not given, and a measured rate of BF16 products.
        tp: GPUs that share the model.
        kv_dtype: format of keys and values.
        expert_dtype: format of the routed experts, and of all weights of a dense model, in place of the model's.
        dense_dtype: format of the other weights, in place of the model's.
        drafter: whether drafts come from the model's own layers; otherwise, and where it has none, a draft pass costs
            ``overheads.pass_us`` alone.
        overheads: an engine's; nothing if left out.

    Raises:
        InputError: neither a bandwidth nor roofs; a size, format or split of the model that is not known.
    """
    if read_gb_s is None and roofs is None:
        raise InputError("give a bandwidth or the GPU's roofs", field="read_gb_s")
    beta = read_gb_s if read_gb_s is not None else roofs.read_gb_s if roofs is not None else 0.0
    if not 0 < beta < float("inf"):
        raise InputError("must be above 0 GB/s", field="read_gb_s", value=beta)
    bf16 = roofs.rate("bf16") if roofs is not None else None
    part = part_of(model, tp)
    # Two products of a row with each key and value; with MLA both are of the latent, whose values are a tenth shorter.
    attention = 4 * part.n_attn_layers * part.n_attn_heads * (part.attn_head_dim or 0)
    return StepModel(
        model=model.key, n_ssm=model.n_ssm_layers,
        matmuls=step_matmuls(model, gpu, tp=tp, expert_dtype=expert_dtype, dense_dtype=dense_dtype, bf16_tflops=bf16),
        draft_matmuls=draft_matmuls(model, gpu, tp=tp, expert_dtype=expert_dtype, bf16_tflops=bf16) if drafter else (),
        kv_bytes=kv_bytes_per_token(part, kv_dtype), kv_flops=attention,
        draft_kv=1 / model.n_attn_layers if drafter and model.n_mtp_layers and model.n_attn_layers else 0.0,
        kv_tflops=tensor_tflops(gpu, "bfloat16", bf16), read_gb_s=beta, top_k=model.moe_top_k,
        experts=model.moe_experts, max_context=model.max_context, overheads=overheads,
    )  # fmt: skip


def _require(fine: Any, message: str, field: str, value: Any) -> None:
    """Refuse numbers where one is out of range or NaN, naming the first such."""
    if not np.all(fine):
        shown = np.broadcast_to(value, np.shape(fine))[~np.asarray(fine)]
        raise InputError(message, field=field, value=shown.flat[0].item())
