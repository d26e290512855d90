"""Tensors that have everything but data: what a method's launches may look at, without torch and without memory.

``Method.launches`` only asks tensors for shapes, strides and dtypes, so stand-ins are enough to compile its kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from perfkit.errors import InputError
from perfkit.method import Buffer, Case, Family, Method
from perfkit.shape import DTYPE_BYTES

#: Sub-byte formats are stored packed; kernels see bytes.
_STORED_AS = {"float4_e2m1": "uint8"}


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor's shape, strides (in elements), dtype (a name) and distance from an aligned allocation's start."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    offset: int = 0  # elements

    def stride(self, dim: int | None = None) -> int | tuple[int, ...]:
        """Return one stride or all, in elements, as torch does."""
        return self.strides if dim is None else self.strides[dim]

    def size(self, dim: int | None = None) -> int | tuple[int, ...]:
        """Return one extent or all."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Return the number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    ndim = property(dim)

    def element_size(self) -> int:
        """Return bytes per element."""
        return int(DTYPE_BYTES[self.dtype])

    def data_ptr(self) -> int:
        """Return an address that is aligned as the tensor's would be; allocations start at 0."""
        return self.offset * self.element_size()

    def is_contiguous(self) -> bool:
        """Say whether the elements lie one after the other, last dimension fastest."""
        return self.strides == _contiguous(self.shape)

    def __getitem__(self, key: int | slice | tuple[int | slice, ...]) -> Spec:
        """Index with integers and slices of step 1, as views do."""
        keys = key if isinstance(key, tuple) else (key,)
        if len(keys) > len(self.shape):
            raise IndexError(f"{len(keys)} indices for {len(self.shape)} dimensions")
        shape, strides, offset = [], [], self.offset
        for extent, stride, item in zip(self.shape, self.strides, keys, strict=False):
            if isinstance(item, slice):
                start, stop, step = item.indices(extent)
                if step != 1:
                    raise IndexError("only slices of step 1 make views here")
                shape.append(max(0, stop - start))
                strides.append(stride)
            else:
                start = item + extent if item < 0 else item
                if not 0 <= start < extent:
                    raise IndexError(f"index {item} is out of range for {extent}")
            offset += start * stride
        rest = len(keys)
        return replace(
            self, shape=(*shape, *self.shape[rest:]), strides=(*strides, *self.strides[rest:]), offset=offset
        )


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides[: len(shape)]))


def spec(buffer: Buffer) -> Spec:
    """Return the stand-in of a buffer.

    Raises:
        InputError: the buffer has another number of strides than dimensions.
    """
    strides = _contiguous(buffer.shape) if buffer.strides is None else buffer.strides
    if len(strides) != len(buffer.shape):
        raise InputError(f"needs {len(buffer.shape)} strides", field="strides", value=strides)
    return Spec(buffer.shape, _STORED_AS.get(buffer.dtype, buffer.dtype), strides, buffer.offset)


def specs(case: Case, method: Method, family: Family) -> Mapping[str, Spec]:
    """Return stand-ins for all that ``method.launches`` gets: the family's inputs and the method's buffers."""
    return {name: spec(buffer) for name, buffer in {**family.inputs(case), **method.buffers(case)}.items()}
