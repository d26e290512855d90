"""Measured roofs of GPUs, one YAML file each: the user's own, and those that ship. Datasheet values stand elsewhere.

``perfkit roofline`` writes them. A user's lie in :func:`roofs_folder` and go before those in ``measured/``: they are of
the very machine. Files of schema 1, without a ``schema`` field, have bandwidth of DRAM and launch costs alone.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from perfkit.errors import InputError
from perfkit.profiles.fields import entry, items, number, plain_text, positive, refuse_unknown, text, whole
from perfkit.profiles.loader import file_stamp
from perfkit.profiles.measured import MEASURED
from perfkit.profiles.yamlfile import read_yaml

#: What is written; the reader takes every version in SCHEMAS.
SCHEMA = 2
SCHEMAS = (1, SCHEMA)
#: Transfers, by ascending share of writes; 4r1w reads four places and writes one.
ROOF_KINDS = ("read", "4r1w", "2r1w", "inplace", "copy", "1r2w", "1r4w", "1r8w", "write")
#: Matrix products: BF16 on tensor cores with FP32 sums, TF32 on tensor cores, IEEE FP32 on CUDA cores.
RATE_KINDS = ("bf16", "tf32", "fp32")
_TEXTS = ("gpu", "gpu_uuid", "name", "driver", "date", "torch", "triton", "source", "notes")
_NUMBERS = ("launch_us", "graph_node_us", "graph_us", "sm_clock_mhz", "sm_clock_max_mhz",
            "memory_clock_max_mhz", "power_limit_w", "l2_mib")  # fmt: skip
_COUNTS = ("memory_mib", "runs", "throttled")
_POINT = ("bytes", "bandwidth_gb_s", "lo", "hi", "config")
_RATE = ("kind", "tflops", "lo", "hi", "size", "sm_clock_mhz", "power_w", "capped")


def roofs_folder() -> Path:
    """Return where a user's own roofs lie: ``$PERFKIT_ROOFS``, or perfkit/roofs under the user's data."""
    own = os.environ.get("PERFKIT_ROOFS")
    data = os.environ.get("XDG_DATA_HOME")
    return Path(own) if own else (Path(data) if data else Path.home() / ".local" / "share") / "perfkit" / "roofs"


def roofs_name(gpu_key: str) -> str:
    """Return the name of a GPU's file."""
    return f"{gpu_key}-roofs.yaml"


def find_roofs(gpu_key: str) -> dict[str, Any] | None:
    """Return the roofs of a GPU that every command uses: the user's own, else those that ship, None if neither is.

    The mapping is that of :func:`read_roofs`, with ``file`` and ``origin``: ``here`` or ``shipped``.

    Raises:
        InputError: the file is refused.
    """
    for origin, folder in (("here", roofs_folder()), ("shipped", MEASURED)):
        found = load_roofs(gpu_key, folder)
        if found is not None:
            return found | {"origin": origin, "file": str(folder / roofs_name(gpu_key))}
    return None


def load_roofs(gpu_key: str, directory: Path | None = None) -> dict[str, Any] | None:
    """Return the roofs of a GPU that ship, or lie in another folder; None if nobody measured them.

    Raises:
        InputError: as :func:`read_roofs`, or the file is of another GPU than its name.
    """
    path = (directory or MEASURED) / roofs_name(gpu_key)
    if not path.is_file():
        return None
    roofs = read_roofs(path)
    if roofs["gpu"] != gpu_key:
        raise InputError("is not the GPU of the file name", file=path, field="gpu", value=roofs["gpu"],
                         allowed=gpu_key)  # fmt: skip
    return roofs


def read_roofs(path: Path) -> dict[str, Any]:
    """Return the roofs that one file holds.

    The mapping has ``schema``; the texts ``gpu, gpu_uuid, name, driver, date, torch, triton, source, notes``; the
    numbers ``launch_us, graph_node_us, graph_us, sm_clock_mhz, sm_clock_max_mhz, memory_clock_max_mhz, power_limit_w,
    l2_mib, memory_mib, runs, throttled, spread``, all None where the file has none; and

    * ``points``, each {kind, bytes, bandwidth_gb_s, lo, hi, config}: ``kind`` is one of ROOF_KINDS, 1r8w reads once and
      writes to 8 places; ``bytes`` are all bytes moved, reads and writes together;
    * ``l2``, each {bytes, bandwidth_gb_s, lo, hi, config}: ``bytes`` of the working set that is read in L2;
    * ``rates``, each {kind, tflops, lo, hi, size, sm_clock_mhz, power_w, capped}: ``kind`` is one of RATE_KINDS,
      ``size`` that of the square matrices, ``capped`` the share of samples at the power cap.

    Raises:
        InputError: no such file, another schema, an unknown or missing field, or a value that is refused.
    """
    found: dict[str, Any] = _read(path, file_stamp(path))
    return dict(found)


