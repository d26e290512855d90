"""The table of all rows: data for the page's own script, which sorts, filters, pages and saves it as CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfkit.reports.text import is_missing

if TYPE_CHECKING:
    import pandas as pd

#: Shown at first; a box shows the others. Columns that no row fills are left out of this view, not of the CSV.
MAIN_COLUMNS = (
    "run", "model", "gpu", "method", "batch", "window", "draft_len", "acceptance", "state_dtype", "source", "status",
    "reason", "time_us", "time_us_lo", "time_us_hi", "speedup", "roof_fraction", "limit", "predicted_us",
    "prediction_error", "bytes_read_dram", "bytes_write_dram", "n_samples", "n_throttled", "checked", "launch_config",
)  # fmt: skip
#: Each gets a menu of its values beside the search field.
MENUS = ("model", "gpu", "method", "source", "status")


def table_data(frame: pd.DataFrame, shown: Sequence[str] = MAIN_COLUMNS) -> dict[str, Any]:
    """Return the table as JSON data: every column of the frame, every row, values as stored; ``shown`` at first.

    Keys: ``columns`` (names), ``main``, ``menus`` and ``numeric`` (indices of the columns shown at first, with a menu,
    of numbers), ``data`` (one list per column; one value stands for a column that is the same in all rows) and ``rows``
    (their number).
    """
    import pandas as pd

    names = [str(name) for name in frame.columns]
    data = [[_plain(value) for value in frame[name].tolist()] for name in frame.columns]
    filled = [any(value is not None for value in column) for column in data]
    numeric = [pd.api.types.is_numeric_dtype(frame[name]) and not pd.api.types.is_bool_dtype(frame[name])
               for name in frame.columns]  # fmt: skip
    several = [len(set(column)) > 1 for column in data]
    # What is the same in every row stands in the header already.
    always = {"method", "batch", "source", "status", "time_us", "speedup"}
    main = []
    for name in shown:
        i = names.index(name) if name in names else -1
        if i >= 0 and filled[i] and (several[i] or name in always):
            main.append(i)
    return {
        "columns": names,
        "main": main,
        "menus": [names.index(name) for name in MENUS if name in names and several[names.index(name)]],
        "numeric": [i for i, yes in enumerate(numeric) if yes],
        "data": [column if yes or len(column) < 2 else column[:1] for column, yes in zip(data, several, strict=True)],
        "rows": len(frame),
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it; missing values and infinities are None."""
    if is_missing(value):
        return None
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return int(value) if value.is_integer() and math.fabs(value) < 2**53 else value
    return value if isinstance(value, (bool, int, str)) else str(value)
