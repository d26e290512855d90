"""Reports: a frame of results becomes figures, and figures become one offline page.

Importing this package loads neither pandas nor plotly; the functions that need them import their modules when called.
"""

from __future__ import annotations

from pathlib import Path


def build_report(run_dirs: list[Path], out: Path) -> Path:
    """Write one offline HTML page about some runs.

    Args:
        run_dirs: run folders; each is read with :func:`perfkit.results.load_run`.
        out: the file to write; it is replaced at once when the page is complete.

    Returns:
        ``out``.

    Raises:
        InputError: a folder is not a run, its results have another schema version, or ``out`` cannot be written.
    """
    from perfkit.reports.page import build_report as build

    return build(run_dirs, out)


__all__ = ["build_report"]
