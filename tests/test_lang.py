"""The kernel language works without Triton up to the launch, and imports no torch."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from perfkit.errors import DeviceError, PerfkitError
from perfkit.kernels.lang import HAVE_TRITON, AbsentLanguage, AbsentTriton
from perfkit.method import Launch

NEXT_POWER = {0: 0, 1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 16: 16, 17: 32, 80: 128, 4097: 8192}


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("value", "power"), NEXT_POWER.items())
def test_stand_in_next_power_of_2(value: int, power: int) -> None:
    assert AbsentTriton.next_power_of_2(value) == power


@pytest.mark.parametrize(("x", "y", "ceiling"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (80, 32, 3)])
def test_stand_in_cdiv(x: int, y: int, ceiling: int) -> None:
    assert AbsentTriton.cdiv(x, y) == ceiling


@pytest.mark.skipif(not HAVE_TRITON, reason="needs Triton to compare with")
def test_stand_in_agrees_with_triton() -> None:
    import triton

    for value in range(1, 300):
        assert AbsentTriton.next_power_of_2(value) == triton.next_power_of_2(value)
        assert AbsentTriton.cdiv(value, 7) == triton.cdiv(value, 7)


def test_stand_in_kernel_is_named_and_refuses_to_launch() -> None:
    triton, tl = AbsentTriton(), AbsentLanguage()

    @triton.jit
    def _plain_kernel(x, n, tile: tl.constexpr):
        pass

    @triton.jit(do_not_specialize=["n"])
    def _optioned_kernel(x, n):
        pass

    assert (_plain_kernel.__name__, _optioned_kernel.__name__) == ("_plain_kernel", "_optioned_kernel")
    launch = Launch(kernel=_plain_kernel, grid=(1,), args=(1, 2), constexprs={"tile": 4})
    assert launch.name == "_plain_kernel"
    with pytest.raises(DeviceError, match=r"_plain_kernel.*pip install triton"):
        launch()
    assert issubclass(DeviceError, PerfkitError)


def test_import_without_triton() -> None:
    out = run_python("""
        import sys
        sys.modules["triton"] = None  # what an import of a missing package sees
        from perfkit.kernels.lang import HAVE_TRITON, tl, triton
        half = tl.constexpr(2)
        print(HAVE_TRITON, triton.cdiv(5, 2), tl.float32, half.value)
    """)
    assert out == "False 3 tl.float32 2"


@pytest.mark.skipif(not HAVE_TRITON, reason="needs Triton")
def test_import_brings_no_torch() -> None:
    out = run_python("""
        import sys
        from perfkit.kernels.lang import HAVE_TRITON
        print(HAVE_TRITON, "torch" in sys.modules)
    """)
    assert out == "True False"
