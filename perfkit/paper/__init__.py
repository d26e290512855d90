"""Published figures beside ours: the number of the paper, ours, their ratio, and whether the two can be compared."""

from __future__ import annotations

from perfkit.paper.check import CheckRow, check_columns, check_document, check_line, check_plan, render_checks
from perfkit.paper.ours import TOLERANCE, Compared, Ours, differences, document
from perfkit.paper.rows import Rows
from perfkit.paper.table import COLUMNS, compare_table, text

__all__ = [
    "COLUMNS",
    "TOLERANCE",
    "CheckRow",
    "Compared",
    "Ours",
    "Rows",
    "check_columns",
    "check_document",
    "check_line",
    "check_plan",
    "compare_table",
    "differences",
    "document",
    "render_checks",
    "text",
]
