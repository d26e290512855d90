"""The figures of a report: each function takes a DataFrame of results and returns a ``plotly.graph_objects.Figure``.

The frame may be a whole run (:func:`perfkit.results.load_run`) or any part of it; labels name what differs between its
rows. A figure's title and caption are computed from the rows; ``figure.layout.meta`` holds both as plain text. A figure
that finds nothing to draw has no data, its title says what is missing, and ``layout.meta["add"]`` is the command that
adds it, None where no command would.

>>> from perfkit.reports import figures
>>> from perfkit.results import load_run
>>> figures.batch_speedup(load_run("runs/my-run")).show()  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from perfkit.reports.figures.batch_roof import batch_roof
from perfkit.reports.figures.batch_speedup import batch_speedup
from perfkit.reports.figures.batch_time import batch_time
from perfkit.reports.figures.model_error import model_error
from perfkit.reports.figures.paper_table import paper_table
from perfkit.reports.figures.plan_capacity import plan_capacity
from perfkit.reports.figures.plan_context import plan_context
from perfkit.reports.figures.plan_front import plan_front
from perfkit.reports.figures.precision import precision
from perfkit.reports.figures.roofline import roofline
from perfkit.reports.figures.tail_latency import tail_latency
from perfkit.reports.figures.traffic_bars import traffic_bars
from perfkit.reports.figures.verify_bands import verify_bands
from perfkit.reports.figures.window_sweep import window_sweep

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

#: Every figure in the order of a page: its name there, and its function.
FIGURES: tuple[tuple[str, Callable[[pd.DataFrame], go.Figure]], ...] = (
    ("batch-time", batch_time),
    ("batch-speedup", batch_speedup),
    ("batch-roof", batch_roof),
    ("window-sweep", window_sweep),
    ("roofline", roofline),
    ("verify-bands", verify_bands),
    ("traffic-bars", traffic_bars),
    ("tail-latency", tail_latency),
    ("precision", precision),
    ("model-error", model_error),
    ("paper-table", paper_table),
)
#: Figures of a plan in the order of its page; each takes the frame of its name (:class:`perfkit.plan.Frames`).
PLAN_FIGURES: tuple[tuple[str, Callable[[pd.DataFrame], go.Figure]], ...] = (
    ("plan-front", plan_front),
    ("plan-capacity", plan_capacity),
    ("plan-context", plan_context),
)
#: Figures that set workloads of one model and GPU beside each other, so they need the rows of all of them at once.
ACROSS_WORKLOADS = frozenset({"verify-bands", "tail-latency", "precision", "model-error", "paper-table"})

__all__ = [
    "ACROSS_WORKLOADS",
    "FIGURES",
    "PLAN_FIGURES",
    "batch_roof",
    "batch_speedup",
    "batch_time",
    "model_error",
    "paper_table",
    "plan_capacity",
    "plan_context",
    "plan_front",
    "precision",
    "roofline",
    "tail_latency",
    "traffic_bars",
    "verify_bands",
    "window_sweep",
]
