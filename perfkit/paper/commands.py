"""The commands that make what is not measured yet: one sweep for each model, GPU, phase and dtype of a figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perfkit.paper.rows import points
from perfkit.profiles.published import PaperCell


def missing_commands(name: str, cells: Iterable[PaperCell]) -> dict[PaperCell, str]:
    """Return for each cell the sweeps that it needs, and the ``perfkit reproduce`` of their runs, joined by ``&&``."""
    cells = list(cells)
    sweeps: dict[tuple[str, ...], list[PaperCell]] = {}
    for cell in cells:
        for key in _keys(cell):
            sweeps.setdefault(key, []).append(cell)
    lines = {key: _sweep(key, group, name) for key, group in sweeps.items()}
    return {
        cell: " && ".join([*(lines[key] for key in _keys(cell)),
                           " ".join(["perfkit reproduce", name, *(_folder(key, name) for key in _keys(cell))])])
        for cell in cells
    }  # fmt: skip


def _keys(cell: PaperCell) -> list[tuple[str, ...]]:
    """Return model, phase and state dtype of the sweeps that a cell needs."""
    state = cell.state_dtype or "float32"
    found = {(point.model, "decode" if point.draft_len == 1 else "verify", state): None for point in points(cell)}
    return list(found)


def _sweep(key: tuple[str, ...], cells: Iterable[PaperCell], name: str) -> str:
    model, phase, state = key
    mine = [(cell, point) for cell in cells for point in points(cell)
            if point.model == model and (point.draft_len == 1) == (phase == "decode")]  # fmt: skip
    methods = {word for cell, _ in mine for word in (cell.method, (cell.baseline or "").split(",")[0]) if word}
    # The control of a sweep is always there, and a verify sweep times one conventional decode step beside it.
    # Where some cell does not state an acceptance, the default has them all: 1, T - 1, T.
    options: Mapping[str, list[str]] = {
        "--method": sorted(methods - {"conventional", "snapshot"}),
        "--batch": [str(batch) for batch in sorted({point.batch for _, point in mine})],
        "--window": [str(window) for window in sorted({window for cell, _ in mine for window in cell.windows})],
        "--draft": [str(draft) for draft in sorted({point.draft_len for _, point in mine})],
        "--accepted": []
        if phase == "decode" or not all(cell.acceptances for cell, _ in mine)
        else sorted({text for cell, _ in mine for text in cell.acceptances}),
        "--state-dtype": [state] if state != "float32" else [],
    }
    words = [f"{flag} {','.join(values)}" for flag, values in options.items() if values]
    return f"perfkit sweep --model {model} {' '.join(words)} --out {_folder(key, name)}"


def _folder(key: tuple[str, ...], name: str) -> str:
    model, phase, state = key
    return "-".join([f"runs/{name}", model, phase, *([state] if state != "float32" else [])])
