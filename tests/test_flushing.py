"""The launch that serves rows that flush: who takes which row, in batches of several blocks, and the cursors of rows.

The checks of shipped kernels have a few rows, so one block and mostly one program. Here are more than 64 rows of the
smallest shapes, all compared, out of step and all in one.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from perfkit.checker import Checker, Wrong
from perfkit.kernels import flushing, replay, ring, targets
from perfkit.kernels.flushing import (
    SCAN,
    _bits,
    decode_ranks,
    fold_programs,
    how_many,
    ranked,
    verify_ranks,
    within,
)
from perfkit.kernels.kda import replay_verify
from perfkit.method import Case, Config
from perfkit.registry import get_method
from perfkit.shape import Shape
from perfkit.tree import Tree
from perfkit.verify_checker import VerifyChecker, make_checker

#: Two blocks, the second one of six rows. Row 35 of a check is padded.
BATCH = 70
TREE = "0,0,1"


def small(family: str, phase: str, window: int, draft_len: int = 1, *, batch: int = BATCH, **more: Any) -> Case:
    """A case of the smallest shape, of one head; its rows flush often."""
    assert (phase == "verify") == (draft_len > 1)
    return Case(Shape(family, 1, 1, 16, 16), "replay", batch, window, draft_len, input_dtype="float32", **more)


def with_programs(case: Case, programs: int) -> Config:
    """The default configuration, but for so many programs of the fold; a program then takes several pieces."""
    config = get_method(case.shape.family, case.method, case.phase).configs(case)[0]
    assert case.batch * case.shape.n_v_heads > programs
    return Config.of(**{**dict(config.values), "fold_programs": programs})


@pytest.fixture(autouse=True)
def _all_rows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfkit.checker.ROWS_COMPARED", BATCH)


def cursors_agree(checker: Checker) -> None:
    """A row's cursor is that of its heads, and no mark is left."""
    own = checker.home[checker.home >= 0].long()
    cursors = checker.tensors["cursor"][own]
    assert torch.equal(cursors, checker.tensors["row_cursor"][own][:, None].expand_as(cursors))
    assert (cursors < 2**30).all()


# Batches of several blocks.


@pytest.mark.parametrize(
    ("case", "programs"),
    [(small("gdn", "decode", 3), 1), (small("kda", "verify", 4, 4, tree=TREE), 6)],
    ids=["gdn-decode", "kda-tree"],
)
def test_rows_out_of_step(case: Case, programs: int) -> None:
    """In both blocks some rows flush and some do not, in the same step; others sit out, one has no slot at all."""
    checker = make_checker(case, "cpu", with_programs(case, programs))
    mixed = 0
    for index in range(4 if case.phase == "decode" else 3):
        idle = np.random.default_rng(index).random(BATCH) < 0.4
        before = checker.tensors["state"][checker.home.long()].clone()
        checker.step(idle, count_bytes=index == 2)
        flushed = (before != checker.tensors["state"][checker.home.long()]).flatten(1).any(1) & (checker.home >= 0)
        mixed += all(0 < int(rows.sum()) < len(rows) for rows in (flushed[:SCAN], flushed[SCAN:]))
        cursors_agree(checker)
    checker.finish()
    assert mixed


class Aligned(VerifyChecker):
    """Rows that verify as many positions and commit as many tokens as all others."""

    def _draw_drafts(self) -> Any:
        return np.full(self.case.batch, self.case.draft_len)

    def _draw_accepted(self, row: int) -> tuple[int, int]:
        return 1, 0b1


@pytest.mark.parametrize(
    ("case", "programs", "due"),
    [(small("kda", "decode", 2), 6, [0, BATCH - 1]), (small("gdn", "verify", 2, 2), 3, [0, BATCH - 1])],
    ids=["kda-decode", "gdn-verify"],
)
def test_all_rows_in_one_step(case: Case, programs: int, due: list[int]) -> None:
    """A step without a row that flushes, then one with all of them."""
    checker = (Aligned if case.phase == "verify" else Checker)(case, "cpu", with_programs(case, programs))
    for rows in due:
        assert int((checker.flushes() & checker.live).sum()) == rows
        checker.step(count_bytes=rows > 0)
        cursors_agree(checker)
    checker.finish()


