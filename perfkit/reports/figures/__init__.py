"""The figures of a report: each function takes a DataFrame of results and returns a ``plotly.graph_objects.Figure``.

The frame may be a whole run (:func:`perfkit.results.load_run`) or any part of it; labels name what differs between its
rows. A figure's title and caption are computed from the rows; ``figure.layout.meta`` holds both as plain text.

>>> from perfkit.reports import figures
>>> from perfkit.results import load_run
>>> figures.batch_speedup(load_run("runs/my-run")).show()  # doctest: +SKIP
"""

from __future__ import annotations

from perfkit.reports.figures.batch_roof import batch_roof
from perfkit.reports.figures.batch_speedup import batch_speedup
from perfkit.reports.figures.batch_time import batch_time
from perfkit.reports.figures.roofline import roofline
from perfkit.reports.figures.window_sweep import window_sweep

__all__ = ["batch_roof", "batch_speedup", "batch_time", "roofline", "window_sweep"]