@functools.lru_cache(maxsize=64)
def _read(path: Path, stamp: object) -> dict[str, Any]:
    data = read_yaml(path)
    schema = data.get("schema", 1)
    if isinstance(schema, bool) or schema not in SCHEMAS:
        raise InputError("another schema version; measure again with `perfkit roofline`", file=path, field="schema",
                         value=str(schema), allowed=SCHEMAS)  # fmt: skip
    refuse_unknown(data, ("schema", *_TEXTS, *_NUMBERS, *_COUNTS, "spread", "points", "l2", "rates"), path, "")
    roofs: dict[str, Any] = {"schema": schema}
    roofs |= {name: _optional(data.get(name), plain_text, path, name) for name in _TEXTS}
    for name in ("gpu", "source"):
        if roofs[name] is None:
            raise InputError("missing", file=path, field=name)
    roofs |= {name: _optional(data.get(name), positive, path, name) for name in _NUMBERS}
    roofs |= {name: _optional(data.get(name), _whole, path, name) for name in _COUNTS}
    roofs["spread"] = _optional(data.get("spread"), _share, path, "spread")
    roofs["points"] = [_read_point(one, path, at) for one, at in items(data.get("points"), path, "points", "point")]
    for name, read in (("l2", _read_l2), ("rates", _read_rate)):
        listed = items(data[name], path, name, "point") if data.get(name) else []
        roofs[name] = [read(one, path, at) for one, at in listed]
    return roofs


def _read_point(point: Any, path: Path, where: str) -> dict[str, Any]:
    known = ("kind", *_POINT)
    data = entry(point, known, path, where, needed=known[:3])
    kind = text(data["kind"], file=path, field=f"{where}.kind", allowed=ROOF_KINDS)
    return {"kind": kind, **_bandwidth(data, path, where)}


def _read_l2(point: Any, path: Path, where: str) -> dict[str, Any]:
    return _bandwidth(entry(point, _POINT, path, where, needed=_POINT[:2]), path, where)


def _bandwidth(data: Mapping[str, Any], path: Path, where: str) -> dict[str, Any]:
    """Return what points of DRAM and of L2 have in common."""
    result = {
        "bytes": whole(data["bytes"], file=path, field=f"{where}.bytes", minimum=1),
        **{name: _optional(data.get(name), positive, path, f"{where}.{name}") for name in _POINT[1:4]},
        "config": _optional(data.get("config"), plain_text, path, f"{where}.config"),
    }
    return _ordered(result, "bandwidth_gb_s", path, where)


def _read_rate(item: Any, path: Path, where: str) -> dict[str, Any]:
    data = entry(item, _RATE, path, where, needed=_RATE[:2])
    result: dict[str, Any] = {"kind": text(data["kind"], file=path, field=f"{where}.kind", allowed=RATE_KINDS)}
    numbers = ("tflops", "lo", "hi", "sm_clock_mhz", "power_w")
    result |= {name: _optional(data.get(name), positive, path, f"{where}.{name}") for name in numbers}
    result["size"] = _optional(data.get("size"), _whole, path, f"{where}.size")
    result["capped"] = _optional(data.get("capped"), _share, path, f"{where}.capped")
    return _ordered(result, "tflops", path, where)


def _ordered(result: dict[str, Any], name: str, path: Path, where: str) -> dict[str, Any]:
    middle = result[name]
    if (result["lo"] or middle) > middle or (result["hi"] or middle) < middle:
        raise InputError("must lie between lo and hi", file=path, field=f"{where}.{name}", value=middle)
    return result


def _optional(value: Any, read: Callable[[Any, Path, str], Any], path: Path, field: str) -> Any:
    return None if value is None else read(value, path, field)


def _whole(value: Any, path: Path, field: str) -> int:
    return whole(value, file=path, field=field)


def _share(value: Any, path: Path, field: str) -> float:
    """Return a number of at least 0."""
    return float(number(value, file=path, field=field))
