"""Buffers become tensors; steps change what they may; a session can be put back."""

from __future__ import annotations

import pytest
import torch

from perfkit.errors import InputError
from perfkit.method import Buffer, Case, Config
from perfkit.session import KEPT, Session, allocate, torch_dtype
from perfkit.shape import Shape

SMALL = Shape("mamba2", 2, 1, 16, 16)
CONVENTIONAL = Case(SMALL, "conventional", 2, input_dtype="float32")
REPLAY = Case(SMALL, "replay", 2, 3, input_dtype="float32")


def test_what_nobody_wrote_is_nan() -> None:
    found = allocate(
        {
            "state": Buffer((2, 3), "float16", "state"),
            "cursor": Buffer((2,), "int32", "cursor"),
            "work": Buffer((4,), "float32", "scratch"),
        },
        "cpu",
    )
    assert found["state"].isnan().all() and found["state"].dtype == torch.float16
    assert found["cursor"].tolist() == [0, 0] and found["cursor"].dtype == torch.int32
    assert found["work"].tolist() == [0.0] * 4


def test_views_share_memory() -> None:
    buffers = {
        "view": Buffer((2, 2), "float32", "input", (5, 1), "whole", 3),
        "whole": Buffer((2, 5), "float32", "input"),
        "plain": Buffer((3,), "float32", "input", None, "whole", 4),
    }
    found = allocate(buffers, "cpu")
    assert list(found) == ["view", "whole", "plain"]
    found["whole"].copy_(torch.arange(10.0).view(2, 5))
    assert found["view"].tolist() == [[3.0, 4.0], [8.0, 9.0]]
    assert found["plain"].tolist() == [4.0, 5.0, 6.0]
    assert sum(buffer.nbytes for buffer in buffers.values()) == 40


def test_dtypes_that_torch_lacks_are_refused_in_one_line() -> None:
    assert torch_dtype("bfloat16") is torch.bfloat16
    for name in ("float4_e2m1", "nn", "float99"):
        with pytest.raises(InputError, match=name):
            torch_dtype(name)


def test_slots_are_a_choice_without_repetition() -> None:
    session = Session(Case(SMALL, "conventional", 5, input_dtype="float32"), "cpu")
    slots = session.tensors["slots"].tolist()
    assert len(set(slots)) == 5 and set(slots) <= set(range(6))
    assert session.tensors["state"].isfinite().all()  # slots that nobody owns too
    assert session.config == session.method.configs(session.case)[0]


def test_seeds_decide_everything_and_copies_differ() -> None:
    first, again = Session(REPLAY, "cpu", seed=4, copies=2), Session(REPLAY, "cpu", seed=4, copies=2)
    other = Session(REPLAY, "cpu", seed=5)
    for name in ("state", "packed", "a", "slots"):
        assert torch.equal(first.tensors[name], again.tensors[name])
        assert torch.equal(first.copies[1][name], again.copies[1][name])
    assert not torch.equal(first.tensors["state"], other.tensors["state"])
    assert not torch.equal(first.copies[0]["state"], first.copies[1]["state"])
    assert first.tensors is first.copies[0]


def test_bytes_count_every_copy_and_no_view_twice() -> None:
    one, three = Session(CONVENTIONAL, "cpu"), Session(CONVENTIONAL, "cpu", copies=3)
    # state 3 slots, packed 2 rows of 64 channels, dt, slots, out, three parameters
    assert one.nbytes == 4 * (3 * 2 * 16 * 16 + 2 * 64 + 2 * 2 + 2 + 2 * 2 * 16 + 3 * 2)
    assert three.nbytes == 3 * one.nbytes


def test_snapshot_and_restore() -> None:
    session = Session(REPLAY, "cpu", copies=2)
    assert session.step(0) == 1
    saved = session.snapshot()
    assert set(saved[0]) == {"state", "x_ring", "k_ring", "dt_ring", "cursor"}
    assert {session.buffers[name].role for name in saved[0]} <= set(KEPT)
    kept = {name: session.tensors[name].data_ptr() for name in saved[0]}
    assert session.run(range(1, 3)) == 2 * 2
    assert not torch.equal(session.tensors["cursor"], saved[0]["cursor"])
    assert not torch.equal(session.tensors["state"], saved[0]["state"])
    first = session.tensors["out"].clone()
    session.restore(saved)
    for tensors, old in zip(session.copies, saved, strict=True):
        for name, value in old.items():
            assert torch.equal(tensors[name].nan_to_num(7), value.nan_to_num(7)), name
    assert {name: session.tensors[name].data_ptr() for name in saved[0]} == kept  # graphs hold addresses
    session.run(range(1, 3))
    assert torch.equal(session.tensors["out"], first)


def test_a_case_that_is_not_supported_is_refused() -> None:
    with pytest.raises(InputError, match="replay: window None: 1 to 128"):
        Session(Case(SMALL, "replay", 1), "cpu")
    with pytest.raises(InputError, match="no such method"):
        Session(Case(SMALL, "nope", 1), "cpu")


def test_a_given_configuration_is_used() -> None:
    config = Config.of(rows=4, warps=1)
    session = Session(CONVENTIONAL, "cpu", config)
    launch = next(iter(session.method.launches(CONVENTIONAL, session.config, session.tensors, 0)))
    assert launch.constexprs["ROWS"] == 4 and launch.grid == (2 * 2 * 4,)
    assert session.step() == 1
