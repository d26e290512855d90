"""Shipped rows as a frame, and what figures are looked at for in tests."""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from perfkit.profiles import load_measured
from perfkit.reports import select

MODEL = "nemotron-3-super-120b-a12b"


@cache
def recorded() -> pd.DataFrame:
    """The shipped rows of one model, as a run without its GPU shows them, prepared once."""
    plain = [{k: v for k, v in row.items() if k != "manifest"} | {"source": "recorded"} for row in load_measured(MODEL)]
    return select.prepare(pd.DataFrame(plain))


def raw(data: pd.DataFrame, **changes: Any) -> pd.DataFrame:
    """Prepared rows as they were before, with some columns replaced."""
    return data.drop(columns=["us", "us_lo", "us_hi", "model_us", "model_lo", "model_hi", "gain", "gain_lo", "gain_hi",
                              "model_gain", "model_gain_lo", "model_gain_hi"]).assign(**changes)  # fmt: skip


def traces(figure: go.Figure, **meta: Any) -> list[Any]:
    """The traces whose meta says all of this."""
    return [t for t in figure.data if isinstance(t.meta, dict) and all(t.meta.get(k) == v for k, v in meta.items())]


def title(figure: go.Figure) -> str:
    """The title in plain text."""
    return str(figure.layout.meta["title"])
