"""Reading what is compared: a run folder, a file of results, or a measurement that ships with perfkit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from perfkit.derive import alias, is_control
from perfkit.errors import InputError
from perfkit.files import read_json
from perfkit.profiles import measured_files
from perfkit.results import SCHEMA_VERSION, load_run, read_samples
from perfkit.results.frame import CSV, PARQUET
from perfkit.results.manifest import NAME as MANIFEST

Row = Mapping[str, Any]
#: Packages whose version may change a time.
_PACKAGES = ("perfkit", "torch", "triton")


@dataclass(frozen=True, slots=True)
class Run:
    """One side of a comparison.

    Attributes:
        name: as the user gave it.
        folder: where ``samples/`` is; None for rows without samples.
        rows: the measured rows by case_id, without those of ``--self-check``'s second control.
        controls: of these, the rows that ratios are to, by group_id.
        seconds: the rows of the second control by group_id.
        planned: the cases that it set out to run; a run that was cut short has no row of some.
        manifest: {} for a file without one.
        schemas: schema versions that are in the rows.
    """

    name: str
    folder: Path | None
    rows: Mapping[str, Row]
    controls: Mapping[str, Row]
    seconds: Mapping[str, Row]
    planned: frozenset[str]
    manifest: Mapping[str, Any]
    schemas: tuple[str, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        """Keys of the GPUs that its rows are from; the driver's name for a GPU without a profile."""
        return tuple(sorted({str(row.get("gpu")) for row in self.rows.values()}))

    @property
    def models(self) -> tuple[str, ...]:
        """Keys of its models."""
        return tuple(sorted({str(row.get("model")) for row in self.rows.values()}))

    def series(self, case_id: str) -> dict[str, list[float]]:
        """Return a case's series of raw samples by name; {} if it has none here."""
        return {} if self.folder is None else read_samples(self.folder, case_id)

    def floor(self, group_id: str) -> float | None:
        """Return the largest A/A difference that the run saw in a group: of the control and the same once more."""
        control, second = self.controls.get(group_id), self.seconds.get(group_id)
        found = [abs(row["aa_difference"]) for row in (control,) if row and row.get("aa_difference") is not None]
        if control and second and control.get("time_us") and second.get("time_us"):
            found.append(abs(second["time_us"] / control["time_us"] - 1))
        return max(found, default=None)

    def facts(self) -> dict[str, Any]:
        """Return what may explain a difference between two runs, by the name that a reader knows it by."""
        gpu, packages = self.manifest.get("gpu"), self.manifest.get("packages") or {}
        gpu = gpu if isinstance(gpu, Mapping) else {}
        clocks = [row["sm_clock_mhz"] for row in self.rows.values() if row.get("sm_clock_mhz")]
        uuids = sorted({str(row["gpu_uuid"]) for row in self.rows.values() if row.get("gpu_uuid")})
        git = self.manifest.get("git") or {}
        settings = self.manifest.get("settings") or {}
        return {
            "model": ", ".join(self.models), "GPU": ", ".join(uuids) or None, "driver": gpu.get("driver"),
            "SM clock MHz": median(clocks) if clocks else None,
            **{name: packages.get(name) for name in _PACKAGES},
            "revision": str(git["revision"])[:12] if git.get("revision") else None,
            **{name: settings.get(name) for name in ("tune", "l2") if name in settings},
        }  # fmt: skip


def load(text: str) -> Run:
    """Read one side of a comparison, whatever schema version it has.

    Args:
        text: a run folder, a ``.csv`` or ``.parquet`` file of results, or the name of a shipped measurement.

    Raises:
        InputError: there is no such thing, it is damaged, has a case twice, or nothing in it was measured.
    """
    path = _path(text)
    frame = load_run(path, any_schema=True)
    plain = frame.astype(object)
    everything: list[dict[str, Any]] = plain.where(plain.notna(), None).to_dict("records")  # type: ignore[assignment]
    rows = [row for row in everything if row["source"] == "measured"]
    if not rows:
        kinds = ", ".join(sorted({str(row["source"]) for row in everything})) or "none"
        raise InputError("nothing here was measured: only runs that were timed on a GPU can be compared", file=path,
                         field="source", value=kinds)  # fmt: skip
    ids = [row["case_id"] for row in rows]
    if len(set(ids)) != len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise InputError("is there twice; compare one run with one other", file=path, field="case_id", value=twice)
    folder = _folder(path)
    manifest = _manifest(path, folder)
    schemas = tuple(sorted({str(row["schema_version"]) for row in rows}))
    # Samples of another schema version are not read: the intervals in the rows are.
    known = schemas == (str(SCHEMA_VERSION),) and folder is not None and (folder / "samples").is_dir()
    first = [row for row in rows if alias(row) in (None, "A")]
    return Run(
        name=text,
        folder=folder if known else None,
        rows={row["case_id"]: row for row in first},
        controls={row["group_id"]: row for row in first if is_control(row)},
        seconds={row["group_id"]: row for row in rows if alias(row) not in (None, "A")},
        planned=frozenset(map(str, manifest.get("case_ids") or ())),
        manifest=manifest,
        schemas=schemas,
    )


def _path(text: str) -> Path:
    """Return the file or folder of an argument: what is on disk goes before what ships."""
    path = Path(text)
    if path.exists():
        return path
    shipped = measured_files()
    if text in shipped:
        return shipped[text]
    raise InputError("no such run, file or shipped measurement", value=text, allowed=list(shipped))


def _folder(path: Path) -> Path | None:
    """Return the run folder of a path: itself, or where a file of results lies; None for any other file."""
    if path.is_dir():
        return path
    return path.parent if path.name in (CSV, PARQUET) else None


def _manifest(path: Path, folder: Path | None) -> dict[str, Any]:
    """Return the manifest of a run folder, or of a shipped file; {} where there is none."""
    file = path.with_name(f"{path.stem}.manifest.json") if folder is None else folder / MANIFEST
    return read_json(file) if file.is_file() else {}


def check_comparable(base: Run, new: Run, *, force: bool) -> list[str]:
    """Return what forbids the comparison and was overruled, one text each.

    Raises:
        InputError: something forbids it, and ``force`` is not given.
    """
    found = []
    if base.gpus != new.gpus or len(base.gpus) > 1:
        found.append(f"the GPU: {', '.join(base.gpus)} in BASE, {', '.join(new.gpus)} in NEW")
    ours = (str(SCHEMA_VERSION),)
    if base.schemas != ours or new.schemas != ours:
        found.append(f"the schema version: {', '.join(base.schemas)} in BASE, {', '.join(new.schemas)} in NEW, "
                     f"{SCHEMA_VERSION} here")  # fmt: skip
    if found and not force:
        raise InputError(f"not comparable by {' and by '.join(found)}; --force compares the ratios to the control all "
                         "the same, in the columns that both have, and says so")  # fmt: skip
    return found
