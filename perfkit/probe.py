"""What a child of `perfkit doctor` runs: does Triton interpret and compile here? ``python -m perfkit.probe MODE``.

A process that interprets cannot compile, and importing torch takes seconds, so each question has its own process. It
prints one JSON document; what fails is a text under the question's key, never a traceback.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from perfkit.errors import one_line
from perfkit.kernels.lang import tl, triton

#: Compute capabilities that perfkit compiles its kernels for, without the dot.
TARGETS = (80, 90, 100, 103, 120)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _double_kernel(x, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offset = tl.arange(0, BLOCK)
    value = tl.load(x + offset, mask=offset < n)
    tl.store(x + offset, value * 2, mask=offset < n)


def _try(question: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"ok": True, "detail": question()}
    except BaseException as error:  # a broken install may raise anything, SystemExit included
        return {"ok": False, "detail": one_line(error)}


def _torch() -> dict[str, Any]:
    import torch

    available = bool(torch.cuda.is_available())
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "available": available,
        "devices": torch.cuda.device_count() if available else 0,
    }


def _interpret() -> str:
    import torch

    x = torch.arange(4, dtype=torch.float32)
    _double_kernel[(1,)](x, 3, BLOCK=4)
    if x.tolist() != [0.0, 2.0, 4.0, 3.0]:
        raise ValueError(f"a kernel that doubles gave {x.tolist()}")
    return "a small kernel gives what it should"


def _compile(target: int) -> str:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {"x": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(_double_kernel, signature=signature, constexprs={"BLOCK": 4})
    kernel = triton.compile(source, target=GPUTarget("cuda", target, 32))
    return f"{len(kernel.asm['cubin'])} bytes"


def main(mode: str) -> int:
    """Answer for one mode, ``interpret`` or ``compile``, on stdout."""
    answers: dict[str, Any] = {}
    if mode == "interpret":
        answers["torch"] = _try(_torch)
        answers["interpreter"] = _try(_interpret)
    else:
        answers["compile"] = {f"sm_{target}": _try(partial(_compile, target)) for target in TARGETS}
    json.dump(answers, sys.stdout)
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "interpret" and os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("TRITON_INTERPRET=1 must be set")
    raise SystemExit(main(sys.argv[1]))