@pytest.mark.parametrize(("family", "phase"), [("gdn", "decode"), ("gdn", "verify")])
def test_several_heads_of_a_row_are_several_pieces(family: str, phase: str) -> None:
    """Four heads in two pieces, and all pieces of all rows in one program."""
    shape = Shape(family, 4, 1, 16, 16)
    case = Case(shape, "replay", 5, 3, 1 if phase == "decode" else 2, input_dtype="float32")
    config = Config.of(**{**dict(with_programs(case, 1).values), "fold_heads": 2})
    checker = make_checker(case, "cpu", config)
    for _ in range(4):
        checker.step(count_bytes=True)
        cursors_agree(checker)
    checker.finish()


def test_a_program_to_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on compute capability 10.0, where a program of KDA's fold takes one piece: there is one to each."""
    monkeypatch.setitem(targets.TOLD, "FOLLOWED", lambda cc: False)
    monkeypatch.setitem(targets.TOLD, "FOLLOWS", lambda cc: False)  # launches that follow closely are not interpreted
    monkeypatch.setattr(replay_verify, "capability", lambda tensors: 100)
    case = small("kda", "verify", 2, 2, batch=9)
    checker = Aligned(case, "cpu")
    first = next(iter(checker.method.launches(case, checker.session.config, checker.tensors, 0)))
    assert (first.constexprs["APART"], first.grid) == (False, (9,))
    for _ in range(2):
        checker.step(count_bytes=True)
        cursors_agree(checker)
    checker.finish()


def test_rows_that_sit_out_keep_their_cursor() -> None:
    """What the fold goes by stands still while a row has no slot, and is there when the row comes back."""
    case = small("gdn", "decode", 3, batch=8)
    checker = make_checker(case, "cpu", with_programs(case, 2))
    idle = np.arange(8) % 2 == 1
    checker.step()
    own = checker.home.long()
    before = checker.tensors["row_cursor"].clone()
    checker.step(idle)
    moved = checker.tensors["row_cursor"] != before
    assert moved[own[checker.live & ~idle]].all() and not moved[own[checker.live & idle]].any()
    assert int(moved.sum()) == int((checker.live & ~idle).sum())
    for _ in range(2):  # even rows flush and odd ones do not; the other way round
        checker.step()
    checker.finish()


class Single(VerifyChecker):
    """Rows of one position a step, as long as a step of T would flush them."""

    def _draw_drafts(self) -> Any:
        return np.where(self.h + self.case.draft_len > (self.case.window or 0), 1, self.case.draft_len)

    def _draw_accepted(self, row: int) -> tuple[int, int]:
        return 1, 0b1


