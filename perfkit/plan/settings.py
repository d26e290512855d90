"""A row as the settings of an engine."""

from __future__ import annotations

from typing import Any

from perfkit.plan.question import Question
from perfkit.plan.rows import Row


def engine_settings(question: Question, row: Row) -> dict[str, Any]:
    """Return what to set, by the names of vLLM where it has one.

    ``replay_buffer_length`` is the engine's ring; its option's name has changed between published versions.
    """
    settings: dict[str, Any] = {
        "max_num_seqs": row.runs,
        "max_model_len": question.context,
        "gpu_memory_utilization": question.utilization or question.engine.utilization,
        "tensor_parallel_size": question.tp,
        "mamba_ssm_cache_dtype": row.state_dtype,
    }
    if question.kv_dtype == "float8_e4m3fn" and question.model.n_attn_layers:  # others are what the engine does unasked
        settings["kv_cache_dtype"] = "fp8"
    if row.draft_len > 1:
        settings["num_speculative_tokens"] = row.draft_len - 1
    if row.window is not None:
        settings["replay_buffer_length"] = row.ring_slots
        if row.ring_slots != row.window:
            settings["replay_window"] = row.window
    return settings
