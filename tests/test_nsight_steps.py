"""Which steps are counted, what they declare, and what counters say to that."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit import registry
from perfkit.method import Case, Method, Point
from perfkit.nsight import table, verdict
from perfkit.nsight.steps import CountedStep, counted_steps, exact_step, paper_bytes, range_name
from perfkit.profiles import load_model

SUPER = load_model("nemotron-super").shape
STATE = 1_073_741_824  # bytes of the FP32 states of a batch of 256: 256 · 128 · 64 · 128 · 4


def case(method: str, draft_len: int = 1, **more: Any) -> tuple[Case, Method]:
    more = {"acceptance": str(max(1, draft_len - 1)), "window": 16 if method == "replay" else None} | more
    found = Case(SUPER, method, 256, draft_len=draft_len, **more)
    return found, registry.get_method("mamba2", method, found.phase)


@pytest.mark.parametrize(
    ("method", "draft_len", "more", "expected"),
    [
        ("conventional", 1, {}, [("nonflush", 0, 1.0)]),
        ("snapshot", 8, {}, [("nonflush", 7, 1.0)]),
        ("replay", 1, {}, [("nonflush", 7, 15 / 16), ("flush", 15, 1 / 16)]),
        ("replay", 4, {}, [("nonflush", 6, 0.8), ("flush", 15, 0.2)]),  # 3, 6, 9, 12, 15
        ("replay", 8, {}, [("nonflush", 7, 0.5), ("flush", 14, 0.5)]),
        ("replay", 16, {"acceptance": "16"}, [("flush", 16, 1.0)]),  # T = a = L: every step flushes
        ("replay", 1, {"window": 1}, [("flush", 0, 1.0)]),
        ("replay", 4, {"acceptance": "mean:2.5"}, [("mixed", None, 1.0)]),
        ("replay", 1, {"flush_phase": "staggered"}, [("mixed", None, 1.0)]),
        ("snapshot", 4, {"acceptance": "mean:2.5"}, [("mixed", None, 1.0)]),
        # A path of three nodes at most: 2, 4, … 12, and 14 + 3 > 16.
        ("replay", 4, {"tree": "0,0,1", "acceptance": "2"}, [("nonflush", 6, 6 / 7), ("flush", 14, 1 / 7)]),
    ],
)  # fmt: skip
def test_a_step_of_each_kind_is_counted(
    method: str, draft_len: int, more: dict[str, Any], expected: list[tuple[str, int | None, float]]
) -> None:
    found, declared = case(method, draft_len, **more)
    steps = counted_steps(found, declared)
    assert [(step.kind, step.h) for step in steps] == [(kind, h) for kind, h, _ in expected]
    assert [step.share for step in steps] == pytest.approx([share for *_, share in expected])
    assert all(step.index >= 2 for step in steps)  # what is compiled at the first steps is compiled


def test_steps_are_where_their_h_is() -> None:
    """Of decode step i has h = i modulo L; of verify h = a (i mod period + 1)."""
    for step in counted_steps(*case("replay")):
        assert step.index % 16 == step.h
    for step in counted_steps(*case("replay", 4)):
        assert 3 * (step.index % 5 + 1) == step.h


@pytest.mark.parametrize(
    ("method", "draft_len", "kind", "reads", "writes"),
    [("conventional", 1, "nonflush", 1, 1), ("replay", 1, "nonflush", 1, 0), ("replay", 1, "flush", 1, 1),
     ("snapshot", 8, "nonflush", 1, 8), ("activation_replay", 4, "nonflush", 3, 3), ("stree", 4, "nonflush", 2, 1),
     ("stree_released", 8, "nonflush", 5, 4), ("joint_attainment", 2, "nonflush", 3, 4)],
)  # fmt: skip
def test_the_papers_count_is_whole_states(method: str, draft_len: int, kind: Any, reads: int, writes: int) -> None:
    found, declared = case(method, draft_len)
    assert paper_bytes(found, declared, CountedStep(kind, 2, 1, 1.0)) == (reads * STATE, writes * STATE)


def test_the_exact_count_of_a_mix_is_the_sum_over_its_rows() -> None:
    """Staggered decode over a whole period: row i has h = i, so the mean of all steps; parameters once."""
    found, declared = case("replay", flush_phase="staggered")
    (step,) = counted_steps(found, declared)
    mixed = exact_step(found, declared, step, 0)
    each = [declared.step(SUPER, Point.of(found), h, h == 15) for h in range(16)]
    assert mixed.bytes_read == pytest.approx(sum(float(one.bytes_read) for one in each) / 16)
    assert mixed.bytes_write == pytest.approx(sum(float(one.bytes_write) for one in each) / 16)


def test_ranges_are_named_for_method_phase_kind_and_point() -> None:
    assert range_name(case("replay")[0], "flush") == "perfkit/replay/decode/flush/B256-L16-T1"
    assert range_name(case("snapshot", 4)[0], "nonflush") == "perfkit/snapshot/verify/nonflush/B256-T4-a3"
    plugin = Case(SUPER, "/home/me/my kernel.py:METHOD", 1)
    assert range_name(plugin, "nonflush") == "perfkit/my-kernel.py-METHOD/decode/nonflush/B1-T1"


def row(**changes: Any) -> dict[str, Any]:
    """A step of one launch that reads 1.08 GB and writes 1.08, counted as the H200's counters did."""
    return {
        "model": "m", "batch": 256, "draft_len": 1, "tree": None, "acceptance": "1", "method": "conventional",
        "phase": "decode", "window": None, "step": "nonflush", "h": 0, "launches": 1, "bytes_read_model": 1.0790e9,
        "bytes_write_model": 1.0779e9, "bytes_read_dram": 1.0791e9, "bytes_write_dram": 1.0514e9,
        "bytes_read_paper": STATE, "bytes_write_paper": STATE, "l2_capacity": 60 * 2**20, "cache_control": "all",
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "read", "write"),
    [
        ({}, "agrees", "agrees"),  # 26.5 MB of writes still in L2
        ({"bytes_read_dram": 1.0790e9 * 1.0099}, "agrees", "agrees"),
        ({"bytes_read_dram": 1.0790e9 * 1.0101}, "contradicts", "agrees"),
        ({"bytes_read_dram": 1.0790e9 * 0.9899}, "contradicts", "agrees"),
        ({"bytes_write_dram": 1.0779e9 * 0.99 - 62.9e6}, "agrees", "agrees"),
        ({"bytes_write_dram": 1.0779e9 * 0.99 - 63e6}, "agrees", "contradicts"),
        ({"bytes_write_dram": 1.0779e9 * 0.99 - 63e6, "launches": 2}, "agrees", "dirty lines"),
        ({"bytes_write_dram": 1.0779e9 * 1.01 + 62.9e6}, "agrees", "agrees"),
        ({"bytes_write_dram": 1.0779e9 * 1.01 + 63e6, "launches": 9}, "agrees", "contradicts"),
        ({"bytes_read_dram": 1.0e9}, "contradicts", "agrees"),
        ({"bytes_read_dram": 1.0e9, "launches": 2, "cache_control": "none"}, "cached lines", "agrees"),
        ({"bytes_read_model": 3e7, "bytes_write_model": 3e7, "bytes_read_dram": 4e7}, "too small", "too small"),
        ({"l2_capacity": None, "bytes_write_dram": 1.0779e9 * 0.985}, "agrees", "contradicts"),
    ],
)
def test_verdicts(changes: dict[str, Any], read: str, write: str) -> None:
    found = row(**changes)
    assert (verdict.judge_read(found), verdict.judge_write(found)) == (read, write)
    assert bool(verdict.contradicted([found])) == ("contradicts" in (read, write))


