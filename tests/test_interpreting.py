"""The interpreter made quicker: functions replaced once, dtypes looked up, and nothing changed where Triton differs."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from perfkit.kernels import lang
from perfkit.kernels.interpreting import quicken, share_shapes


@triton.jit
def _twice(x):
    return tl.sum(x, axis=0) * 2


@triton.jit
def _calls_kernel(src, dst, n: tl.constexpr):
    x = tl.load(src + tl.arange(0, n))
    for i in tl.static_range(5):
        tl.store(dst + i, _twice(x) + tl.max(x, axis=0) * i)


def made_by_hand() -> Any:
    """What quicken takes of Triton's module, counting how often functions are replaced."""
    language = types.ModuleType("tl")
    language.core = types.ModuleType("core")  # type: ignore[attr-defined]
    module = types.SimpleNamespace(tl=language, replaced=[])

    class Executor:
        def __call__(self, *functions: Any) -> None:
            for fn in functions:
                module._patch_lang(fn)

    def _patch_lang(fn: Any) -> str:
        module.replaced.append(fn)
        return "changes"

    module._patch_lang, module.GridExecutor = _patch_lang, Executor
    module._LangPatchScope, module._get_np_dtype = lambda: "none", lambda dtype: dtype
    return module


def using(*modules: Any) -> Any:
    return types.FunctionType(_twice.fn.__code__, {f"m{i}": module for i, module in enumerate(modules)})


def test_functions_are_replaced_once_a_launch_for_each_module() -> None:
    module = made_by_hand()
    assert quicken(module) and quicken(module)
    kernel, device, standard = using(module.tl), using(module.tl), using(module.tl.core, types)
    both, neither = using(module.tl.core, module.tl), using(types)
    launch = module.GridExecutor()
    launch(kernel, device, device, standard, standard, both)
    assert module.replaced == [kernel, standard]
    launch(both, device, standard)
    assert module.replaced == [kernel, standard, both], "a launch starts anew"
    launch(neither, neither)
    assert module.replaced[3:] == [neither, neither], "of what it does not know it leaves Triton to complain"


@pytest.mark.parametrize("missing", ["_patch_lang", "_LangPatchScope", "_get_np_dtype", "GridExecutor", "tl"])
def test_another_triton_is_left_alone(missing: str) -> None:
    module = made_by_hand()
    delattr(module, missing)
    before = dict(vars(module))
    assert not quicken(module) and vars(module) == before
    module = made_by_hand()
    module._patch_lang = lambda fn, scope: None
    before = dict(vars(module))
    assert not quicken(module) and vars(module) == before


def test_this_process_has_it_and_computes_as_before() -> None:
    assert lang.HAVE_TRITON and interpreter._perfkit_quick
    load = tl.load
    x = torch.arange(8.0)
    for _ in range(2):
        out = torch.zeros(5)
        _calls_kernel[(1,)](x, out, 8)
        assert out.tolist() == [56 + 7 * i for i in range(5)]
    assert tl.load is load, "what a launch replaces is put back"


def test_dtypes_are_those_of_numpy() -> None:
    find = interpreter._get_np_dtype
    wanted = {tl.float32: np.float32, tl.float16: np.float16, tl.bfloat16: np.uint16, tl.int1: bool, tl.int64: np.int64,
              tl.float8e4nv: np.uint8}  # fmt: skip
    for dtype, numpy in wanted.items():
        for _ in range(2):
            assert find(dtype) == find(tl.block_type(dtype, [2, 4])) == np.dtype(numpy)
    pointer = tl.pointer_type(tl.float32)
    assert find(pointer) == find(tl.block_type(pointer, [8])) == np.dtype(np.uint64)


def test_values_of_one_shape_share_what_says_so() -> None:
    one, other = (tl.block_type(tl.int32, [4, 2]) for _ in range(2))
    assert one.shape is other.shape and one == other
    assert str(one) == one.name == "<['4', '2'], int32>" and one.numel == 8
    assert str(tl.block_type(tl.float16, [tl.constexpr(4), 2])) == "<['4', '2'], fp16>"
    first, second = tl.tensor(None, one), tl.tensor(None, tl.block_type(tl.int8, [4, 2]))
    assert first.shape is second.shape and [size.value for size in first.shape] == [4, 2]
    assert (first.dtype, second.dtype, first.numel.value) == (tl.int32, tl.int8, 8)
    scalar = tl.tensor(None, tl.int64)
    assert (len(scalar.shape), scalar.numel.value, scalar.type) == (0, 1, tl.int64)
    for shape in ([], [3]):  # what was refused is refused, each time
        for _ in range(2):
            with pytest.raises((TypeError, ValueError)):
                tl.block_type(tl.int32, shape)


def another_core(**changes: Any) -> Any:
    """A module like the language's core, small, whose classes may look different."""

    class Block:
        def __init__(self, element_ty: Any, shape: Any) -> None:
            self.element_ty, self.shape, self.numel = element_ty, tuple(shape), 8
            self.name = f"<{self.shape}, {self.element_ty}>"

        def __str__(self) -> str:
            return str(self.name)

        def is_block(self) -> bool:
            return True

        scalar = property(lambda self: self.element_ty)

    class Scalar:
        scalar = property(lambda self: self)

        def is_block(self) -> bool:
            return False

    class Value:
        def __init__(self, handle: Any, type: Any) -> None:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = (type.shape, type.numel) if type.is_block() else ((), 1)
            for name, value in changes.items():
                setattr(self, name, value)

    return types.SimpleNamespace(block_type=Block, tensor=Value, constexpr=tl.constexpr, int32=Scalar())


def test_shapes_are_shared_only_where_values_look_as_expected() -> None:
    core = another_core()
    assert share_shapes(core)
    assert core.block_type(core.int32, [4, 2]).shape is core.block_type(core.int32, [4, 2]).shape
    core = another_core(layout="new")
    before = core.block_type.__init__, core.tensor.__init__
    assert not share_shapes(core)
    assert (core.block_type.__init__, core.tensor.__init__) == before and "name" not in vars(core.block_type)
    assert not share_shapes(types.SimpleNamespace())
