"""Run by tests in a process that compiles: keys of kernels that differ, and shipped rows compiled anew; prints JSON."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from compileparts import OLD, PARTS, PINNED, POINTS, cases, methods_of

from perfkit.compile import case_launches, compile_launch
from perfkit.method import Launch
from perfkit.profiles.compiled import load_compiled
from perfkit.registry import family
from perfkit.spec import Spec
from perfkit.specialize import specialize

TEXT = '''"""A kernel that calls a function that uses a constant."""

from perfkit.kernels.lang import tl, triton

SCALE = tl.constexpr(3)


@triton.jit
def _helper(x):
    return x * SCALE


@triton.jit
def _one_kernel(src, dst, n, tile: tl.constexpr):
    at = tl.program_id(0) * tile + tl.arange(0, tile)
    tl.store(dst + at, _helper(tl.load(src + at, mask=at < n, other=0.0)), mask=at < n)
'''
DECORATOR = "\n\n@triton.jit"
#: Sources that are the same kernel elsewhere in its file, and some that are another one.
SOURCES = {
    "as it is": TEXT,
    "moved": TEXT.replace(DECORATOR, "\n# a line" * 30 + DECORATOR, 1),
    "moved apart": "\n# a line" * 7 + TEXT.replace(DECORATOR, "\n\n\nOTHER = 4" + DECORATOR),
    "another body": TEXT.replace("at < n)\n", "at <= n)\n"),
    "another function called": TEXT.replace("x * SCALE", "x + SCALE"),
    "another constant": TEXT.replace("constexpr(3)", "constexpr(5)"),
}


def launch(source: str = "as it is", dtype: str = "float32", n: int = 1024, offset: int = 0, tile: int = 256,
           warps: int = 4) -> Launch:  # fmt: skip
    """A launch of a kernel imported from a file of its own."""
    path = Path(sys.argv[2], f"{source.replace(' ', '_')}.py")
    path.write_text(SOURCES[source], encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tensor = Spec((2048,), dtype, (1,), offset)
    return Launch(module._one_kernel, (4,), (tensor, tensor, n), {"tile": tile}, {"num_warps": warps})


def keys() -> dict[str, Any]:
    """Keys of one launch, of the same kernel elsewhere, and of launches that differ in one thing."""
    found = {name: specialize(launch(name), 90).key for name in SOURCES}
    others: dict[str, dict[str, Any]] = {
        "another tile": {"tile": 128}, "other warps": {"warps": 8}, "another dtype": {"dtype": "bfloat16"},
        "another alignment": {"offset": 1}, "another divisibility": {"n": 1000},
    }  # fmt: skip
    found |= {name: specialize(launch(**changes), 90).key for name, changes in others.items()}
    found["the same size"] = specialize(launch(n=2048), 90).key
    found["another target"] = specialize(launch(), 100).key
    os.environ["DISABLE_LLVM_OPT"] = "1"
    found["other settings of the compiler"] = specialize(launch(), 90).key
    del os.environ["DISABLE_LLVM_OPT"]
    compiled = [compile_launch(launch(name), 90, assembly=True).row() for name in ("as it is", "another body")]
    Path(sys.argv[2], "cache").rename(Path(sys.argv[2], "before"))
    compiled.append(compile_launch(launch("moved apart"), 90).row())
    return {"keys": found, "compiled": compiled}


def sample() -> dict[str, Any]:
    """Shipped rows by key, and the same kernels compiled now, of different names; how many, and a seed, are given."""
    wanted, chance = int(sys.argv[3]), random.Random(sys.argv[4])
    shipped, found = load_compiled(triton.__version__), {}
    for item in _launches(chance):
        if len(found) < wanted and item.name not in found:
            key = specialize(item, 90).key
            if key in shipped:
                found[item.name] = [shipped[key].row(), compile_launch(item, 90, assembly=True).row()]
    return {"found": found}


def _launches(chance: random.Random) -> Iterator[Launch]:
    """Launches of one configuration of each point, by chance."""
    version = OLD if triton.__version__ == OLD else PINNED
    points = [names for names in POINTS if PARTS[names[0]].triton == version and 90 in PARTS[names[0]].targets]
    for part, model, key in chance.sample(points, len(points)):
        method = next(method for method in methods_of(part, model) if method.key == key)
        case = chance.choice(cases(part, model, key))
        config = chance.choice(method.configs(case)) if PARTS[part].configs == "all" else method.configs(case)[0]
        launches = case_launches(case, method, family(case.shape.family), config)
        yield from chance.sample(launches, len(launches))


if __name__ == "__main__":
    os.environ["PERFKIT_CACHE"] = str(Path(sys.argv[2], "cache"))  # empty: nothing is known from before
    print(json.dumps({"keys": keys, "sample": sample}[sys.argv[1]]()))
