"""The cursor's chain against brute-force simulation, closed forms and a linear solve of the transition matrix."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.errors import InputError
from perfkit.roofline import acceptance_pmf, committed_chain, decode_chain, expected, period, phase_chain, verify_chain
from perfkit.roofline.cursor import cycle, flush_rates, flushes
from perfkit.roofline.traffic import record_bytes, replay_chain_counts, replay_decode_counts, traffic_per_token
from perfkit.roofline.window import best_window, chain_cost, off_cost, paper_cost
from perfkit.shape import Shape

SUPER = Shape("mamba2", 128, 8, 64, 128)


def simulate(window: int, draft_len: int, accepted: list[int]) -> list[tuple[int, bool]]:
    """The rule as the paper writes it (App. D.1), one step after the other, from an empty buffer."""
    h, steps = 0, []
    for a in accepted:
        flush = h + draft_len > window
        steps.append((h, flush))
        h = a if flush else h + a
    return steps


def solve(window: int, draft_len: int, pmf: np.ndarray) -> np.ndarray:
    """Stationary distribution over h = 0..L by solving pi P = pi with the transition matrix."""
    size = window + 1
    matrix = np.zeros((size, size))
    for h in range(size):
        for a, probability in enumerate(pmf, start=1):
            matrix[h, a if h + draft_len > window else h + a] += probability
    system = np.vstack((matrix.T - np.eye(size), np.ones(size)))
    return np.linalg.lstsq(system, np.append(np.zeros(size), 1), rcond=None)[0]


def test_decode_by_hand() -> None:
    chain = decode_chain(4)
    assert chain.h.tolist() == [0, 1, 2, 3]
    assert chain.flush.tolist() == [False, False, False, True]
    assert chain.probability.tolist() == [0.25] * 4
    assert chain.tokens_per_cycle.tolist() == [4]
    assert decode_chain(1).flush.tolist() == [True]


def test_verify_by_hand() -> None:
    # L = 16, T = 4, a = 3: h = 3, 6, 9, 12, 15 and 15 + 4 > 16 flushes: floor(12 / 3) + 1 = 5 steps, 15 tokens.
    chain = verify_chain(16, 4, acceptance_pmf("3", 4))
    assert chain.h.tolist() == [3, 6, 9, 12, 15]
    assert chain.flush.tolist() == [False, False, False, False, True]
    assert chain.probability == pytest.approx([0.2] * 5)
    assert chain.tokens_per_cycle == pytest.approx([15])
    assert cycle(16, 4, 3).tolist() == [3, 6, 9, 12, 15]


def test_verify_at_one_token_is_not_decode() -> None:
    chain = verify_chain(4, 1, np.ones(1))
    assert chain.h.tolist() == [1, 2, 3, 4]  # reads L records at the flush and keeps one
    assert chain.flush.tolist() == [False, False, False, True]
    assert phase_chain(4, 1, np.ones(1)).h.tolist() == [0, 1, 2, 3]


def test_flush_rules() -> None:
    assert [bool(flushes(h, 4, 1)) for h in range(4)] == [False, False, False, True]
    assert [bool(flushes(h, 8, 4)) for h in range(9)] == [False] * 5 + [True] * 4


def test_smallest_window_flushes_every_step() -> None:
    chain = verify_chain(4, 4, acceptance_pmf("2.5", 4))
    assert np.all(chain.flush)
    assert chain.probability == pytest.approx(acceptance_pmf("2.5", 4))


@given(st.integers(1, 12), st.data())
def test_constant_acceptance_has_the_closed_period(draft_len: int, data: st.DataObject) -> None:
    window = data.draw(st.integers(draft_len, 200))
    accepted = data.draw(st.integers(1, draft_len))
    chain = verify_chain(window, draft_len, acceptance_pmf(str(accepted), draft_len))
    steps = (window - draft_len) // accepted + 1
    assert period(window, draft_len, accepted) == steps
    assert chain.h.tolist() == [accepted * i for i in range(1, steps + 1)]
    assert chain.probability == pytest.approx([1 / steps] * steps)
    assert chain.steps_per_cycle == pytest.approx([steps])
    assert cycle(window, draft_len, accepted).tolist() == chain.h.tolist()
    simulated = simulate(window, draft_len, [accepted] * (3 * steps + 1))[1:]  # h = 0 is left after the first step
    if accepted <= window - draft_len or steps == 1:
        assert simulated[:steps] == list(zip(chain.h.tolist(), chain.flush.tolist(), strict=True))


@settings(max_examples=40)
@given(st.integers(2, 8), st.data())
def test_chain_solves_the_transition_matrix(draft_len: int, data: st.DataObject) -> None:
    window = data.draw(st.integers(draft_len, 40))
    weights = np.array(data.draw(st.lists(st.floats(0.01, 1), min_size=draft_len, max_size=draft_len)))
    pmf = weights / weights.sum()
    chain = verify_chain(window, draft_len, pmf)
    stationary = np.zeros(window + 1)
    stationary[chain.h] = chain.probability
    assert stationary == pytest.approx(solve(window, draft_len, pmf), abs=1e-9)
    assert chain.flush_rate == pytest.approx(flush_rates(window, draft_len, pmf), rel=1e-12)


def test_chain_agrees_with_simulation() -> None:
    rng = np.random.default_rng(7)
    window, draft_len, pmf = 16, 4, acceptance_pmf("p:.88,.62,.40", 4)
    steps = simulate(window, draft_len, list(rng.choice(np.arange(1, 5), size=100_000, p=pmf)))[100:]
    counts = Counter(steps)
    chain = verify_chain(window, draft_len, pmf)
    assert {h for h, _ in counts} == set(chain.h.tolist())
    for h, flush, probability in zip(chain.h.tolist(), chain.flush.tolist(), chain.probability, strict=True):
        assert counts[(h, flush)] / len(steps) == pytest.approx(probability, abs=0.005)
    tokens = sum(h for h, flush in steps if flush) / sum(flush for _, flush in steps)
    assert chain.tokens_per_cycle[0] == pytest.approx(tokens, rel=0.01)  # a cycle ends with what it committed


def test_cycles_are_shorter_than_the_paper_assumes() -> None:
    # Paper, C.5: a cycle commits between L - T + 1 and L tokens.
    windows = np.arange(4, 65)
    tokens = verify_chain(windows, 4, acceptance_pmf("3.5", 4)).tokens_per_cycle
    assert np.all((tokens > windows - 4) & (tokens < windows))


def test_many_windows_are_each_window_alone() -> None:
    pmf = acceptance_pmf("2.5", 4)
    windows = np.array([16, 4, 33, 16])
    together = verify_chain(windows, 4, pmf)
    assert together.windows.tolist() == windows.tolist()
    for index, window in enumerate(windows):
        alone = verify_chain(int(window), 4, pmf)
        assert together.flush_rate[index] == pytest.approx(alone.flush_rate[0], rel=1e-14)
        assert together.mean(together.h)[index] == pytest.approx(alone.mean(alone.h)[0], rel=1e-14)
    constant = verify_chain(windows, 4, acceptance_pmf("3", 4))
    assert constant.flush_rate == pytest.approx([1 / 5, 1, 1 / 10, 1 / 5])
    assert decode_chain([3, 5]).h.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert decode_chain([3, 5]).flush_rate == pytest.approx([1 / 3, 1 / 5])


@pytest.mark.parametrize("window", [0, -1, [4, 0], 2.5, []])
def test_bad_windows(window: Any) -> None:
    with pytest.raises(InputError, match="window"):
        decode_chain(window)


def test_bad_chains() -> None:
    with pytest.raises(InputError, match="draft length"):
        verify_chain(3, 4, acceptance_pmf("T", 4))
    with pytest.raises(InputError, match="4 probabilities"):
        verify_chain(16, 4, np.ones(1))
    with pytest.raises(InputError, match="sum to 1"):
        verify_chain(16, 2, np.array([0.5, 0.6]))
    with pytest.raises(InputError, match="draft"):
        verify_chain(16, 0, np.ones(1))


@dataclass(frozen=True)
class FakeStep:
    """As perfkit.method.Step: numbers or arrays, some of them scalars."""

    bytes_read: Any
    bytes_write: Any
    launches: Any = 1


def test_expected_of_one_and_of_many_windows() -> None:
    def step(h: Any, flush: Any) -> FakeStep:
        return FakeStep(100 + 10 * h, np.where(flush, 1000, 1))

    one = expected(step, decode_chain(4))
    assert one == FakeStep(115.0, (3 + 1000) / 4, 1.0)
    many = expected(step, decode_chain([4, 2]))
    assert many.bytes_read.tolist() == [115, 105]
    assert many.bytes_write == pytest.approx([250.75, 500.5])
    assert many.launches == pytest.approx([1, 1])


def test_exact_decode_is_eq_13() -> None:
    windows = np.array([1, 2, 16, 100])
    exact = replay_chain_counts(SUPER, decode_chain(windows))
    paper = replay_decode_counts(SUPER, windows)
    assert exact.bytes_read == pytest.approx(paper.bytes_read, rel=1e-12)
    assert exact.bytes_write == pytest.approx(paper.bytes_write, rel=1e-12)


def test_exact_verify_by_hand() -> None:
    # L = 16, T = 4, a = 3: reads 45 records in 5 steps, writes 4 a step, one state a cycle.
    state, record = 4 * 64 * 128, record_bytes(SUPER)
    counts = replay_chain_counts(SUPER, verify_chain(16, 4, acceptance_pmf("3", 4)))
    assert counts.bytes_read == pytest.approx([state + 9 * record])
    assert counts.bytes_write == pytest.approx([state / 5 + 4 * record])
    # Eq. 15 takes 16/3 steps, starts at h = 0 and writes nothing at the flush: it is below the exact count.
    assert counts.total[0] / 3 > traffic_per_token(SUPER, 16, 4, 3)


def test_best_windows() -> None:
    windows = np.arange(1, 200)
    pmf = acceptance_pmf("3.5", 4)
    assert best_window(paper_cost(SUPER), windows) == 13  # Eq. 16: 12.92
    assert best_window(chain_cost(SUPER, 1, np.ones(1)), windows) == 13  # decode: the chain is Eq. 13's cycle
    assert best_window(paper_cost(SUPER, 4, 3.5), windows) == 24  # Eq. 16: 23.73
    exact = chain_cost(SUPER, 4, pmf)
    costs = [float(exact(np.array([w]))[0]) for w in range(4, 80)]
    best = best_window(exact, windows[3:])
    assert best == 4 + int(np.argmin(costs))
    assert off_cost(exact, best, windows[3:]) == 0
    assert 0 < off_cost(exact, 8, windows[3:]) < 0.2
    assert off_cost(exact, 24, windows[3:]) < 0.01


def test_best_window_takes_the_smallest_of_equals_and_skips_the_impossible() -> None:
    assert best_window(lambda w: np.where(w < 3, np.nan, (w - 5.5) ** 2), [9, 6, 5, 1, 2]) == 5
    with pytest.raises(InputError, match="no window"):
        best_window(lambda w: w * np.nan, [1, 2])
    with pytest.raises(InputError, match="no window"):
        best_window(lambda w: w * 1.0, [])


def test_without_a_window_the_step_before_is_all_there_is() -> None:
    chain = committed_chain(acceptance_pmf("p:.88,.62,.40", 4))
    assert chain.h.tolist() == [1, 2, 3, 4]
    assert chain.probability == pytest.approx([0.12, 0.26, 0.22, 0.40])
    assert not chain.flush.any() and chain.accepted == pytest.approx(2.9)
    assert chain.mean(chain.h) == pytest.approx([2.9])
    # A step whose cost is not linear in a costs its mean, not what it costs at the mean: fused recovery skips a = T.
    assert chain.mean(np.where(chain.h == 4, 0, chain.h)) == pytest.approx([0.12 + 2 * 0.26 + 3 * 0.22])
    constant = committed_chain(acceptance_pmf("3", 4))
    assert (constant.h.tolist(), constant.probability.tolist()) == ([3], [1.0])
    with pytest.raises(InputError, match="sum to 1"):
        committed_chain(np.array([0.5, 0.6]))


@pytest.mark.parametrize("rates", [".83,.8,.3", ".9,.42,.18", "1,1,1", ".88,.62,.40", ".7,.7,.7"])
def test_a_window_of_t_flushes_at_exactly_every_step(rates: str) -> None:
    pmf = acceptance_pmf(f"p:{rates}", 4)
    assert verify_chain([4, 4], 4, pmf).flush_rate.tolist() == [1.0, 1.0]
    assert verify_chain([4, 9], 4, pmf).flush_rate[1] < 1
    assert committed_chain(pmf).flush_rate.tolist() == [0.0]
    assert decode_chain([1, 4]).flush_rate.tolist() == [1.0, 0.25]
