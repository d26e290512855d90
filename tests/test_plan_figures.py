"""Figures of a plan: they draw their frames, their titles say what is drawn, and odd frames do no harm."""

from __future__ import annotations

import io
import re

import pandas as pd
import plotly.graph_objects as go
import pytest

from perfkit.reports import figures, theme
from perfkit.reports.points import points_csv
from tests.figuredata import title, traces
from tests.plandata import made


def line(figure: go.Figure, name: str) -> go.Scatter:
    (trace,) = [one for one in figure.data if one.name == f"{name}, predicted"]
    return trace


def choice(data: pd.DataFrame) -> str:
    """Name what the plan chooses as figures do: which window that is depends on the fits that ship."""
    row = data[data["chosen"]].iloc[0]
    return f"{row['method']} at T = {row['draft_len']:.0f}, L = {row['window']:.0f}"


def thousands(value: float) -> str:
    return f"{value / 1e3:.1f}k"


def test_the_front_is_that_of_the_frame() -> None:
    data = made().front
    figure = figures.plan_front(data)
    for state, front in zip(("float32", "float16"), traces(figure, front=True), strict=True):
        best = data[data["on_front"] & data["state_dtype"].eq(state)].sort_values("user_tokens_per_s")
        assert (list(front.x), list(front.y)) == (list(best["user_tokens_per_s"]), list(best["tokens_per_s"]))
    rows = data.query("method == 'replay' and draft_len == 4 and state_dtype == 'float32'").sort_values("batch")
    assert list(line(figure, "replay at T = 4, FP32 state").y) == list(rows["tokens_per_s"])
    assert line(figure, "conventional decode, FP32 state").opacity < 1  # never on the front
    labels = [note.text for note in figure.layout.annotations]
    best = data[data["on_front"] & data["state_dtype"].eq("float32")]
    assert sorted(labels) == sorted(f"{batch:,}" for batch in best["batch"])
    (answer,) = data[data["chosen"]].itertuples()
    mark = line(figure, "the answer, B = 256")
    assert (list(mark.x), list(mark.y)) == ([answer.user_tokens_per_s], [answer.tokens_per_s])


def test_capacity_is_that_of_the_frame_with_its_band() -> None:
    data = made().capacity
    figure = figures.plan_capacity(data)
    rows = data[data["chosen"]].sort_values("concurrency")
    name = choice(data)
    drawn = line(figure, name)
    assert (list(drawn.x), list(drawn.y)) == (list(rows["concurrency"]), list(rows["tokens_per_s"]))
    (band,) = [one for one in figure.data if one.name == "band" and one.legendgroup == drawn.legendgroup]
    assert list(band.y) == [*rows["tokens_per_s_hi"], *rows["tokens_per_s_lo"][::-1]]
    running = line(figure, f"{name}, running")
    assert (running.yaxis, list(running.y)) == ("y2", list(rows["runs"]))
    waves = line(figure, f"{name}, in waves")
    assert list(waves.y) == list(rows.loc[rows["waves"].gt(1), "together_tokens_per_s"])
    best = data.drop_duplicates(["method", "draft_len"]).drop_duplicates("method")
    assert [note.text for note in figure.layout.annotations if note.name == "end-label"] == [
        f"{fits:,} fit" for fits in sorted(best["fits"])
    ]
    saved = pd.read_csv(io.StringIO(points_csv(figure)))
    saved = saved[saved["series"].eq(name)]
    assert saved["low"].tolist() == pytest.approx(rows["tokens_per_s_lo"].tolist())


def test_terms_over_the_context_are_of_a_committed_token() -> None:
    data = made().context
    figure = figures.plan_context(data)
    for method, name in (("conventional", "conventional decode"), ("replay", choice(data))):
        rows = data[data["method"].eq(method)]
        each = rows["accepted"]
        rest = rows[[f"term_{term}_ms" for term in ("weights", "draft", "rows", "fixed", "comm")]].sum(axis=1)
        for part, values in (("state", rows["term_ssm_ms"]), ("attention", rows["term_kv_ms"]), ("all else", rest)):
            assert list(line(figure, f"{name}, {part}").y) == pytest.approx(list(values / each))
    marked = sorted(shape.x0 for shape in figure.layout.shapes)
    assert marked == pytest.approx(sorted(set(data["crossover_tokens"])))


