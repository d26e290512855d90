"""The figures of a report as PNG files, drawn by Chrome through kaleido."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from perfkit.errors import DeviceError, InputError, one_line
from perfkit.reports import select
from perfkit.reports.runs import Run, merged, noise_floor
from perfkit.reports.sections import sections

WIDTH = 1000
#: Pixels of a file for a pixel of a figure: sharp in slides.
SCALE = 2
_REMEDY = "pip install kaleido, and a Chrome or Chromium on PATH; or save single figures from the page"


def check_png(folder: Path) -> None:
    """Refuse what cannot work before any figure is built.

    Raises:
        InputError: ``folder`` is a file, or its parent is missing.
        DeviceError: kaleido is not installed.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError("is not a folder", field="--png", value=str(folder))
    if not folder.absolute().parent.is_dir():
        raise InputError("its folder does not exist", field="--png", value=str(folder))
    if find_spec("kaleido") is None:
        raise DeviceError(f"--png: kaleido is not installed: {_REMEDY}")


def write_png(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write every figure of a report as ``<id>.png``, and return the files; the light colours, titles included.

    Raises:
        DeviceError: kaleido finds no Chrome, or Chrome fails.
        InputError: ``folder`` cannot be written.
    """
    found = [item for section in sections(select.prepare(merged(runs)), noise_floor(runs)) for item in section.figures]
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", field="--png", value=str(folder)) from error
    paths = [folder / f"{name}.png" for name, _ in found]
    if found:
        _draw([figure for _, figure in found], paths)
    return paths


def _draw(figures: list[Any], paths: list[Path]) -> None:
    from plotly import io

    try:
        # All in one go: most of the time is the start of Chrome.
        heights = [figure.layout.height for figure in figures]
        io.write_images(figures, [str(path) for path in paths], width=WIDTH, height=heights, scale=SCALE)
    except Exception as error:  # kaleido and Chrome have many ways to fail, and each version others
        raise DeviceError(f"--png: {one_line(error)}: {_REMEDY}") from error
