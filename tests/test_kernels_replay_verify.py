"""ReplaySSM verify on Mamba-2, stepped by hand: cursors, flushes at the limit, short rows, the gather of a tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from perfkit.kernels import ring
from perfkit.method import Case, Point
from perfkit.registry import get_method
from perfkit.session import Session, state_extents
from perfkit.shape import Shape
from perfkit.touched import touched
from perfkit.verify_checker import VerifyChecker

KEY = "replay"
METHOD = get_method("mamba2", KEY, "verify")
SMALL = Shape("mamba2", 1, 1, 16, 16)
SUPER = Shape("mamba2", 128, 8, 64, 128)
STATE = 16 * 16 * 4  # bytes of one row's FP32 state of SMALL


def session(draft_len: int, window: int, tree: str | None = None, origin: int = 0) -> Session:
    """Return one row, handed over just now."""
    made = Session(Case(SMALL, KEY, 1, window, draft_len, tree=tree, input_dtype="float32"), "cpu")
    METHOD.start(made.case, made.tensors, torch.full((1, *state_extents(SMALL)), 0.1), origin)
    return made


def step(made: Session, index: int, took: int, path: int = 0) -> dict[str, tuple[int, int]]:
    """Run a step whose step before committed ``took`` tokens; return bytes read and written by buffer."""
    made.tensors["accepted"].fill_(99)
    made.tensors["accepted"][index] = took
    if "path" in made.tensors:
        made.tensors["path"].fill_(0x7FFF)
        made.tensors["path"][index] = path
    with touched(made.tensors) as record:
        launches = made.step(index)
    assert record.launches == launches and not record.outside_lanes and not record.races
    return {name: (record.read[name], record.written[name]) for name in ("state", "cursor")}


def cursor(made: Session) -> tuple[int, int]:
    """Return h and origin of the row; the mark of a flush must be off."""
    value = int(made.tensors["cursor"][int(made.tensors["slots"][0]), 0])
    assert 0 <= value < 2**30
    return ring.committed_h(value), ring.origin_of(value)


def test_a_row_flushes_at_h_plus_t_above_l_and_not_at_l() -> None:
    """L = 6, T = 3, a ring of nine that starts at its end: steps find h = 0, 1, 3, 4; the last of them flushes."""
    made, origin = session(3, 6, origin=8), 8
    for index, (took, h, flush) in enumerate([(0, 0, False), (1, 1, False), (2, 3, False), (1, 4, True)]):
        moved = step(made, index, took)
        # Both launches read the state of the rows that they serve; the fold alone writes it.
        assert moved["state"] == (STATE, STATE if flush else 0)
        assert cursor(made) == ((0, (origin + h) % 9) if flush else (h, origin))
    assert step(made, 4, 3)["state"] == (STATE, 0)  # what was accepted of the step that flushed
    assert cursor(made) == (3, 3)


@pytest.mark.parametrize(("window", "draft_len"), [(20, 7), (32, 16), (18, 16), (16, 4)])
def test_rows_of_one_position_hold_up_to_a_record_less_than_the_window(window: int, draft_len: int) -> None:
    """T positions until they no longer fit, then one a step: h grows to L - 1 without a flush, beyond L - T."""
    checker = VerifyChecker(Case(SMALL, KEY, 1, window, draft_len, input_dtype="float32"), "cpu")
    checker._draw_drafts = lambda: np.where(checker.h + draft_len > window, 1, draft_len)  # type: ignore[method-assign]
    held: list[int] = []
    for _ in range(draft_len + 4):
        held += checker.h[~checker.flushes()].tolist()
        checker.step(count_bytes=True)
    checker.finish()
    assert max(held) == window - 1


def test_the_accepted_path_of_a_tree_is_gathered() -> None:
    """Nodes 0, 2, 5 of a tree become records 0, 1, 2 of the next step, past the end of the ring as well."""
    tree = "0,0,1,1,2"
    made = session(6, 8, tree, origin=12)  # a ring of fourteen: nodes 2 and 5 lie at places 0 and 3
    step(made, 0, 0, 0)
    slot = int(made.tensors["slots"][0])
    rings = {name: made.tensors[f"{name}_ring"][slot].clone() for name in ("k", "dt", "x")}
    new = METHOD.committed(made.case, made.tensors | {"path": torch.full_like(made.tensors["path"], 0b100101)}, 1)
    step(made, 1, 3, 0b100101)
    for name, place in (("k", slice(None)), ("dt", slice(None))):
        found = made.tensors[f"{name}_ring"][slot][place]
        for to, source in ((12, 12), (13, 0), (0, 3)):
            assert torch.equal(found[to], rings[name][source]), name
    for to, source in ((12, 12), (13, 0), (0, 3)):
        assert torch.equal(made.tensors["x_ring"][slot][:, :, to], rings["x"][:, :, source])
    assert cursor(made) == (3, 12)
    nothing = torch.zeros_like(made.tensors["path"])
    assert torch.allclose(METHOD.committed(made.case, made.tensors | {"path": nothing}, 2), new, rtol=0, atol=0)


@pytest.mark.parametrize(("tree", "launches"), [(None, 2), ("0,0,1", 3)])
def test_launches(tree: str | None, launches: int) -> None:
    made = session(4, 8, tree)
    with touched(made.tensors) as record:
        assert made.step(0) == record.launches == launches
    point = Point.of(made.case)
    assert METHOD.step(SMALL, point, 0, False).launches == METHOD.paper(SMALL, point).launches == launches


def test_counts() -> None:
    """Super, B = 256, L = 16, T = 4, a = 4: literals by hand; a token's x, k and dt take 18,944 bytes."""
    point = Point.of(Case(SUPER, KEY, 256, 16, 4, "T"))
    state, token, inputs, outputs = 4_194_304, 18_944, 4 * 20_736, 4 * 16_384
    for h, flush in ((12, False), (16, True)):
        found: Any = METHOD.step(SUPER, point, h, flush)
        # The flushing launch reads slot, T, acceptance and cursor of all rows, and the heads' cursors of those that
        # flush; outputs look at all heads' cursors, and read T and acceptance of those without a mark.
        rows = 16 + (512 if flush else 0) + 512 + (4 if flush else 12)
        assert found.bytes_read == 256 * (state + h * token + inputs + rows) + 3 * 512
        assert found.bytes_write == 256 * (4 * token + outputs + 4 + 512 + (512 + state if flush else 0))
        assert (found.launches, found.serial) == (2, 0)
