"""Every figure of every odd frame: it never crashes, says what it lacks, and its words and colours are fit to show."""

from __future__ import annotations

import re

import pandas as pd
import plotly.graph_objects as go
import pytest

from perfkit.reports import figures, select, theme
from tests.figuredata import recorded
from tests.reportdata import frame, rows

NEW = figures.FIGURES[5:]


def odd(kind: str) -> pd.DataFrame:
    if kind == "columns":  # as little as a row can be
        return pd.DataFrame({"method": ["replay", "conventional"], "batch": [1, 1], "time_us": [3.0, None]})
    if kind == "none":
        return pd.DataFrame()
    if kind == "nan":
        return pd.DataFrame(rows(batches=(64,))).assign(time_us_lo=None, window=float("nan"), roof_gb_s=float("nan"))
    if kind == "gpus":
        data = recorded().query(
            "draft_len in (1, 8) and batch == 256 and method in ('conventional', 'snapshot', 'replay')"
        )
        return pd.concat([data, data.assign(gpu="b200")], ignore_index=True)
    return frame(kind)


@pytest.mark.parametrize("kind", ["columns", "none", "nan", "gpus", "mixed", "failed", "hostile"])
def test_odd_frames_do_no_harm(kind: str) -> None:
    data = select.prepare(odd(kind))
    for name, build in NEW:
        figure = build(data)
        assert isinstance(figure, go.Figure), name
        words = figure.layout.meta
        assert words["title"] and words["caption"].startswith("How to read it"), name
        text = figure.to_json()
        assert not re.search(r"\bnan\b|\bNone\b|<NA>|<script|<b onmouse", text, re.IGNORECASE), name
        if figure.data:
            assert figure.layout.xaxis.title.text and figure.layout.yaxis.title.text, name
        else:
            assert len(figure.layout.annotations) == 1, name
            assert name == "paper-table" or words["add"].startswith("perfkit "), name
        used = set(re.findall(r'"(#[0-9a-fA-F]{6}|rgba\([^)]*\))"', text))
        assert used - set(theme.dark_twins()) - {"rgba(0,0,0,0)"} == set(), name


def test_thousands_of_rows_take_seconds() -> None:
    some = recorded().query("draft_len in (1, 8) and method in ('conventional', 'snapshot', 'replay')")
    many = some.loc[some.index.repeat(5001 // len(some) + 1)].reset_index(drop=True)
    many["case_id"], many["batch"] = many.index.astype(str), 1.0 + many.index % 500
    assert len(many) > 5000
    for name, build in NEW:
        assert len(build(many).data) < 200, name
