"""``perfkit list models|gpus|methods|runs|measured``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfkit.cli.common import GpuOption, JsonOption, ModelOption, err_console, print_json, print_table
from perfkit.errors import PerfkitError

if TYPE_CHECKING:
    from perfkit.method import Method
    from perfkit.registry import Absent

Rows = list[dict[str, Any]]


class Subject(StrEnum):
    """What can be listed."""

    MODELS = "models"
    GPUS = "gpus"
    METHODS = "methods"
    RUNS = "runs"
    MEASURED = "measured"


def list_(
    what: Annotated[Subject, typer.Argument(help="What to list.", show_default=False)],
    model: ModelOption = None,
    gpu: GpuOption = None,
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where run folders lie.")] = Path("runs"),
    json: JsonOption = False,
) -> None:
    """List models, GPUs, methods, runs or the shipped measurements.

    With --json a list of rows; a method that its family has no kernels for has a reason. Of measured, {"rows": …,
    "manifests": …}, where a row's manifest is the hash of one.
    """
    rows = _ROWS[what](model, gpu, runs)
    if json and what is Subject.MEASURED:
        print_json(_with_manifests(rows))
    elif json:
        print_json(rows)
    elif rows:
        columns = _COLUMNS[what]
        there = [row for row in rows if what is not Subject.METHODS or row["reason"] is None]
        print_table(columns, [[row.get(name) for name in columns] for row in there])
        for row in rows[len(there) :]:
            print(f"not for {row['family']} {row['phase']}: {row['key']}: {row['reason']}")
        if what is Subject.MEASURED:
            from perfkit.profiles import measured_files

            print(f"runs, by the names that perfkit compare takes: {', '.join(measured_files())}")
    else:
        err_console().print(f"no {_NOUNS.get(what, what.value)}{_where(model, gpu)}")


def _where(model: str | None, gpu: str | None) -> str:
    words = [f"{name} {value}" for name, value in (("model", model), ("GPU", gpu)) if value]
    return f" for {' and '.join(words)}" if words else " found"


def _models(model: str | None, gpu: str | None, runs: Path) -> Rows:
    from perfkit.profiles import list_models, load_model, to_dict

    return [to_dict(item) for item in (list_models() if model is None else [load_model(model)])]


def _gpus(model: str | None, gpu: str | None, runs: Path) -> Rows:
    from perfkit.profiles import list_gpus, load_gpu, to_dict

    return [to_dict(item) for item in (list_gpus() if gpu is None else [load_gpu(gpu)])]


def _methods(model: str | None, gpu: str | None, runs: Path) -> Rows:
    from perfkit.profiles import load_model
    from perfkit.registry import absent, methods

    family = None if model is None else load_model(model).family
    items: list[Method | Absent] = [*methods(family), *absent(family)]
    return [
        {"key": item.key, "family": item.family, "phase": item.phase, "windowed": item.windowed, "trees": item.trees,
         "source": item.source, "reason": getattr(item, "reason", None)}
        for item in items
    ]  # fmt: skip


def _measured(model: str | None, gpu: str | None, runs: Path) -> Rows:
    from perfkit.profiles import load_gpu, load_measured, load_model

    model_key = None if model is None else load_model(model).key
    gpu_key = None if gpu is None else load_gpu(gpu).key
    # What was measured there is recorded here.
    return [row | {"source": "recorded"} for row in load_measured(model_key, gpu_key)]


def _with_manifests(rows: Rows) -> dict[str, Rows]:
    """Return the rows with the hash of their manifest in its place, and each manifest once."""
    manifests = {row["manifest"].get("hash"): row["manifest"] for row in rows}
    return {"rows": [row | {"manifest": row["manifest"].get("hash")} for row in rows],
            "manifests": list(manifests.values())}  # fmt: skip


def _runs(model: str | None, gpu: str | None, runs: Path) -> Rows:
    from perfkit.profiles import load_gpu, load_model

    model_key = None if model is None else load_model(model).key
    gpu_key = None if gpu is None else load_gpu(gpu).key
    rows = [_run_row(manifest.parent) for manifest in sorted(runs.glob("*/manifest.json"))]
    return [
        row
        for row in rows
        if (model_key is None or row["model"] == model_key) and (gpu_key is None or row["gpu"] == gpu_key)
    ]


def _run_row(folder: Path) -> dict[str, Any]:
    """Describe one run folder. A damaged one is a row that says so: a list must not fail over one old run."""
    row: dict[str, Any] = {"run": str(folder), "model": None, "gpu": None, "started": None, "cases": None, "state": "?"}
    try:
        from perfkit.results import INCOMPLETE, Journal, read_manifest

        manifest = read_manifest(folder)
        records = Journal(folder / "cases.jsonl").read()
    except (PerfkitError, OSError, ValueError) as error:
        return row | {"state": f"unreadable: {' '.join(str(error).split())}"}
    planned = manifest.get("case_ids") or []
    finished = len(records)
    failed = sum(record["status"] in INCOMPLETE or record["status"] == "incorrect" for record in records.values())
    state = "complete" if (folder / "results.csv").exists() else "resumable"
    return row | {
        "model": _key(manifest.get("model")),
        "gpu": _key(manifest.get("gpu")),
        "started": manifest.get("started") or manifest.get("start"),
        "cases": f"{finished}/{len(planned)}" if planned else str(finished),
        "state": state + (f", {failed} failed" if failed else ""),
    }


def _key(value: Any) -> str | None:
    """Return a key from what a manifest holds: the key itself, or a document with one."""
    if isinstance(value, dict):
        value = value.get("key") or value.get("name")
    return None if value is None else str(value)


_ROWS: MappingProxyType[Subject, Callable[[str | None, str | None, Path], Rows]] = MappingProxyType(
    {
        Subject.MODELS: _models,
        Subject.GPUS: _gpus,
        Subject.METHODS: _methods,
        Subject.RUNS: _runs,
        Subject.MEASURED: _measured,
    }
)
_NOUNS: MappingProxyType[Subject, str] = MappingProxyType({Subject.GPUS: "GPUs", Subject.MEASURED: "measurements"})
#: What the table shows; --json gives everything.
_COLUMNS: MappingProxyType[Subject, Sequence[str]] = MappingProxyType(
    {
        Subject.MODELS: ("key", "name", "family", "n_ssm_layers", "n_attn_layers", "n_v_heads", "n_k_heads", "d_v",
                         "d_k", "aliases"),
        Subject.GPUS: ("key", "name", "compute_capability", "sm_count", "mem_capacity_gb", "bandwidth_gb_s", "l2_mb",
                       "bf16_tflops"),
        Subject.METHODS: ("key", "family", "phase", "windowed", "trees", "source"),
        Subject.RUNS: ("run", "model", "gpu", "started", "cases", "state"),
        Subject.MEASURED: ("model", "gpu", "method", "phase", "batch", "window", "draft_len", "acceptance", "tree",
                           "state_dtype", "source", "status", "time_us", "speedup", "roof_fraction"),
    }
)  # fmt: skip