@pytest.mark.parametrize("phase", ["decode", "verify"])
@pytest.mark.parametrize("planted", [False, True])
def test_a_row_cursor_of_the_request_before_is_seen(phase: str, planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handing a row over has to set what the fold goes by, or the row flushes when the old request would have."""
    start = replay.Replay.start

    def keeps(self: Any, case: Case, tensors: Any, state: Any, origin: Any = 0) -> None:
        before = tensors["row_cursor"].clone()
        start(self, case, tensors, state, origin)
        tensors["row_cursor"].copy_(before)

    case = small("gdn", phase, 5, 1 if phase == "decode" else 3, batch=3)
    checker = (Single if phase == "verify" else Checker)(case, "cpu")
    for _ in range((case.window or 0) - (phase == "decode")):  # to the last record that a row can hold
        checker.step()
    assert ring.committed_h(checker.tensors["row_cursor"][int(checker.home[0])]) == (case.window or 0) - 1
    if planted:
        monkeypatch.setattr(replay.Replay, "start", keeps)
    checker.restart(0)
    if planted:
        with pytest.raises(Wrong, match=r"state \d+, .*written"):  # of a verify step, as it was: no records are folded
            checker.step(count_bytes=True)
    else:
        checker.step(count_bytes=True)


# Programs.


@pytest.mark.parametrize("batch", [1, 2, 63, 64, 65, 70, 128, 256, 4096])
def test_programs_are_those_that_fit(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many a block; no more than run at once, but one a block; no more than a whole block has pieces."""
    case = Case(Shape("gdn", 2, 1, 16, 16), "replay", batch, 8)
    blocks = -(-batch // SCAN)
    for multiprocessors, resident, pieces in product((1, 78, 132), (1, 4, 8), (1, 2, 16, 64)):
        monkeypatch.setattr(flushing, "_multiprocessors", lambda device, n=multiprocessors: n)
        grid, programs = fold_programs(case, {"state": None}, resident, pieces)
        assert grid == blocks * programs and 1 <= programs <= min(batch, SCAN) * pieces
        assert grid <= max(multiprocessors * resident, blocks)
        # One more would be one too many.
        assert programs == min(batch, SCAN) * pieces or blocks * (programs + 1) > multiprocessors * resident
        assert fold_programs(case, {"state": None}, None, pieces)[1] == min(batch, SCAN) * pieces


def test_programs_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(Shape("gdn", 2, 1, 16, 16), "replay", 256, 8)
    assert fold_programs(case, {"state": torch.zeros(1)}, 8, 4) == (8, 2)  # in the interpreter
    monkeypatch.setattr(flushing, "_multiprocessors", lambda device: 132)
    assert fold_programs(case, {"state": torch.zeros(1)}, 8, 16) == (1056, 264)
    assert fold_programs(case, {"state": torch.zeros(1)}, 7, 1) == (256, 64)


# Ranks.


@triton.jit
def _bits_kernel(src, dst, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(dst + at, _bits(tl.load(src + at)))


@triton.jit
def _decode_kernel(slots, row_cursor, out, batch, window, scan: tl.constexpr):
    row = tl.program_id(0) * scan + tl.arange(0, scan)
    tl.store(out + row, decode_ranks(slots, row_cursor, row, batch, window))


@triton.jit
def _verify_kernel(
    slots, row_cursor, drafts, took, ancestors, out, batch, window, nodes: tl.constexpr, tree: tl.constexpr,
    scan: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * scan + tl.arange(0, scan)
    ranks = verify_ranks(slots, row_cursor, drafts, took, ancestors, row, batch, window, nodes, tree)
    tl.store(out + row, ranks)


@triton.jit
def _rows_kernel(ranks, rows, count, scan: tl.constexpr):
    block = tl.program_id(0)
    row = block * scan + tl.arange(0, scan)
    own = tl.load(ranks + row)
    n = how_many(own)
    tl.store(count + block, n)
    for rank in tl.range(0, n):
        tl.store(rows + block * scan + rank, ranked(own, row, rank + 1))


@triton.jit
def _within_kernel(out, h, piece, n: tl.constexpr):
    tl.store(out + tl.arange(0, n), within(tl.arange(0, n), h, piece))


def counted(flushes: Sequence[bool]) -> list[int]:
    """Ranks by a plain count, of whole blocks: from 1 in each block, 0 of rows that do not flush."""
    ranks: list[int] = []
    for start in range(0, len(flushes), SCAN):
        seen = 0
        for flush in (*flushes[start : start + SCAN], *[False] * SCAN)[:SCAN]:
            seen += flush
            ranks.append(seen if flush else 0)
    return ranks


def int32(values: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.int32)


def drawn(batch: int, most: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Slots, a third of them null, the cursors of all slots, and what each row holds."""
    random = np.random.default_rng(seed)
    slots = random.permutation(2 * batch)[:batch]
    slots[random.random(batch) < 1 / 3] = -1
    held = random.integers(0, most + 1, 2 * batch)
    cursors = [ring.pack(int(h), int(random.integers(0, 2**15))) for h in held]
    return int32(slots), int32(cursors), [int(held[slot]) for slot in slots]


def blocks_of(batch: int) -> int:
    return -(-batch // SCAN)


def empty_ranks(batch: int) -> torch.Tensor:
    return torch.full((blocks_of(batch) * SCAN,), -7, dtype=torch.int32)


@pytest.mark.parametrize("batch", [1, 64, 65, 150])
def test_ranks_of_decode(batch: int) -> None:
    window = 5
    slots, cursors, held = drawn(batch, window - 1)
    out = empty_ranks(batch)
    _decode_kernel[(blocks_of(batch),)](slots, cursors, out, batch, window, scan=SCAN)
    flushes = [slot >= 0 and h + 1 >= window for slot, h in zip(slots.tolist(), held, strict=True)]
    assert out.tolist() == counted(flushes)
    assert batch == 1 or 0 < sum(flushes) < batch / 2


def test_rows_beyond_the_batch_have_no_rank() -> None:
    """What lies behind the slots may be anything, as in a buffer that is larger than a batch."""
    slots, cursors = torch.zeros(SCAN, dtype=torch.int32), int32([ring.pack(4)])
    out = empty_ranks(1)
    _decode_kernel[(1,)](slots, cursors, out, 3, 5, scan=SCAN)
    assert out.tolist() == [1, 2, 3] + [0] * (SCAN - 3)


@pytest.mark.parametrize("batch", [3, 64, 130])
def test_ranks_of_chains_of_mixed_lengths(batch: int) -> None:
    window, nodes = 12, 6
    slots, cursors, held = drawn(batch, window - 2)
    random = np.random.default_rng(1)
    drafts, took = random.integers(1, nodes + 1, batch), random.integers(0, 3, batch)
    out = empty_ranks(batch)
    _verify_kernel[(blocks_of(batch),)](
        slots, cursors, int32(drafts), int32(took), int32(took), out, batch, window, nodes, False, scan=SCAN
    )
    flushes = [slot >= 0 and h + int(a) + int(n) > window
               for slot, h, n, a in zip(slots.tolist(), held, drafts, took, strict=True)]  # fmt: skip
    assert out.tolist() == counted(flushes)
    limit = [h + int(a) + int(n) == window for h, n, a in zip(held, drafts, took, strict=True)]
    assert batch < 64 or any(limit), "rows that are just full do not flush"


@pytest.mark.parametrize(
    "text", [TREE, "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14", "0,0,1,1,2,2,3,3,4,4,5,5,6,6,7"],
    ids=["four nodes", "sixteen deep", "sixteen wide"],
)  # fmt: skip
@pytest.mark.parametrize("batch", [5, 100])
def test_ranks_of_trees(text: str, batch: int) -> None:
    """A row's step is as long as the longest path among the nodes that it has; what it took is a mask."""
    tree = Tree.parse(text)
    nodes, window = len(tree.parents), 20
    slots, cursors, held = drawn(batch, window - tree.depth)
    random = np.random.default_rng(2)
    drafts = random.integers(1, nodes + 1, batch)
    paths = [(*tree.ancestors, 0)[int(random.integers(0, nodes + 1))] for _ in range(batch)]
    ancestors = int32(tree.ancestors).expand(batch, -1).clone()
    for row, n in enumerate(drafts):
        ancestors[row, n:] = 0x7FFF  # not read
    out = empty_ranks(batch)
    _verify_kernel[(blocks_of(batch),)](
        slots, cursors, int32(drafts), int32(paths), ancestors, out, batch, window, nodes, True, scan=SCAN
    )
    flushes = [slot >= 0 and h + path.bit_count() + tree.prefix(int(n)).depth > window
               for slot, h, n, path in zip(slots.tolist(), held, drafts, paths, strict=True)]  # fmt: skip
    assert out.tolist() == counted(flushes)
    assert batch == 5 or 0 < sum(flushes) < sum(slot >= 0 for slot in slots.tolist())


def test_rows_are_found_by_their_rank() -> None:
    random = np.random.default_rng(3)
    flushes = [bool(one) for one in random.random(3 * SCAN) < 0.4]
    flushes[SCAN : 2 * SCAN] = [False] * SCAN
    ranks = int32(counted(flushes))
    rows, count = torch.full((3 * SCAN,), -7, dtype=torch.int32), torch.full((3,), -7, dtype=torch.int32)
    _rows_kernel[(3,)](ranks, rows, count, scan=SCAN)
    for block in range(3):
        own = [row for row in range(block * SCAN, (block + 1) * SCAN) if flushes[row]]
        assert int(count[block]) == len(own)
        assert rows[block * SCAN : (block + 1) * SCAN].tolist() == own + [-7] * (SCAN - len(own))


def test_bits_of_a_mask() -> None:
    values = [*range(1000), *(1 << bit for bit in range(31)), 0xFFFF, 0x5555, 2**30 - 1, 2**31 - 1]
    values += [0] * (triton.next_power_of_2(len(values)) - len(values))
    found = torch.empty(len(values), dtype=torch.int32)
    _bits_kernel[(1,)](int32(values), found, n=len(values))
    assert found.tolist() == [value.bit_count() for value in values]


def test_what_the_compiler_does_not_know_to_be_nothing_is_nothing() -> None:
    for h, piece in ((0, 0), (2**15 - 1, 64 * 1024)):
        out = torch.full((16,), -7, dtype=torch.int32)
        _within_kernel[(1,)](out, h, piece, n=16)
        assert out.tolist() == list(range(16))