def test_titles_say_what_the_frames_hold() -> None:
    frames = made()
    front = frames.front[frames.front["on_front"] & frames.front["state_dtype"].eq("float32")]
    (answer,) = frames.front[frames.front["chosen"]].itertuples()
    alone, most = front.loc[front["user_tokens_per_s"].idxmax()], front.loc[front["tokens_per_s"].idxmax()]
    assert title(figures.plan_front(frames.front)) == (
        f"{alone.batch} request alone gets {alone.user_tokens_per_s:.0f} tokens/s ({alone.method} at "
        f"T = {alone.draft_len}), {most.batch} together {thousands(most.tokens_per_s)} ({most.method} at "
        f"T = {most.draft_len}); the answer, {thousands(answer.tokens_per_s)} of 256, is on the front (predicted)"
    )
    name = choice(frames.capacity)
    fits = frames.capacity.drop_duplicates("method").set_index("method")["fits"]
    assert title(figures.plan_capacity(frames.capacity)) == (
        f"Requests of 8,192 tokens that fit: {fits['replay']} with {name}, {fits['snapshot']} with snapshot at T = 3 "
        f"and {fits['conventional']} with conventional decode; no request waits of the 256 asked for (predicted)"
    )
    said = title(figures.plan_context(frames.context))
    at = frames.context[frames.context["asked"]].set_index("method")
    terms = [f"term_{term}_ms" for term in ("ssm", "weights", "kv", "draft", "rows", "fixed", "comm")]
    shares = at["term_ssm_ms"] / at[terms].sum(axis=1)
    assert said.startswith(
        f"At 8,192 tokens the state takes {shares['conventional']:.0%} of the step with conventional decode and "
        f"{shares['replay']:.0%} with {name}; attention takes as long from ".replace("%", " %")
    )
    assert said.endswith(" tokens on (predicted)")


def test_titles_change_with_the_data() -> None:
    front = made().front.assign(tokens_per_s=lambda data: 2 * data["tokens_per_s"])
    (answer,) = front[front["chosen"]].itertuples()
    assert f"{thousands(answer.tokens_per_s)} of 256" in title(figures.plan_front(front))
    assert "is behind the front" in title(figures.plan_front(front.assign(on_front=~front["chosen"])))
    capacity = made().capacity
    few = capacity.assign(fits=200, waits=lambda data: (data["concurrency"] - 200).clip(lower=0))
    assert f"of 256, 56 wait with {choice(capacity)}, 56 wait with" in title(figures.plan_capacity(few))
    context = made().context
    assert "attention takes less at up to 262,144 tokens" in title(
        figures.plan_context(context.assign(crossover_tokens=5e5))
    )
    far = context["crossover_tokens"].where(context["method"].eq("replay"), 5e5)
    assert "as long from more than 262,144 and " in title(figures.plan_context(context.assign(crossover_tokens=far)))
    assert "there is no attention" in title(figures.plan_context(context.assign(crossover_tokens=None)))
    slow = context.assign(term_ssm_ms=lambda data: 10 * data["term_ssm_ms"])
    assert "the state takes 91 % of the step with conventional decode" in title(figures.plan_context(slow))


def odd(kind: str, name: str) -> pd.DataFrame:
    data = getattr(made(), name)
    return {
        "none": lambda: pd.DataFrame(),
        "columns": lambda: pd.DataFrame({"method": ["replay", None], "batch": [1, 2], "tokens_per_s": [3.0, None]}),
        "nan": lambda: data.assign(window=None, draft_len=float("nan"), state_dtype=None, model=None),
        "no ends": lambda: data.drop(columns=[column for column in data if "_lo" in column or "_hi" in column]),
        "no flags": lambda: data.drop(columns=["asked", "chosen", "on_front"], errors="ignore"),
        "one": lambda: data.head(1),
        "hostile": lambda: data.assign(method="<script>alert(1)</script>", model="<b onmouseover=x>", gpu="$(reboot)"),
        "zeros": lambda: data.assign(tokens_per_s=0.0, term_ssm_ms=0.0, fits=-1),
        "infinite": lambda: data.assign(tokens_per_s=float("inf"), crossover_tokens=float("inf")),
    }[kind]()


@pytest.mark.parametrize(
    "kind", ["none", "columns", "nan", "no ends", "no flags", "one", "hostile", "zeros", "infinite"]
)
def test_odd_frames_do_no_harm(kind: str) -> None:
    for name, build in figures.PLAN_FIGURES:
        figure = build(odd(kind, name.removeprefix("plan-")))
        words = figure.layout.meta
        assert words["title"] and words["caption"].startswith("How to read it"), name
        text = figure.to_json()
        assert not re.search(r"\bnan\b|\bNone\b|\binf\b|<NA>|<script|<b onmouse", text, re.IGNORECASE), name
        assert figure.data or words["add"].startswith("perfkit plan --model "), name
        used = set(re.findall(r'"(#[0-9a-fA-F]{6}|rgba\([^)]*\))"', text))
        assert used - set(theme.dark_twins()) - {"rgba(0,0,0,0)"} == set(), name


def test_every_figure_of_a_plan_has_an_example() -> None:
    for name, build in figures.PLAN_FIGURES:
        assert f"figures.{name.replace('-', '_')}(" in (build.__doc__ or "")
        assert build.__name__ in figures.__all__