def test_a_contradicted_count_is_shown_with_both_numbers() -> None:
    (line,) = verdict.contradicted([row(method="snapshot", phase="verify", draft_len=4, bytes_write_model=4.3e9,
                                       bytes_write_dram=5.4e9)])  # fmt: skip
    assert line == "snapshot verify T=4 nonflush: declares to write 4.3 GB, DRAM counted 5.4, +25.6%"


def test_the_table_has_a_line_for_each_step_in_the_papers_order() -> None:
    rows = [
        row(method="replay", phase="verify", draft_len=4, window=16, step="flush", h=15),
        row(method="my.py:METHOD", phase="verify", draft_len=4),
        row(method="replay", phase="verify", draft_len=4, window=16, step="nonflush", h=6),
        row(method="snapshot", phase="verify", draft_len=4, bytes_read_dram=1.2e9),
        row(),
    ]
    found = [dict(zip(table.COLUMNS, line, strict=True)) for line in table.lines(rows)]
    assert [(line["T"], line["method"], line["step"], line["R+W"], line["counters"]) for line in found] == [
        (1, "conventional", "nonflush", "1R + 1W", "agrees"), (4, "snapshot", "nonflush", "1R + 4W", "contradicts"),
        (4, "replay L=16", "nonflush", "1R", "agrees"), (4, "replay L=16", "flush", "1R + 1W", "agrees"),
        (4, "my.py:METHOD", "nonflush", "-", "agrees"),
    ]  # fmt: skip
    first = found[0]
    assert (first["paper GB"], first["exact read"], first["DRAM read"]) == pytest.approx((2.147483648, 1.079, 1.0791))
    assert (first["off %"], first["off MB"], first["DRAM GB"]) == (0.01, -26.5, pytest.approx(2.1305))
