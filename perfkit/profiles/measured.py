"""Measurements that ship with perfkit: rows of earlier runs (CSV beside a JSON manifest) and fits (YAML).

``efficiency.yaml`` holds what kernels reach of the roofs, fitted to the rows by scripts/fit_efficiency.py.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from perfkit.errors import InputError
from perfkit.profiles.fields import entry, items, number, plain_text, positive, refuse_unknown, whole
from perfkit.profiles.yamlfile import read_text, read_yaml

MEASURED = Path(__file__).parent / "measured"
#: Beside it: sweeps of the window, whose points in part are those of other runs; a fit takes the others.
WINDOWS = "windows"
#: How the names of tables of counters end (:mod:`perfkit.profiles.counters`); they hold no times.
COUNTERS_SUFFIX = "-counters"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Columns that stay text even when a value looks like a number (a case id may be all digits, acceptance is "1").
_TEXT = _words(
    "case_id group_id model family gpu gpu_uuid method phase acceptance tree flush_phase input_dtype state_dtype "
    "read_dtype source status reason checked stop_reason roof_source limit baseline launch_config l2_state"
)
_WHOLE = _words(
    "schema_version batch n_layers window draft_len n_samples n_throttled launches registers"
)  # fmt: skip
_NUMBER = _words(
    "accepted time_us time_us_lo time_us_hi time_p99_us time_nonflush_us time_flush_us tokens_per_s bytes_read_model "
    "bytes_write_model bytes_read_paper bytes_write_paper bytes_read_dram bytes_write_dram flops_model intensity "
    "bandwidth_gb_s roof_gb_s roof_fraction predicted_us predicted_lo predicted_hi prediction_error speedup "
    "conventional_steps rel_error"
)
_NEGATIVE = float("-inf")

EFFICIENCY = "efficiency.yaml"
_FIT_TEXTS = ("family", "method", "phase", "gpu", "date")
_FIT_NUMBERS = ("spread", "width", "freedom")
_FIT = (*_FIT_TEXTS, "sources", "n", "models", "batches", "windows", "parameters", *_FIT_NUMBERS, "left_out")
#: What a parameter may be; their meaning stands in perfkit.roofline.efficiency.
_LIMITS = {"overhead_us": 100.0, "walk_us": 100.0, "record_share": 1.0, "efficiency": 1.0, "arithmetic": 20.0,
           "flush": 10.0, "wide": 10.0}  # fmt: skip
_KERNEL = ("registers", "shared_bytes", "warps")
_LEFT_OUT = ("model", "rms", "worst", "covered")


def measured_files(directory: Path | None = None) -> dict[str, Path]:
    """Return the files of the shipped runs by name, such as ``nemotron-super-h200``."""
    files = sorted((directory or MEASURED).glob("*.csv"))
    return {path.stem: path for path in files if not path.stem.endswith(COUNTERS_SUFFIX)}


def windows_folder(directory: Path | None = None) -> Path:
    """Return the folder of sweeps of the window beside ``directory``, whether it is there or not."""
    return (directory or MEASURED).parent / WINDOWS


def window_files(directory: Path | None = None) -> dict[str, Path]:
    """Return the files of the shipped sweeps of the window by name, of the folder beside ``directory``."""
    return measured_files(windows_folder(directory))


def load_measured(
    model_key: str | None = None, gpu_key: str | None = None, directory: Path | None = None
) -> list[dict[str, Any]]:
    """Return the shipped rows of a model and a GPU (None: of all), each with its run's manifest as ``manifest``.

    Whole numbers, numbers and texts are typed by their column; an empty cell is None.

    Raises:
        InputError: a CSV without its manifest, a cell that is not of its column's type, or a ragged line.
    """
    rows = []
    for name, path in measured_files(directory).items():
        manifest = read_manifest(path.with_name(f"{name}.manifest.json"))
        for row in _read_rows(path):
            if model_key in (None, row.get("model")) and gpu_key in (None, row.get("gpu")):
                rows.append({**row, "manifest": manifest})
    return rows


def load_efficiency(directory: Path | None = None) -> list[dict[str, Any]]:
    """Return the shipped fits: what the kernels of a family, method and phase add to the bound from bytes.

    Each has ``family, method, phase, gpu, date`` (of the rows), ``sources`` (files), ``n`` (rows), ``models, batches,
    windows`` (of the rows), ``parameters`` {name: {value, lo, hi}}, ``spread`` (relative, of times about the fit),
    ``width`` (half width of the 95 % interval of a prediction), ``freedom`` (degrees of it), ``left_out``: {model,
    rms, worst, covered} of each model under a fit to the others, and where it is known ``kernel``: {registers (per
    thread), shared_bytes (per program), warps (per program)} at the largest batch. [] if nothing was fitted.

    Raises:
        InputError: an unknown or missing field, a value that is refused, or two fits of the same.
    """
    path = (directory or MEASURED) / EFFICIENCY
    if not path.is_file():
        return []
    data = read_yaml(path)
    refuse_unknown(data, ("fits", "loan", "held_out"), path, "")
    listed = items(data.get("fits"), path, "fits") if data.get("fits") != [] else []
    fits = [_read_fit(item, path, where) for item, where in listed]
    load_loan(directory)
    load_held_out(directory)
    seen: set[tuple[str, ...]] = set()
    for index, fit in enumerate(fits):
        key = tuple(fit[name] for name in _FIT_TEXTS[:4])
        if key in seen:
            raise InputError("is there twice", file=path, field=f"fits[{index}]", value=" ".join(key))
        seen.add(key)
    return fits


def load_loan(directory: Path | None = None) -> dict[str, float] | None:
    """Return what it is worth to borrow a fit from another family; None of a file that does not say.

    ``width`` is the half width of the 95 % interval of such a prediction, as a factor less 1, and ``n`` how many loans
    it was taken from.

    Raises:
        InputError: as :func:`load_efficiency`.
    """
    path = (directory or MEASURED) / EFFICIENCY
    data = read_yaml(path).get("loan") if path.is_file() else None
    if data is None:
        return None
    item = entry(data, ("width", "n"), path, "loan")
    return {"width": positive(item["width"], path, "loan.width"),
            "n": whole(item["n"], file=path, field="loan.n", minimum=1)}  # fmt: skip


def load_held_out(directory: Path | None = None) -> dict[str, float] | None:
    """Return how well fits predict rows that they have not seen; None of a file that does not say.

    ``n`` rows were each predicted without their model's rows of the method: ``median`` and ``p95`` are of
    |predicted / measured - 1|, ``covered`` is the share inside the 90 % interval.

    Raises:
        InputError: as :func:`load_efficiency`.
    """
    path = (directory or MEASURED) / EFFICIENCY
    data = read_yaml(path).get("held_out") if path.is_file() else None
    if data is None:
        return None
    item = entry(data, ("n", "median", "p95", "covered"), path, "held_out")
    return {name: float(number(item[name], file=path, field=f"held_out.{name}")) for name in item}


def _read_fit(item: Any, path: Path, where: str) -> dict[str, Any]:
    data = entry(item, (*_FIT, "kernel"), path, where, needed=_FIT)
    fit: dict[str, Any] = {name: plain_text(data[name], path, f"{where}.{name}") for name in _FIT_TEXTS}
    for name in ("sources", "models"):
        fit[name] = [plain_text(one, path, at) for one, at in items(data[name], path, f"{where}.{name}")]
    fit["n"] = whole(data["n"], file=path, field=f"{where}.n", minimum=1)
    for name in ("batches", "windows"):
        values = data[name] if name == "windows" and data[name] == [] else None
        listed = [] if values == [] else items(data[name], path, f"{where}.{name}")
        fit[name] = [whole(one, file=path, field=at, minimum=1) for one, at in listed]
    if data.get("kernel") is not None:
        taken = entry(data["kernel"], _KERNEL, path, f"{where}.kernel")
        fit["kernel"] = {name: whole(taken[name], file=path, field=f"{where}.kernel.{name}") for name in _KERNEL}
    parameters = data["parameters"]
    if not isinstance(parameters, Mapping) or not parameters:
        raise InputError("must be a mapping", file=path, field=f"{where}.parameters", allowed=tuple(_LIMITS))
    refuse_unknown(parameters, tuple(_LIMITS), path, f"{where}.parameters.")
    fit["parameters"] = {name: _read_parameter(name, one, path, f"{where}.parameters.{name}")
                         for name, one in parameters.items()}  # fmt: skip
    fit |= {name: positive(data[name], path, f"{where}.{name}") for name in _FIT_NUMBERS}
    left_out = data["left_out"] if data["left_out"] == [] else items(data["left_out"], path, f"{where}.left_out")
    fit["left_out"] = [_read_left_out(one, path, at) for one, at in left_out]
    return fit


def _read_parameter(name: str, item: Any, path: Path, where: str) -> dict[str, float]:
    data = entry(item, ("value", "lo", "hi"), path, where)
    read = {end: float(number(data[end], file=path, field=f"{where}.{end}")) for end in data}
    if not read["lo"] <= read["value"] <= read["hi"]:
        raise InputError("must lie between lo and hi", file=path, field=where, value=read["value"])
    if read["hi"] > _LIMITS[name] or (name == "efficiency" and read["lo"] == 0):
        raise InputError("out of range", file=path, field=where, value=read["hi"], allowed=f"up to {_LIMITS[name]:g}")
    return read


def _read_left_out(item: Any, path: Path, where: str) -> dict[str, Any]:
    data = entry(item, _LEFT_OUT, path, where)
    numbers = {name: float(number(data[name], file=path, field=f"{where}.{name}", minimum=_NEGATIVE))
               for name in _LEFT_OUT[1:]}  # fmt: skip
    return {"model": plain_text(data["model"], path, f"{where}.model"), **numbers}


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest beside shipped rows.

    Raises:
        InputError: there is none, or it is no JSON object.
    """
    try:
        manifest = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg}", file=path, field=f"line {error.lineno}") from None
    if not isinstance(manifest, dict):
        raise InputError("must be a JSON object", file=path)
    return manifest


