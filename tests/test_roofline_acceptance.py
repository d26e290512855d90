"""Acceptance as users and engines write it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import InputError
from perfkit.roofline.acceptance import (
    acceptance_list,
    acceptance_pmf,
    acceptance_probability,
    independent_pmf,
    mean_accepted,
    resolve_acceptance,
    resolve_acceptances,
    short_acceptance,
)


def test_constant() -> None:
    assert acceptance_pmf("3", 4).tolist() == [0, 0, 1, 0]
    assert acceptance_pmf("T", 4).tolist() == [0, 0, 0, 1]
    assert acceptance_pmf("1", 1).tolist() == [1]
    assert acceptance_pmf(" T ", 1).tolist() == [1]


def test_mean_by_hand() -> None:
    # T = 3, p = 1/2: P = 1/2, 1/4, 1/4; the mean is 1.75.
    assert acceptance_pmf("mean:1.75", 3) == pytest.approx([0.5, 0.25, 0.25], abs=1e-12)
    assert acceptance_pmf("1.75", 3) == pytest.approx([0.5, 0.25, 0.25], abs=1e-12)
    assert mean_accepted("mean:2", 3) == pytest.approx(2, abs=1e-12)


def test_a_decimal_is_a_mean_and_a_whole_number_is_not() -> None:
    assert acceptance_pmf("2", 3).tolist() == [0, 1, 0]
    assert np.all(acceptance_pmf("2.0", 3) > 0)


def test_mean_at_its_ends() -> None:
    assert acceptance_pmf("mean:1", 4).tolist() == [1, 0, 0, 0]
    assert acceptance_pmf("mean:4", 4).tolist() == [0, 0, 0, 1]
    assert acceptance_pmf("1.0", 1).tolist() == [1]


def test_rates_of_an_engine() -> None:
    pmf = acceptance_pmf("p:.88,.62,.40", 4)
    assert pmf == pytest.approx([0.12, 0.26, 0.22, 0.40], abs=1e-12)
    assert mean_accepted("p:.88,.62,.40", 4) == pytest.approx(1 + 0.88 + 0.62 + 0.40, abs=1e-12)
    assert acceptance_pmf("p:1,1,1", 4).tolist() == [0, 0, 0, 1]
    assert acceptance_pmf("p:0,0", 3).tolist() == [1, 0, 0]
    assert acceptance_pmf("p:", 1).tolist() == [1]


@pytest.mark.parametrize(
    ("text", "draft_len", "says"),
    [
        ("0", 4, "1..4"),
        ("5", 4, "1..4"),
        ("-1", 4, "1..4"),
        ("2", 1, "1..1"),
        ("4.5", 4, "1..4"),
        ("0.5", 4, "1..4"),
        ("mean:9", 4, "1..4"),
        ("mean:nan", 4, "not an acceptance"),
        ("mean:", 4, "not an acceptance"),
        ("inf", 4, "not an acceptance"),
        ("", 4, "not an acceptance"),
        ("t", 4, "not an acceptance"),
        ("1e0", 4, "not an acceptance"),
        ("p:.9,.8", 4, "2 rates"),
        ("p:.9,.8,.7,.6", 4, "4 rates"),
        ("p:.8,.9,.7", 4, "must not increase"),
        ("p:1.2,.9,.7", 4, "between 0 and 1"),
        ("p:.9,x,.7", 4, "not an acceptance"),
        ("p:.9,,.7", 3, "not an acceptance"),
        ("p:.9,.8,", 3, "not an acceptance"),
        ("T", 0, "at least 1"),
    ],
)
def test_bad_acceptance_is_one_line(text: str, draft_len: int, says: str) -> None:
    with pytest.raises(InputError, match=r".") as caught:
        acceptance_pmf(text, draft_len)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.integers(1, 16), st.data())
def test_independent_has_the_mean_it_was_asked_for(draft_len: int, data: st.DataObject) -> None:
    mean = data.draw(st.floats(1, draft_len))
    pmf = independent_pmf(mean, draft_len)
    assert pmf.sum() == pytest.approx(1, abs=1e-12)
    assert np.all(pmf >= 0)
    assert pmf @ np.arange(1, draft_len + 1) == pytest.approx(mean, abs=1e-9)
    assert 0 <= acceptance_probability(mean, draft_len) <= 1


@given(st.lists(st.floats(0, 1), max_size=8))
def test_rates_survive_the_round_trip(rates: list[float]) -> None:
    rates = sorted((round(rate, 6) for rate in rates), reverse=True)
    pmf = acceptance_pmf("p:" + ",".join(f"{rate:.6f}" for rate in rates), len(rates) + 1)
    survival = pmf[::-1].cumsum()[::-1][1:]
    assert survival == pytest.approx(rates, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("1,T-1,T", ("1", "T-1", "T")),
        (" 2 , mean:3.5, 1.75,2", ("2", "mean:3.5", "1.75")),
        ("p:.88,.62,.40", ("p:.88,.62,.40",)),
        ("p:.88,.62,.40;T; 1", ("p:.88,.62,.40", "T", "1")),
        ("1;T", ("1", "T")),
    ],
)
def test_a_list_of_acceptances(text: str, items: tuple[str, ...]) -> None:
    assert acceptance_list(text) == items


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "''"), ("1,,T", "''"), ("1,T-2", "'T-2'"), ("T,p:.88", "'T,p:.88'"), ("p:.5,.6", "must not increase"),
     ("p:.5;mean:x", "'mean:x'"), ("1,-1", "'-1'")],
)  # fmt: skip
def test_a_list_names_the_item_that_is_none(text: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        acceptance_list(text)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_what_is_the_same_at_a_draft_length_has_one_name() -> None:
    assert [resolve_acceptances(("1", "T-1", "T"), t) for t in (2, 3, 4)] == [
        ("1", "T"), ("1", "2", "T"), ("1", "3", "T")]  # fmt: skip
    assert resolve_acceptances(("4", "T", "mean:4", "4.0"), 4) == ("T",)
    assert [resolve_acceptance(text, 4) for text in ("3.50", "mean:3.5", "03", "p:1,1,1", "T-1")] == [
        "mean:3.5", "mean:3.5", "3", "p:1,1,1", "3"]  # fmt: skip
    assert resolve_acceptance("1", 1) == "1"


def test_rates_are_of_the_draft_length_that_has_as_many() -> None:
    both = ("p:.9,.8,.7", "p:.9", "T")
    assert [resolve_acceptances(both, t) for t in (2, 3, 4)] == [("p:.9", "T"), ("T",), ("p:.9,.8,.7", "T")]
    with pytest.raises(InputError, match="3 rates, but T = 3 has 2 drafts"):
        resolve_acceptances(("p:.9,.8,.7",), 3)
    with pytest.raises(InputError, match="none is for T = 8"):
        resolve_acceptances(("p:.9,.8,.7", "p:.9"), 8)
    with pytest.raises(InputError, match=r"'?3'?.*1\.\.2"):
        resolve_acceptances(("1", "3"), 2)


def test_short_names() -> None:
    assert [short_acceptance(text) for text in ("1", "T", "mean:3.5", "p:.88,.62,.40")] == ["a1", "aT", "a3.5", "a2.9p"]
