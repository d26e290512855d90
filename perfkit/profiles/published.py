"""What the paper published, one YAML file a figure or table in ``paper/``, to hold results against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfkit.errors import InputError
from perfkit.profiles.fields import plain_text, positive, refuse_unknown, whole
from perfkit.profiles.yamlfile import read_yaml

PAPER = Path(__file__).parent / "paper"
_FIELDS = ("title", "source", "model", "gpu", "batch", "cells")
_CELL = ("method", "step", "draft_len", "gb")


@dataclass(frozen=True, slots=True)
class Cell:
    """One published number of bytes, in GB, as it was rounded; ``draft_len`` is None where it holds for every T."""

    method: str
    step: str
    draft_len: int | None
    gb: float


@dataclass(frozen=True, slots=True)
class Published:
    """What is known of a published table of bytes: its title, its source, the point it is of, its cells."""

    title: str
    source: str
    model: str
    gpu: str
    batch: int
    cells: tuple[Cell, ...]

    def cell(self, method: str, step: str, draft_len: int) -> float | None:
        """Return the published GB of a method's step, None where the cell is lost."""
        return next((cell.gb for cell in self.cells if (cell.method, cell.step) == (method, step)
                     and cell.draft_len in (None, draft_len)), None)  # fmt: skip


def load_table3(directory: Path | None = None) -> Published:
    """Return what is known of the paper's Table 3.

    Raises:
        InputError: an unknown or missing field, or a value that is refused.
    """
    path = (directory or PAPER) / "table3.yaml"
    data = _complete(read_yaml(path), _FIELDS, path, "")
    cells = data["cells"]
    if not isinstance(cells, list) or not cells:
        raise InputError("must be a list of at least one cell", file=path, field="cells")
    texts = {name: plain_text(data[name], path, name) for name in ("title", "source", "model", "gpu")}
    return Published(**texts, batch=whole(data["batch"], file=path, field="batch", minimum=1),
                     cells=tuple(_cell(item, path, f"cells[{at}]") for at, item in enumerate(cells)))  # fmt: skip


def _cell(item: Any, path: Path, where: str) -> Cell:
    data = _complete({"draft_len": 0, **item} if isinstance(item, Mapping) else item, _CELL, path, f"{where}.")
    length = whole(data["draft_len"], file=path, field=f"{where}.draft_len")
    return Cell(plain_text(data["method"], path, f"{where}.method"), plain_text(data["step"], path, f"{where}.step"),
                length or None, positive(data["gb"], path, f"{where}.gb"))  # fmt: skip


def _complete(data: Any, known: tuple[str, ...], path: Path, prefix: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise InputError("must be a mapping", file=path, field=prefix.rstrip("."), allowed=known)
    refuse_unknown(data, known, path, prefix)
    for name in known:
        if data.get(name) is None:
            raise InputError("missing", file=path, field=f"{prefix}{name}")
    return data