def read_cells(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the lines of a CSV file, each with its number and its cells by column, as text.

    Raises:
        InputError: not CSV, a column twice, or a line with another number of cells than the header.
    """
    reader = csv.reader(StringIO(read_text(path), newline=""), strict=True)
    rows = []
    try:
        header = next(reader, [])
        for name in header:
            if header.count(name) > 1:
                raise InputError("duplicate column", file=path, field=name)
        for cells in reader:
            if len(cells) != len(header):
                where = f"line {reader.line_num}"
                raise InputError(f"has {len(cells)} cells, not {len(header)}", file=path, field=where)
            rows.append((reader.line_num, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise InputError(f"not valid CSV: {error}", file=path, field=f"line {reader.line_num}") from None
    return rows


def _read_rows(path: Path) -> list[dict[str, Any]]:
    return [{name: _cell(name, cell, path, f"line {number}") for name, cell in row.items()}
            for number, row in read_cells(path)]  # fmt: skip


def _cell(column: str, cell: str, path: Path, where: str) -> Any:
    if cell == "":
        return None
    if column in _TEXT:
        return cell
    field = f"{where}: {column}"
    if column in _WHOLE:
        return whole(cell, file=path, field=field)
    if column in _NUMBER:
        return float(number(cell, file=path, field=field, minimum=_NEGATIVE))
    if cell in ("True", "False"):
        return cell == "True"
    try:
        value = number(cell, file=path, field=field, minimum=_NEGATIVE)
    except InputError:  # a column of a later version
        return cell
    return value
