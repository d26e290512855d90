"""Breakdown of a plan by context: where keys and values overtake the state. Source: paper, Figure 1, bottom left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfkit.reports.figures import base
from perfkit.reports.figures.plan_rows import add_line, add_upright, choices, command, headroom, named, typed
from perfkit.reports.figures.rows import present
from perfkit.reports.text import count, integer, interval, is_missing, join, number, percent

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

#: What is drawn of a step: its name, the terms that it sums, and its line.
PARTS = (
    ("state", ("ssm",), "solid"),
    ("attention", ("kv",), "dash"),
    ("all else", ("weights", "draft", "rows", "fixed", "comm"), "dot"),
)
_TERMS = tuple(f"term_{name}_ms" for _, names, _ in PARTS for name in names)
_ENDS = tuple(f"term_{name}_{end}_ms" for name in ("ssm", "kv") for end in ("lo", "hi"))


def plan_context(frame: pd.DataFrame) -> go.Figure:
    """Draw what a committed token takes in state-space layers, attention and all else, of a plan's frame ``context``.

    >>> from perfkit import plan
    >>> from perfkit.profiles import load_gpu, load_model
    >>> from perfkit.reports import figures
    >>> from perfkit.roofline import roofs_for
    >>> gpu = load_gpu("b300")
    >>> question = plan.make_question(load_model("nemotron-super"), gpu, roofs_for(gpu), concurrency=256)
    >>> figures.plan_context(plan.frames(plan.answer(question)).context).show()  # doctest: +SKIP
    """
    data = _shared(typed(frame, ("context",), (*_TERMS, *_ENDS, "batch", "accepted", "crossover_tokens")))
    lines = [part.drop_duplicates("context").sort_values("context") for part in choices(data)]
    caption = (
        "How to read it: each colour is a method; solid is the time of its state-space layers, dashed of attention "
        "over keys and values, dotted of weights and all else, each over the tokens that a step commits of a request, "
        "so that steps of different T compare. Where dashed crosses solid, attention takes as long as the state: "
        "upright lines mark it. Where two lines are the same, one covers the other."
        f"{_batches(lines)} Lines are predicted"
        f"{', with a band for kernels and roofs' if present(data, 'state_lo') else ''}."
    )
    figure = base.new_figure(_title(lines), caption)
    values = [value for part, *_ in PARTS for value in present(data, part, f"{part}_lo", f"{part}_hi") if value > 0]
    if not values:
        return base.empty(figure, "a plan says what a step is made of", command(frame))
    for rows in lines:
        for part, _, dash in PARTS:
            known = rows[rows[part].gt(0)]
            if len(known):
                hover = [_hover(row, part) for row in known.to_dict("records")]
                add_line(figure, known, "context", part, name=f"{named(rows.iloc[0])}, {part}", hover=hover, dash=dash,
                         ends=(f"{part}_lo", f"{part}_hi"))  # fmt: skip
    contexts = sorted(set(data["context"]))
    base.batch_axis(figure, contexts)
    figure.update_xaxes(title={"text": "context (tokens)"})
    figure.update_yaxes(**base.log_axis(min(values), headroom(min(values), max(values))),
                        title={"text": "time per committed token of a request (ms)"})  # fmt: skip
    marks = [(float(rows["crossover_tokens"].iloc[0]), str(rows["method"].iloc[0])) for rows in lines]
    inside = sorted((x, method) for x, method in marks if contexts[0] <= x <= contexts[-1])
    # Names stand where there is room, and the line that they would cross is the lower one.
    left = bool(inside) and inside[0][0] * inside[-1][0] > contexts[0] * contexts[-1]
    for i, (x, method) in enumerate(reversed(inside) if left else inside):
        add_upright(figure, x, f"{method}: {tokens(x)} tokens", 1 - 0.075 * i, left=left)
    return base.finish(figure)


def _shared(data: pd.DataFrame) -> pd.DataFrame:
    """Add the parts of :data:`PARTS` over the tokens that a step commits, with the ends that are known."""
    each = data["accepted"].where(data["accepted"].gt(0), 1.0)
    for part, names, _ in PARTS:
        data[part] = data[[f"term_{name}_ms" for name in names]].sum(axis=1, min_count=1) / each
        for end in ("lo", "hi"):
            ends = f"term_{names[0]}_{end}_ms"
            data[f"{part}_{end}"] = data[ends] / each if ends in _ENDS else float("nan")
    return data


def tokens(value: float) -> str:
    """Write a context as a plan does, to a thousand or a hundred tokens."""
    return f"{round(value, -3 if value >= 10_000 else -2):,.0f}"


def _batches(lines: list[pd.DataFrame]) -> str:
    """Say at how many requests the lines are."""
    found = list(dict.fromkeys(round(rows["batch"].iloc[0]) for rows in lines if rows["batch"].iloc[0] > 0))
    if not found:
        return ""
    what = count(found[0], "request") if len(found) == 1 else f"{join(map(integer, found))} requests"
    return f" The step is of {what} at every context; of long ones fewer may fit."


def _hover(row: dict[Any, Any], part: str) -> str:
    share = row[part] / sum(row[name] for name, *_ in PARTS if row[name] > 0)
    ends = interval(row[f"{part}_lo"], row[f"{part}_hi"])
    return f"{integer(row['context'])} tokens<br>{number(row[part])} ms {ends}<br>{percent(share, 0)} of the step"


def _title(lines: list[pd.DataFrame]) -> str:
    """Say what share of a step the state has at the context asked for, and where attention overtakes it."""
    shares: list[str] = []
    crossings = []
    where = None
    for rows in lines:
        asked = rows[rows["asked"]]
        row = (asked if len(asked) else rows).iloc[0]
        whole = sum(row[part] for part, *_ in PARTS if row[part] > 0)
        if row["state"] > 0:
            where = row["context"]
            shares.append(f"{percent(row['state'] / whole, 0)}{'' if shares else ' of the step'} with {named(row)}")
            crossings.append(row["crossover_tokens"])
    if not shares:
        return "Nothing says what a step is made of"
    said = f"At {integer(where)} tokens the state takes {join(shares)}"
    known = [value for value in crossings if not is_missing(value)]
    if not known:
        return f"{said}; there is no attention (predicted)"
    longest = max(rows["context"].max() for rows in lines)
    if min(known) > longest:
        return f"{said}; attention takes less at up to {integer(longest)} tokens (predicted)"
    since = join(tokens(value) if value <= longest else f"more than {integer(longest)}" for value in known)
    return f"{said}; attention takes as long from {since} tokens on (predicted)"
