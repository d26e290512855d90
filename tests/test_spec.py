"""Stand-ins for tensors answer as torch tensors do."""

from __future__ import annotations

import pytest
import torch

from perfkit.errors import InputError
from perfkit.method import Buffer
from perfkit.spec import spec

INDICES = [0, -1, slice(1, 3), (1, slice(None)), (slice(None), slice(2, 5)), (1, 2), (slice(1, 2), 3, slice(0, 4)), ()]


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("strides", [None, (96, 12, 2), (8, 64, 1)], ids=str)
def test_views_are_torchs(index: object, strides: tuple[int, ...] | None) -> None:
    shape = (4, 6, 5)
    own = spec(Buffer(shape, "float32", "input", strides=strides))
    storage = torch.zeros(1000)
    tensor = storage.as_strided(shape, strides or (30, 5, 1))
    view, expected = own[index], tensor[index]  # type: ignore[index]
    assert view.shape == tuple(expected.shape)
    assert view.strides == view.stride() == expected.stride()
    assert view.data_ptr() == expected.data_ptr() - storage.data_ptr()
    assert (view.numel(), view.dim(), view.ndim) == (expected.numel(), expected.dim(), expected.ndim)


def test_facts() -> None:
    own = spec(Buffer((3, 80), "bfloat16", "input", strides=(240, 1), storage="packed", offset=160))
    assert (own.stride(0), own.stride(-1), own.size(1), own.size()) == (240, 1, 80, (3, 80))
    assert own.element_size() == 2 and own.data_ptr() == 320
    assert not own.is_contiguous() and spec(Buffer((3, 80), "int32", "cursor")).is_contiguous()


def test_sub_byte_formats_are_stored_as_bytes() -> None:
    assert spec(Buffer((4, 64), "float4_e2m1", "state")).dtype == "uint8"


@pytest.mark.parametrize("index", [4, -5, (0, 6), (0, 0, 0, 0), slice(0, 4, 2)], ids=str)
def test_bad_indices(index: object) -> None:
    with pytest.raises(IndexError):
        spec(Buffer((4, 6, 5), "float32", "input"))[index]  # type: ignore[index]


def test_wrong_number_of_strides() -> None:
    with pytest.raises(InputError, match="needs 2 strides"):
        spec(Buffer((4, 6), "float32", "input", strides=(6,)))
