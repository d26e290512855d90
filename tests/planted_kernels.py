"""Kernels with planted properties, compiled in a process that does not interpret: ``python tests/planted_kernels.py``.

Prints one JSON document: for each probe what was compiled, or the error. ``tests/test_compile.py`` reads it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perfkit.compile import compile_launch
from perfkit.compiled import cache_dir
from perfkit.errors import PerfkitError
from perfkit.kernels.lang import tl, triton
from perfkit.method import Buffer, Launch
from perfkit.spec import spec


@triton.jit
def _spilling_kernel(src, dst, n, rows: tl.constexpr, columns: tl.constexpr):
    """Two tiles of rows x columns live at once: at 32 x 128 and one warp 256 registers a thread, of 255."""
    at = tl.arange(0, rows)[:, None] * columns + tl.arange(0, columns)[None, :]
    a = tl.load(src + at)
    b = tl.load(src + rows * columns + at)
    for i in range(n):
        scale = tl.load(src + i)
        a, b = a * scale + b, b * scale + a
    tl.store(dst + at, a)
    tl.store(dst + rows * columns + at, b)


@triton.jit
def _helper(x):
    return x * 2.0


@triton.jit
def _clean_kernel(src, dst, n, tile: tl.constexpr):
    at = tl.program_id(0) * tile + tl.arange(0, tile)
    tl.store(dst + at, _helper(tl.load(src + at, mask=at < n, other=0.0)), mask=at < n)


@triton.jit
def _whole_kernel(src, dst, stride, tile: tl.constexpr):
    at = tl.program_id(0) * stride + tl.arange(0, tile)
    tl.store(dst + at, tl.load(src + at))


@triton.jit(do_not_specialize=["stride"])
def _general_kernel(src, dst, stride, tile: tl.constexpr):
    at = tl.program_id(0) * stride + tl.arange(0, tile)
    tl.store(dst + at, tl.load(src + at))


def _floats(elements: int, dtype: str = "float32", offset: int = 0) -> Any:
    return spec(Buffer((elements,), dtype, "input", offset=offset))


def probes() -> dict[str, tuple[Launch, int]]:
    big, small = (_floats(2 * 32 * 128),) * 2, (_floats(1000),) * 2
    shifted = (_floats(1000, offset=1), _floats(1000, offset=1))
    huge = {"rows": 32, "columns": 128}

    def whole(args: tuple[Any, Any], stride: int, kernel: Any = _whole_kernel) -> Launch:
        return Launch(kernel, (4,), (*args, stride), {"tile": 512}, {"num_warps": 4})

    found = {
        "spilling": (Launch(_spilling_kernel, (1,), (*big, 5), huge, {"num_warps": 1}), 90),
        "spilling, 8 warps": (Launch(_spilling_kernel, (1,), (*big, 5), huge, {"num_warps": 8}), 90),
        "stride 512": (whole(small, 512), 90),
        "stride 1": (whole(small, 1), 90),
        "stride 1, general": (whole(small, 1, _general_kernel), 90),
        "shifted": (whole(shifted, 512), 90),
        "fp8 on 80": (whole((_floats(1000, "float8_e4m3fn"), _floats(1000)), 512), 80),
        "fp8 on 90": (whole((_floats(1000, "float8_e4m3fn"), _floats(1000)), 512), 90),
        "a callable": (Launch(print, (1,), ()), 90),
    }
    for cc in (80, 90, 100, 103, 120):
        found[f"clean {cc}"] = (Launch(_clean_kernel, (4,), (*small, 1000), {"tile": 256}, {"num_warps": 4}), cc)
    return found


def main() -> None:
    results: dict[str, Any] = {}
    for name, (launch, cc) in probes().items():
        try:
            compiled = compile_launch(launch, cc, assembly=True)
            results[name] = {**compiled.row(), "ptx": compiled.ptx}
        except PerfkitError as error:
            results[name] = {"error": type(error).__name__, "message": str(error)}
    kept = sorted(cache_dir().glob("*.json"))
    stamps = {path.name: path.stat().st_mtime_ns for path in kept}
    launch, cc = probes()["clean 90"]
    again = compile_launch(launch, cc)
    unchanged = {path.name: path.stat().st_mtime_ns for path in sorted(cache_dir().glob("*.json"))} == stamps
    for path in kept:
        path.write_text("{broken", encoding="utf-8")
    healed = compile_launch(launch, cc)
    results["cache"] = {"files": len(kept), "unchanged": unchanged, "equal": again == healed}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
