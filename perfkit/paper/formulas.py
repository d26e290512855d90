"""Numbers of the paper that follow from shapes and bytes: ours by the analytic model, for the same model and point.

Source: paper, App. A.1, App. C, Table 5; vLLM pull request 47576 (pages of one size).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from perfkit.paper.ours import Ours
from perfkit.profiles import Gpu, Model, load_gpu, load_model
from perfkit.profiles.published import PaperCell
from perfkit.roofline import (
    Capacity,
    RequestMemory,
    crossover_tokens,
    flops,
    kv_bytes_per_token,
    l_star,
    ratio_paper,
    record_bytes,
    request_budget,
    request_memory,
    state_bytes_per_sequence,
    state_traffic,
)
from perfkit.roofline.traffic import layer_state_bytes, state_bytes
from perfkit.shape import DTYPE_BYTES

#: The point of the paper's example of output-only verification (C.4), beside T.
EXAMPLE_RECORDS = 12


def formula_value(cell: PaperCell) -> Ours:
    """Return ours for a cell that is a formula's.

    What depends on a GPU's datasheet or on an engine's allocation is computed for the published one, so that only the
    number can differ.
    """
    value = float(_FORMULAS[cell.quantity](cell))
    return Ours(kind="model", low=value, high=value, gpu=cell.gpu, implementation=cell.implementation,
                baseline=cell.baseline, routing=cell.routing)  # fmt: skip


def _model(cell: PaperCell) -> Model:
    return load_model(cell.models[0])


def _gpu(cell: PaperCell) -> Gpu:
    return load_gpu(str(cell.gpu))


def _element(cell: PaperCell) -> float:
    return DTYPE_BYTES[cell.state_dtype or "float32"]


def _draft(cell: PaperCell) -> int:
    return cell.draft_lens[0] if cell.draft_lens else 1


def _counts(cell: PaperCell) -> tuple[float, float]:
    reads, writes = state_traffic(str(cell.method)).counts(_draft(cell), float(cell.step == "flush"))
    return float(reads), float(writes)


def _batch_state(cell: PaperCell) -> float:
    return cell.batches[0] * float(layer_state_bytes(_model(cell).shape, _element(cell))) / 1e9


def _layer_kv(model: Model) -> float:
    return kv_bytes_per_token(model) / model.n_attn_layers


def _output_only_factor(cell: PaperCell) -> float:
    shape, draft = _model(cell).shape, _draft(cell)
    point = (shape.d_v, shape.d_k, EXAMPLE_RECORDS, draft)
    return float(flops.materialized_verify_flops(*point) / flops.output_only_verify_flops(*point))


def _intensity(cell: PaperCell) -> float:
    shape = _model(cell).shape
    return float(flops.conventional_intensity(shape.d_v, shape.d_k, _element(cell)))


def _request(cell: PaperCell, method: str) -> float:
    return float(_memory(cell, method, False).total)


def _memory(cell: PaperCell, method: str, drafter: bool) -> RequestMemory:
    return request_memory(_model(cell), method, context=cell.context or 1, engine=cell.engine or "vllm",
                          draft_len=_draft(cell), window=cell.windows[0] if method == "replay" else None,
                          drafter=drafter)  # fmt: skip


def _requests(cell: PaperCell) -> float:
    """Return an upper bound: what the engine sets aside beside weights and drafter is not published."""
    budget = request_budget(_model(cell), _gpu(cell), engine=cell.engine or "vllm", drafter=True)
    return float(Capacity(budget, _memory(cell, str(cell.method), True)).fits)


def _ratio(cell: PaperCell) -> float:
    return float(ratio_paper(_model(cell).shape, cell.windows[0], _element(cell)))


def _window(cell: PaperCell) -> float:
    return float(l_star(_model(cell).shape, _draft(cell), float(cell.acceptances[0])))


def _record_factor(cell: PaperCell) -> float:
    return float(flops.record_term_factor(_model(cell).d_v, _model(cell).d_k))


def _per_byte(tflops: float | None, gpu: Gpu) -> float:
    return float("nan") if tflops is None else tflops * 1e3 / gpu.bandwidth_gb_s


_FORMULAS: Mapping[str, Callable[[PaperCell], float]] = MappingProxyType(
    {
        "n_ssm_layers": lambda cell: _model(cell).n_ssm_layers,
        "n_attn_layers": lambda cell: _model(cell).n_attn_layers,
        "n_k_heads": lambda cell: _model(cell).n_k_heads,
        "n_v_heads": lambda cell: _model(cell).n_v_heads,
        "d_k": lambda cell: _model(cell).d_k,
        "d_v": lambda cell: _model(cell).d_v,
        "state_reads": lambda cell: _counts(cell)[0],
        "state_writes": lambda cell: _counts(cell)[1],
        "step_state_gb": lambda cell: sum(_counts(cell)) * _batch_state(cell),
        "batch_state_gb": _batch_state,
        "traffic_ratio": _ratio,
        "traffic_gain": lambda cell: 1 / _ratio(cell),
        "write_ratio": lambda cell: cell.windows[0],
        "intensity": _intensity,
        "balance_fp32": lambda cell: _per_byte(_gpu(cell).fp32_tflops, _gpu(cell)),
        "balance_bf16": lambda cell: _per_byte(_gpu(cell).bf16_tflops, _gpu(cell)),
        "layer_state_mib": lambda cell: layer_state_bytes(_model(cell).shape, _element(cell)) / 2**20,
        "step_state_mib": lambda cell: 2 * state_bytes_per_sequence(_model(cell), cell.state_dtype) / 2**20,
        "layer_kv_kib": lambda cell: _layer_kv(_model(cell)) / 2**10,
        "state_kv_tokens": lambda cell: layer_state_bytes(_model(cell).shape, _element(cell)) / _layer_kv(_model(cell)),
        "crossover_tokens": lambda cell: crossover_tokens(_model(cell), state_dtype=cell.state_dtype) or float("nan"),
        "state_records": lambda cell: (
            state_bytes(_model(cell).shape, _element(cell)) / record_bytes(_model(cell).shape)
        ),
        "formula_window": _window,
        "record_factor": _record_factor,
        "output_only_factor": _output_only_factor,
        "request_mb": lambda cell: _request(cell, str(cell.method)) / 1e6,
        "request_ratio": lambda cell: _request(cell, str(cell.baseline)) / _request(cell, str(cell.method)),
        "requests": _requests,
    }
)
