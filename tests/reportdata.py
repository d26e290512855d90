"""Made-up results for testing reports: plausible numbers from a formula, never measurements, never shipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfkit.results import write_frame

GROUP = {
    "schema_version": 1, "model": "nemotron-super", "family": "mamba2", "gpu": "h200", "gpu_uuid": "GPU-0000-test",
    "phase": "decode", "n_layers": 1, "draft_len": 1, "accepted": 1.0, "acceptance": "1", "tree": None,
    "flush_phase": "aligned", "input_dtype": "bfloat16", "state_dtype": "float32", "read_dtype": "float32",
    "n_v_heads": 128, "n_k_heads": 8, "d_v": 64, "d_k": 128,
}  # fmt: skip
STATE_BYTES = 128 * 64 * 128 * 4
RECORD_BYTES = 128 * 64 * 2 + 8 * 128 * 2 + 128 * 8
READ_GB_S, MIXED_GB_S = 4350.0, 3900.0


def manifest(**changes: Any) -> dict[str, Any]:
    """The manifest of a made-up run."""
    data: dict[str, Any] = {
        "schema": 1, "argv": ["perfkit", "sweep", "--model", "nemotron-super", "--gpu", "auto"],
        "git": {"revision": "0123456789abcdef", "modified": False},
        "started": "2026-01-02T03:04:05Z", "ended": "2026-01-02T03:14:05Z",
        "seed": 0, "gpu": {"name": "NVIDIA H200", "uuid": "GPU-0000-test", "driver": "580.1", "sm_clock_mhz": 345,
                           "sm_clock_max_mhz": 1980,
                           "memory_clock_max_mhz": 3201}, "packages": {"torch": "2.13.0", "triton": "3.7.1"},
        "aa_floor": 0.003,
    }  # fmt: skip
    return data | changes


def _bytes(batch: int, window: int | None) -> tuple[float, float]:
    inputs = batch * 40_000.0
    if window is None:
        return batch * STATE_BYTES + inputs, batch * STATE_BYTES + batch * 16_000.0
    mean_h = (window - 1) / 2
    read = batch * (STATE_BYTES + mean_h * RECORD_BYTES) + inputs
    return read, batch * (STATE_BYTES / window + RECORD_BYTES) + batch * 16_000.0


def _row(batch: int, window: int | None, source: str, rng: np.random.Generator) -> dict[str, Any]:
    read, write = _bytes(batch, window)
    bandwidth = (read + write) / (read / READ_GB_S + write / MIXED_GB_S * 1.08)
    roof_us = (read + write) / bandwidth / 1e3
    predicted = roof_us * 1.04 + 3.0
    slower = 1.0 if window is None else 1.05
    time = predicted * slower * (1 + 0.02 * rng.standard_normal()) + (0 if window is None else 1.6)
    method = "conventional" if window is None else "replay"
    minimum = 2 * batch * STATE_BYTES if window is None else batch * STATE_BYTES * (1 + 1 / window)
    row: dict[str, Any] = GROUP | {
        "case_id": f"c{batch:04d}{window or 0:03d}", "group_id": f"g{batch:04d}", "method": method, "batch": batch,
        "window": window, "source": source, "status": "ok", "reason": None, "checked": "gpu", "launches": 1,
        "bytes_read_model": read, "bytes_write_model": write, "bytes_read_paper": read, "bytes_write_paper": write,
        "flops_model": batch * 128 * 64 * 128 * (5.0 if window is None else 4.2),
        "roof_gb_s": bandwidth, "roof_source": "measured", "predicted_us": predicted,
        "predicted_lo": predicted * 0.93, "predicted_hi": predicted * 1.07, "baseline": f"c{batch:04d}000",
        "l2_state": "cold", "limit": "DRAM" if batch > 4 else "launch",
    }  # fmt: skip
    row["intensity"] = row["flops_model"] / (read + write)
    if source == "predicted":
        return row | {"checked": "interpreter", "l2_state": None}
    return row | {
        "time_us": time, "time_us_lo": time * 0.997, "time_us_hi": time * 1.004, "time_p99_us": time * 1.02,
        "n_samples": 40, "n_throttled": 0, "stop_reason": "converged", "bandwidth_gb_s": (read + write) / time / 1e3,
        "roof_fraction": minimum / bandwidth / 1e3 / time, "prediction_error": predicted / time - 1,
        "tokens_per_s": batch / time * 1e6, "launch_config": "BV=16 num_warps=1", "registers": 64, "rel_error": 2e-7,
        "sm_clock_mhz": 1965.0,
    }  # fmt: skip


def rows(
    source: str = "measured",
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    windows: tuple[int, ...] = (8, 16, 32),
    seed: int = 0,
    **changes: Any,
) -> list[dict[str, Any]]:
    """Rows of one source; ``changes`` replaces columns."""
    rng = np.random.default_rng(seed)
    result = [_row(b, w, source, rng) | changes for b in batches for w in (None, *windows)]
    base = {(r["group_id"]): r.get("time_us") or r["predicted_us"] for r in result if r["window"] is None}
    for row in result:
        row["speedup"] = base[row["group_id"]] / (row.get("time_us") or row["predicted_us"])
    return result


def frame(kind: str = "measured") -> pd.DataFrame:
    """A frame: measured, predicted, mixed, failed, empty, one, sections or hostile."""
    if kind == "measured":
        data = rows()
        data += [data[-1] | {"case_id": "oom1", "batch": 1024, "group_id": "g1024", "status": "oom", "time_us": None,
                             "reason": "needs 190 GB, 138 GB free", "speedup": None, "roof_fraction": None,
                             "time_us_lo": None, "time_us_hi": None}]  # fmt: skip
    elif kind == "predicted":
        data = rows("predicted", windows=(4, 8, 12, 16, 24, 32, 64))
    elif kind == "mixed":
        # What a machine without a GPU shows: recorded rows where there are some, else predictions.
        data = rows("predicted", windows=(4, 8, 12, 16, 24, 32, 48))
        recorded = {row["case_id"]: row for row in rows("recorded", seed=2)}
        data = [recorded.get(row["case_id"], row) for row in data]
        both = rows("measured", batches=(1, 16, 256), windows=(16,), seed=3)
        data += [row | {"case_id": "m" + row["case_id"], "baseline": "m" + row["baseline"]} for row in both]
    elif kind == "failed":
        data = [r | {"status": s, "reason": "made to fail", "time_us": None, "time_us_lo": None, "time_us_hi": None,
                     "predicted_us": None, "predicted_lo": None, "predicted_hi": None, "speedup": None,
                     "roof_fraction": None, "n_samples": None}
                for r, s in zip(rows(batches=(1, 64)), ["oom", "crashed", "timeout", "error", "incorrect", "skipped",
                                                        "throttled", "error"], strict=True)]  # fmt: skip
    elif kind == "empty":
        data = []
    elif kind == "one":
        data = rows(batches=(64,), windows=())
    elif kind == "sections":
        others = rows(model="nemotron-nano", seed=5), rows("predicted", gpu="b200", seed=6)
        data = rows()
        for i, part in enumerate(others):
            data += [r | {n: f"{i}{r[n]}" for n in ("case_id", "baseline", "group_id")} for r in part]
    elif kind == "hostile":
        data = rows(model="<script>alert(1)</script>", reason="</script><img src=x onerror=alert(2)>")
        for row in data:
            if row["window"] == 32:
                row["method"] = "<b onmouseover=alert(3)>"
    else:
        raise ValueError(kind)
    return pd.DataFrame(data, columns=sorted({name for row in data for name in row}) or sorted(GROUP))


def write_run(folder: Path, data: pd.DataFrame, facts: dict[str, Any] | None = None) -> Path:
    """Write a frame and a manifest as a run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_frame(folder, [{n: None if pd.isna(v) else v for n, v in row.items()} for row in data.to_dict("records")])
    (folder / "manifest.json").write_text(json.dumps(manifest() if facts is None else facts))
    return folder
