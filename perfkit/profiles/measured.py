"""Measurements that ship with perfkit: rows of earlier runs (CSV beside a JSON manifest), roofs and fits (YAML).

``efficiency.yaml`` holds what kernels reach of the roofs, fitted to the rows by scripts/fit_efficiency.py.
"""

from __future__ import annotations

import csv
import datetime
import json
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from perfkit.errors import InputError
from perfkit.profiles.fields import number, suggest, text, whole
from perfkit.profiles.yamlfile import read_text, read_yaml

MEASURED = Path(__file__).parent / "measured"
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

ROOF_KINDS = ("read", "write", "inplace", "copy", "1r2w", "1r4w", "1r8w")
_ROOF_TEXTS = ("gpu", "gpu_uuid", "driver", "date", "torch", "triton", "source", "notes")
_ROOF_NUMBERS = ("launch_us", "graph_node_us")
EFFICIENCY = "efficiency.yaml"
_FIT_TEXTS = ("family", "method", "phase", "gpu", "date")
_FIT_NUMBERS = ("spread", "width")
_FIT = (*_FIT_TEXTS, "sources", "n", "models", "batches", "windows", "parameters", *_FIT_NUMBERS, "left_out")
#: What a parameter may be; their meaning stands in perfkit.roofline.efficiency.
_LIMITS = {"overhead_us": 100.0, "walk_us": 100.0, "record_share": 1.0, "efficiency": 1.0}
_LEFT_OUT = ("model", "rms", "worst", "covered")
_POINT = ("kind", "bytes", "bandwidth_gb_s", "lo", "hi")


def load_measured(
    model_key: str | None = None, gpu_key: str | None = None, directory: Path | None = None
) -> list[dict[str, Any]]:
    """Return the shipped rows of a model and a GPU (None: of all), each with its run's manifest as ``manifest``.

    Whole numbers, numbers and texts are typed by their column; an empty cell is None.

    Raises:
        InputError: a CSV without its manifest, a cell that is not of its column's type, or a ragged line.
    """
    rows = []
    for path in sorted((directory or MEASURED).glob("*.csv")):
        if path.stem.endswith(COUNTERS_SUFFIX):
            continue
        manifest = read_manifest(path.with_name(f"{path.stem}.manifest.json"))
        for row in _read_rows(path):
            if model_key in (None, row.get("model")) and gpu_key in (None, row.get("gpu")):
                rows.append({**row, "manifest": manifest})
    return rows


def load_roofs(gpu_key: str, directory: Path | None = None) -> dict[str, Any] | None:
    """Return the measured roofs of a GPU, or None if nobody measured them.

    The mapping has ``gpu, gpu_uuid, driver, date, torch, triton, source, notes, launch_us, graph_node_us`` (None where
    the file has none) and ``points``, each {kind, bytes, bandwidth_gb_s, lo, hi}: ``kind`` is one of ROOF_KINDS, 1r8w
    reads once and writes to 8 places; ``bytes`` are all bytes moved, reads and writes together.

    Raises:
        InputError: an unknown or missing field, or a value that is refused.
    """
    path = (directory or MEASURED) / f"{gpu_key}-roofs.yaml"
    if not path.is_file():
        return None
    data = read_yaml(path)
    known = (*_ROOF_TEXTS, *_ROOF_NUMBERS, "points")
    _refuse_unknown(data, known, path, "")
    if data.get("gpu") != gpu_key:
        raise InputError("is not the GPU of the file name", file=path, field="gpu", value=str(data.get("gpu")),
                         allowed=gpu_key)  # fmt: skip
    roofs: dict[str, Any] = {name: _optional(data.get(name), _text, path, name) for name in _ROOF_TEXTS}
    if roofs["source"] is None:
        raise InputError("missing", file=path, field="source")
    roofs |= {name: _optional(data.get(name), _positive, path, name) for name in _ROOF_NUMBERS}
    points = data.get("points")
    if not isinstance(points, list) or not points:
        raise InputError("must be a list of at least one point", file=path, field="points")
    roofs["points"] = [_read_point(point, path, f"points[{index}]") for index, point in enumerate(points)]
    return roofs


def load_efficiency(directory: Path | None = None) -> list[dict[str, Any]]:
    """Return the shipped fits: what the kernels of a family, method and phase add to the bound from bytes.

    Each has ``family, method, phase, gpu, date`` (of the rows), ``sources`` (files), ``n`` (rows), ``models, batches,
    windows`` (of the rows), ``parameters`` {name: {value, lo, hi}}, ``spread`` (relative, of times about the fit),
    ``width`` (half width of the 95 % interval of a prediction) and ``left_out``: {model, rms, worst, covered} of each
    model under a fit to the others. [] if nothing was fitted.

    Raises:
        InputError: an unknown or missing field, a value that is refused, or two fits of the same.
    """
    path = (directory or MEASURED) / EFFICIENCY
    if not path.is_file():
        return []
    data = read_yaml(path)
    _refuse_unknown(data, ("fits",), path, "")
    fits = [_read_fit(item, path, where) for item, where in _items(data.get("fits"), path, "fits")]
    seen: set[tuple[str, ...]] = set()
    for index, fit in enumerate(fits):
        key = tuple(fit[name] for name in _FIT_TEXTS[:4])
        if key in seen:
            raise InputError("is there twice", file=path, field=f"fits[{index}]", value=" ".join(key))
        seen.add(key)
    return fits


