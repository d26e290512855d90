"""A plan as frames: they hold what the plan says, over loads and contexts too."""

from __future__ import annotations

import pytest

from perfkit.plan import breakdown, frames
from perfkit.roofline import TERMS
from tests.plandata import found, made


def test_rows_are_those_of_the_table() -> None:
    assert list(made().rows["tokens_per_s"]) == [row.tokens_per_s for row in found().table.rows()]
    assert list(made().rows["chosen"]) == [row == found().chosen for row in found().table.rows()]
    for frame in (made().rows, made().front, made().capacity, made().context):
        assert set(frame["source"]) == {"predicted"} and set(frame["gpu"]) == {"b300"}


def test_no_point_of_its_precision_beats_one_on_the_front() -> None:
    for _, part in made().front.groupby("state_dtype"):
        for point in part.itertuples():
            beaten = part[part["tokens_per_s"].gt(point.tokens_per_s)
                          & part["user_tokens_per_s"].gt(point.user_tokens_per_s)]  # fmt: skip
            assert not point.on_front or beaten.empty
        assert part["on_front"].any()
    (chosen,) = made().front[made().front["chosen"]].itertuples()
    assert chosen.tokens_per_s == pytest.approx(found().chosen.tokens_per_s)
    assert (chosen.batch, chosen.state_dtype) == (found().chosen.runs, "float32")


def test_capacity_at_the_load_asked_for_is_the_table() -> None:
    here = made().capacity[made().capacity["asked"]]
    for name in ("tokens_per_s", "tokens_per_s_lo", "together_tokens_per_s", "fits", "runs", "waves"):
        assert here[name].tolist() == made().rows[name].tolist(), name
    over = made().capacity
    assert (over["runs"] == over[["concurrency", "fits"]].min(axis=1)).all()
    assert (over["waits"] == over["concurrency"] - over["runs"]).all()
    assert (over["waves"] == -(-over["concurrency"] // over["fits"])).all()
    assert (over.groupby(["method", "draft_len"])["waves"].max() > 1).all()  # each line goes past what fits


def test_terms_over_the_context_are_those_of_the_step() -> None:
    plain = breakdown(found())
    assert plain is not None
    drawn = made().context[made().context["method"].eq("conventional")].set_index("context")
    for context, step in plain.steps.items():
        for name in TERMS:
            assert drawn.loc[context, f"term_{name}_ms"] == pytest.approx(step[name]), (context, name)
    assert drawn["crossover_tokens"].iloc[0] == pytest.approx(plain.crossover)
    (chosen,) = made().context[made().context["chosen"] & made().context["asked"]].to_dict("records")
    for name in TERMS:
        assert chosen[f"term_{name}_ms"] == pytest.approx(found().chosen.terms[name])
    assert chosen["term_ssm_lo_ms"] < chosen["term_ssm_ms"] < chosen["term_ssm_hi_ms"]
    longest = made().context.groupby("method")["context"].max()
    assert set(longest) == {262144}


def test_the_best_of_the_others_stands_beside_a_conventional_answer() -> None:
    few = found("kimi-linear", "h200-sxm", None, concurrency=8)
    data = frames(few).context
    assert few.chosen.method == "conventional"
    assert data.drop_duplicates("method")[["method", "chosen"]].values.tolist() == [
        ["conventional", True], ["replay", False]
    ]  # fmt: skip


def test_the_answer_is_on_the_front_of_its_precision_where_requests_wait() -> None:
    said = found("nemotron-super", "h200-sxm", ".9,.8", concurrency=2000)
    assert said.chosen.waves > 1
    (chosen,) = frames(said).front.query("chosen").to_dict("records")
    assert (chosen["batch"], chosen["window"]) == (said.chosen.runs, said.chosen.window)
    assert chosen["tokens_per_s"] == said.chosen.tokens_per_s
    limited = found("nemotron-nano", "h100-sxm", None, sla_ms=3.0)
    assert limited.verdict == "over the limit" and frames(limited).front.empty
