"""Methods that go wrong on a GPU in ways that an interpreter cannot show; ``FILE.py:NAME`` loads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfkit.kernels.lang import tl, triton
from perfkit.kernels.mamba2.conventional_decode import ConventionalDecode
from perfkit.method import Buffer, Case, Config, Launch


@triton.jit(do_not_specialize=["go"])
def _stray_kernel(flag_ptr, go):
    # 2^40 elements on: no allocation reaches there.
    far = tl.program_id(0).to(tl.int64) + (1 << 40)
    tl.store(flag_ptr + far, 1, mask=go != 0)


@triton.jit(do_not_specialize=["go"])
def _forever_kernel(flag_ptr, go):
    # Volatile: the compiler must not take the first answer for all of them.
    flag = tl.load(flag_ptr, volatile=True)
    while (flag == 0) & (go != 0):
        flag = tl.load(flag_ptr, volatile=True)


class Goes(ConventionalDecode):
    """Conventional decode, and after it a kernel that goes wrong, always or only in the graph that is timed.

    Args:
        kernel: takes the buffer ``flag``, which holds zero, and whether to go wrong.
        when_timed: it does so only in a graph that starts at step 0, as no check's does.
    """

    def __init__(self, kernel: Any, when_timed: bool = False) -> None:
        self.kernel, self.when_timed = kernel, when_timed

    def buffers(self, case: Case) -> dict[str, Buffer]:
        return {**super().buffers(case), "flag": Buffer((1,), "int32", "scratch")}

    def configs(self, case: Case) -> Sequence[Config]:
        return super().configs(case)[:1]  # no search, which would meet the fault first

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        import torch

        yield from super().launches(case, config, tensors, step)
        timed = step == 0 and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        go = int(timed or not self.when_timed)
        yield Launch(self.kernel, (1,), (tensors["flag"], go), {}, {"num_warps": 1})


STRAYS, STRAYS_WHEN_TIMED = Goes(_stray_kernel), Goes(_stray_kernel, when_timed=True)
HANGS, HANGS_WHEN_TIMED = Goes(_forever_kernel), Goes(_forever_kernel, when_timed=True)
