"""The runs of a report: rows and manifests read, joined, and what all of them say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.errors import InputError
from perfkit.reports.counters import join_counters
from perfkit.reports.text import is_missing

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its name in the report, its rows, its manifest, and where it was read."""

    name: str
    frame: pd.DataFrame
    manifest: Mapping[str, Any]
    path: Path | None = None


def load_all(paths: Sequence[Path]) -> list[Run]:
    """Read runs; those that only counted bytes fill the rows of the others.

    Raises:
        InputError: see :func:`load`.
    """
    return join_counters([load(path) for path in paths])


def load(path: Path) -> Run:
    """Read a run folder, one file of results, or by its name a shipped measurement, whose rows become ``recorded``.

    Raises:
        InputError: there is no such run, it has no results, or they have another schema version.
    """
    from perfkit.profiles.measured import measured_files
    from perfkit.profiles.measured import read_manifest as read_shipped
    from perfkit.results import load_run, read_manifest

    shipped = measured_files()
    if not path.exists() and str(path) in shipped:
        file = shipped[str(path)]
        frame = load_run(file)
        frame["source"] = frame["source"].replace("measured", "recorded")
        return Run(str(path), frame, read_shipped(file.with_name(f"{path}.manifest.json")), file)
    if not path.exists():
        raise InputError("no such run, file or shipped measurement", value=str(path), allowed=list(shipped))
    frame = load_run(path)
    manifest = read_manifest(path) if (path / "manifest.json").is_file() else {}
    return Run(path.resolve().name, frame, manifest, path)


def merged(runs: Sequence[Run]) -> pd.DataFrame:
    """Join the rows of runs; of several, a column ``run`` names each row's."""
    import pandas as pd

    if len(runs) == 1:
        return runs[0].frame
    names = distinct([run.name for run in runs])
    return pd.concat([run.frame.assign(run=name) for run, name in zip(runs, names, strict=True)], ignore_index=True)


def distinct(names: Sequence[str]) -> list[str]:
    """Number names that appear more than once."""
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)
    ]


def noise_floor(runs: Sequence[Run]) -> float | None:
    """Return the largest A/A noise floor that the manifests state."""
    floors = [value for run in runs if isinstance(value := run.manifest.get("aa_floor"), (int, float))]
    return max((float(value) for value in floors if not is_missing(value)), default=None)