def _items(value: Any, path: Path, field: str) -> list[tuple[Any, str]]:
    """Return the items of a list that is not empty, each with its name."""
    if not isinstance(value, list) or not value:
        raise InputError("must be a list of at least one item", file=path, field=field)
    return [(item, f"{field}[{index}]") for index, item in enumerate(value)]


def _fields(data: Any, known: tuple[str, ...], path: Path, where: str) -> Mapping[str, Any]:
    """Return a mapping that has these fields and no others."""
    if not isinstance(data, Mapping):
        raise InputError("must be a mapping", file=path, field=where, allowed=known)
    _refuse_unknown(data, known, path, f"{where}.")
    for name in known:
        if data.get(name) is None:
            raise InputError("missing", file=path, field=f"{where}.{name}")
    return data


def _read_fit(item: Any, path: Path, where: str) -> dict[str, Any]:
    data = _fields(item, _FIT, path, where)
    fit: dict[str, Any] = {name: _text(data[name], path, f"{where}.{name}") for name in _FIT_TEXTS}
    for name in ("sources", "models"):
        fit[name] = [_text(one, path, at) for one, at in _items(data[name], path, f"{where}.{name}")]
    fit["n"] = whole(data["n"], file=path, field=f"{where}.n", minimum=1)
    for name in ("batches", "windows"):
        values = data[name] if name == "windows" and data[name] == [] else None
        items = [] if values == [] else _items(data[name], path, f"{where}.{name}")
        fit[name] = [whole(one, file=path, field=at, minimum=1) for one, at in items]
    parameters = data["parameters"]
    if not isinstance(parameters, Mapping) or not parameters:
        raise InputError("must be a mapping", file=path, field=f"{where}.parameters", allowed=tuple(_LIMITS))
    _refuse_unknown(parameters, tuple(_LIMITS), path, f"{where}.parameters.")
    fit["parameters"] = {name: _read_parameter(name, one, path, f"{where}.parameters.{name}")
                         for name, one in parameters.items()}  # fmt: skip
    fit |= {name: _positive(data[name], path, f"{where}.{name}") for name in _FIT_NUMBERS}
    left_out = data["left_out"] if data["left_out"] == [] else _items(data["left_out"], path, f"{where}.left_out")
    fit["left_out"] = [_read_left_out(one, path, at) for one, at in left_out]
    return fit


def _read_parameter(name: str, item: Any, path: Path, where: str) -> dict[str, float]:
    data = _fields(item, ("value", "lo", "hi"), path, where)
    read = {end: float(number(data[end], file=path, field=f"{where}.{end}")) for end in data}
    if not read["lo"] <= read["value"] <= read["hi"]:
        raise InputError("must lie between lo and hi", file=path, field=where, value=read["value"])
    if read["hi"] > _LIMITS[name] or (name == "efficiency" and read["lo"] == 0):
        raise InputError("out of range", file=path, field=where, value=read["hi"], allowed=f"up to {_LIMITS[name]:g}")
    return read


def _read_left_out(item: Any, path: Path, where: str) -> dict[str, Any]:
    data = _fields(item, _LEFT_OUT, path, where)
    numbers = {name: float(number(data[name], file=path, field=f"{where}.{name}", minimum=_NEGATIVE))
               for name in _LEFT_OUT[1:]}  # fmt: skip
    return {"model": _text(data["model"], path, f"{where}.model"), **numbers}


def _read_point(point: Any, path: Path, where: str) -> dict[str, Any]:
    if not isinstance(point, Mapping):
        raise InputError("must be a mapping", file=path, field=where, allowed=_POINT)
    _refuse_unknown(point, _POINT, path, f"{where}.")
    for name in _POINT[:3]:
        if point.get(name) is None:
            raise InputError("missing", file=path, field=f"{where}.{name}")
    result = {
        "kind": text(point["kind"], file=path, field=f"{where}.kind", allowed=ROOF_KINDS),
        "bytes": whole(point["bytes"], file=path, field=f"{where}.bytes", minimum=1),
        **{name: _optional(point.get(name), _positive, path, f"{where}.{name}") for name in _POINT[2:]},
    }
    middle = result["bandwidth_gb_s"]
    if (result["lo"] or middle) > middle or (result["hi"] or middle) < middle:
        raise InputError("must lie between lo and hi", file=path, field=f"{where}.bandwidth_gb_s", value=middle)
    return result


def _refuse_unknown(data: Mapping[Any, Any], known: tuple[str, ...], path: Path, prefix: str) -> None:
    for name in data:
        if name not in known:
            raise InputError(f"unknown field{suggest(str(name), known)}", file=path, field=f"{prefix}{name}",
                             allowed=known)  # fmt: skip


def _optional(value: Any, read: Callable[[Any, Path, str], Any], path: Path, field: str) -> Any:
    return None if value is None else read(value, path, field)


def _text(value: Any, path: Path, field: str) -> str:
    if isinstance(value, datetime.date):  # YAML reads an unquoted 2026-11-29 as a date
        return value.isoformat()
    if isinstance(value, int | float) and not isinstance(value, bool):  # an unquoted version: 580.159
        return str(value)
    return text(value, file=path, field=field)


def _positive(value: Any, path: Path, field: str) -> float:
    result = number(value, file=path, field=field)
    if result == 0:
        raise InputError("must be above 0", file=path, field=field, value=value)
    return float(result)


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
