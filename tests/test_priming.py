"""Where timing starts: the same acceptance for every method, rows in step or spread over their cycle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from verify_stubs import Log, records, stubs, verify_case

from perfkit.kernels.ring import committed_h
from perfkit.method import ACCEPTANCE_STEPS, Case
from perfkit.priming import BURN_IN, SPREAD, draw, prime, schedule
from perfkit.roofline import acceptance_pmf, verify_chain
from perfkit.session import Session
from perfkit.shape import Shape


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    with stubs(monkeypatch) as log:
        yield log


def test_random_acceptance_is_the_same_for_all_methods_of_a_group_and_for_nothing_else() -> None:
    case = verify_case(acceptance="mean:2.5", batch=256)
    drawn = draw(case, 1).accepted
    assert drawn.shape == (ACCEPTANCE_STEPS, 256) and drawn.dtype == np.int32
    for same in ({"method": "snapshot", "window": None}, {"window": 64}, {"flush_phase": "staggered"}):
        assert np.array_equal(draw(replace(case, **same), 1).accepted, drawn)
    assert not np.array_equal(draw(case, 2).accepted, drawn)
    for other in ({"batch": 255}, {"acceptance": "2.5"}):
        assert not np.array_equal(draw(replace(case, **other), 1).accepted[:, :255], drawn[:, :255])
    shares = [float((drawn == a).mean()) for a in (1, 2, 3, 4)]
    assert shares == pytest.approx(acceptance_pmf("mean:2.5", 4).tolist(), abs=0.02)
    assert len({tuple(row) for row in drawn.T.tolist()}) == 256  # rows differ
    assert (draw(verify_case(acceptance="T"), 1).accepted == 4).all()


def test_accepted_paths_end_at_any_node_of_their_depth() -> None:
    case = verify_case(tree="0,0,1,1,2", draft_len=6, acceptance="mean:2", batch=400)
    drawn = draw(case, 1)
    assert drawn.path is not None
    assert [mask.bit_count() for mask in drawn.path.ravel().tolist()] == drawn.accepted.ravel().tolist()
    # 0; 0 1; 0 2; 0 1 3; 0 1 4; 0 2 5
    wanted = {0b000001, 0b000011, 0b000101, 0b001011, 0b010011, 0b100101}
    counts = Counter(drawn.path.ravel().tolist())
    assert set(counts) == wanted
    assert counts[0b000011] == pytest.approx(counts[0b000101], rel=0.1)
    assert counts[0b001011] == pytest.approx(counts[0b100101], rel=0.1)
    assert np.array_equal(draw(replace(case, method="snapshot", window=None), 1).path, drawn.path)


def test_aligned_rows_begin_a_cycle_with_what_a_step_commits(log: Log) -> None:
    session = Session(verify_case(), "cpu", copies=2)
    prime(session, 1)
    # One step, in which nothing is accepted yet, right before a multiple of the rows of the acceptance.
    assert log.steps == [(63, [True] * 8, [0] * 8)] * 2
    for tensors in session.copies:
        assert (tensors["accepted"] == 3).all() and (tensors["slots"] >= 0).all()
        assert records(session.case, tensors, 0).tolist() == [3] * 8


@pytest.mark.parametrize(("window", "accepted"), [(16, 3), (16, 4), (4, 1), (12, 1), (200, 2)])
def test_staggered_rows_are_spread_evenly_over_the_cycle(log: Log, window: int, accepted: int) -> None:
    cycle = (window - 4) // accepted + 1
    case = verify_case(window=window, acceptance=str(accepted), flush_phase="staggered", batch=2 * cycle)
    session = Session(case, "cpu")
    home = session.tensors["slots"].tolist()
    prime(session, 1)
    found = Counter(records(case, session.tensors, 0).tolist())
    assert found == {accepted * (1 + at): 2 for at in range(cycle)}
    assert session.tensors["slots"].tolist() == home
    assert (session.tensors["accepted"] == accepted).all()
    assert len(log.steps) == cycle and (log.steps[-1][0] + 1) % ACCEPTANCE_STEPS == 0
    for _, live, read in log.steps:
        assert any(live)
        assert sum(on and a == 0 for on, a in zip(live, read, strict=True)) == 2  # two rows start in each step
    log.steps.clear()
    session.run(range(cycle))  # a whole cycle: everybody is back
    assert Counter(records(case, session.tensors, 0).tolist()) == found


def test_random_acceptance_burns_in_on_rows_that_are_not_timed_first(log: Log) -> None:
    case = verify_case(acceptance="mean:2.5")
    session = Session(case, "cpu")
    prime(session, 1)
    drawn = draw(case, 1).accepted
    assert [step for step, _, _ in log.steps] == list(range(47, 64))
    assert log.steps[0][2] == [0] * 8
    assert [read for _, _, read in log.steps[1:]] == drawn[48:].tolist()
    assert session.tensors["accepted"].tolist() == drawn.tolist()


def test_random_staggered_rows_start_one_after_the_other(log: Log) -> None:
    case = verify_case(acceptance="mean:2.5", flush_phase="staggered", batch=64)
    session = Session(case, "cpu")
    prime(session, 1)
    assert len(log.steps) == SPREAD + BURN_IN and log.steps[0][0] == 32
    assert [sum(live) for _, live, _ in log.steps] == [4 * min(1 + at, SPREAD) for at in range(SPREAD + BURN_IN)]
    assert session.tensors["accepted"].tolist() == draw(case, 1).accepted.tolist()


def test_after_burning_in_h_is_distributed_as_in_the_long_run(log: Log) -> None:
    case = verify_case(acceptance="mean:2.5", batch=4000)
    session = Session(case, "cpu")
    prime(session, 1)
    chain = verify_chain(16, 4, acceptance_pmf("mean:2.5", 4))
    found = records(case, session.tensors, 0).double().mean().item()
    assert found == pytest.approx(float(chain.mean(chain.h)[0]), rel=0.03)


def test_paths_are_cleared_for_the_first_step_and_put_back(log: Log) -> None:
    case = verify_case(tree="0,0,1,1,2", draft_len=6, acceptance="T", flush_phase="staggered", batch=9)
    assert case.depth == 3
    session = Session(case, "cpu")
    prime(session, 1)
    assert session.tensors["path"].tolist() == draw(case, 1).path.tolist()  # type: ignore[union-attr]
    assert (session.tensors["accepted"] == 3).all()
    assert Counter(records(case, session.tensors, 0).tolist()) == {15: 2, 12: 2, 9: 2, 6: 2, 3: 1}


def test_a_failed_priming_can_be_repeated(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(verify_case(flush_phase="staggered"), "cpu")
    home, plain = session.tensors["slots"].tolist(), Session.step
    monkeypatch.setattr(Session, "step", lambda self, index, copy: 1 / (index - 61))
    with pytest.raises(ZeroDivisionError):
        prime(session, 1)
    assert session.tensors["slots"].tolist() == home and (session.tensors["accepted"] == 3).all()
    monkeypatch.setattr(Session, "step", plain)
    prime(session, 1)
    assert sorted(records(session.case, session.tensors, 0).tolist()) == [3, 6, 9, 9, 12, 12, 15, 15]


def test_decode_in_step_starts_at_the_hand_over_and_staggered_decode_spread_out() -> None:
    case = Case(Shape("mamba2", 1, 1, 16, 16), "replay", 4, 4, input_dtype="float32")
    session = Session(case, "cpu")
    assert schedule(case, session.method) is None
    prime(session, 1)
    assert committed_h(session.tensors["cursor"]).flatten().tolist() == [0] * 5
    session = Session(replace(case, flush_phase="staggered"), "cpu")
    prime(session, 1)
    slots = session.tensors["slots"].long()
    assert committed_h(session.tensors["cursor"][slots]).flatten().tolist() == [0, 3, 2, 1]
    assert schedule(replace(case, method="conventional", window=None, flush_phase="staggered"),
                    Session(replace(case, method="conventional", window=None), "cpu").method) is None  # fmt: skip
