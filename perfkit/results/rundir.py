"""Run folders: their default name, whether they can be written, one writer at a time, and raw samples."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfkit.errors import InputError, WriteError
from perfkit.files import read_json, write_text
from perfkit.results.schema import SCHEMA_VERSION, dumps
from perfkit.results.version import check_schema

RUNS = Path("runs")
_LOCK = ".lock"


def default_run_dir(model: str, gpu: str, now: datetime | None = None, root: Path = RUNS) -> Path:
    """Return ``runs/<YYYYMMDDTHHMMSSZ>-<model>-<gpu>``, with ``-2``, ``-3``, … if that exists. Nothing is created.

    Args:
        model: model key; characters that do not belong in a folder's name become ``-``.
        gpu: GPU key.
        now: a time with a zone, by default the present; the name is in UTC.
        root: the folder of runs.
    """
    stamp = (now or datetime.now(UTC)).astimezone(UTC)
    words = [re.sub(r"[^A-Za-z0-9._]+", "-", word).strip("-.") or "unknown" for word in (model, gpu)]
    name = "-".join([f"{stamp:%Y%m%dT%H%M%SZ}", *words])
    path, n = root / name, 1
    while path.exists():
        n += 1
        path = root / f"{name}-{n}"
    return path


def prepare_run_dir(out: str | Path) -> Path:
    """Create a run folder, or take an empty one, and write to it at once: hours later is too late to find out.

    Raises:
        InputError: it is a file, holds something, or cannot be created or written. What was created is removed.
    """
    path = Path(out)
    created: list[Path] = []
    try:
        if path.exists() and not path.is_dir():
            raise InputError("is a file, not a folder", file=path, field="--out", allowed="a new or empty folder")
        for folder in (*reversed(path.parents), path):
            if not folder.is_dir():
                if folder.exists():
                    raise NotADirectoryError(errno.ENOTDIR, f"{folder} is a file")
                folder.mkdir()
                created.append(folder)
        if any(path.iterdir()):
            raise InputError("is not empty", file=path, field="--out", allowed="a new or empty folder, or --resume it")
        handle, name = tempfile.mkstemp(dir=path)
        try:
            os.write(handle, b"writable\n")
            os.fsync(handle)
        finally:
            os.close(handle)
            Path(name).unlink()
    except OSError as error:
        for folder in reversed(created):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise InputError(f"cannot be written: {error.strerror or error}", file=path, field="--out") from error
    return path


@contextlib.contextmanager
def writing(run_dir: str | Path) -> Iterator[None]:
    """Hold a run folder for one writer; the lock file is gone afterwards, and a killed writer leaves no lock.

    Raises:
        InputError: another process writes to it.
    """
    from filelock import FileLock, Timeout

    path = Path(run_dir) / _LOCK
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise InputError("another perfkit is writing to this run; wait for it", file=run_dir) from error
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", file=run_dir) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is still held: whoever comes next makes a new one
        lock.release()


def _samples_path(run_dir: str | Path, case_id: str) -> Path:
    return Path(run_dir) / "samples" / f"{case_id}.json"


def write_samples(
    run_dir: str | Path, case_id: str, samples: Sequence[float] | Mapping[str, Sequence[float | int | None]]
) -> Path:
    """Keep a case's raw samples in ``samples/<case_id>.json``: a list is ``time_us``, a mapping names its series."""
    path = _samples_path(run_dir, case_id)
    series: dict[str, Any] = dict(samples) if isinstance(samples, Mapping) else {"time_us": list(samples)}
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise WriteError(f"cannot write: {error.strerror or error}", file=path) from error
    write_text(path, dumps({"schema": SCHEMA_VERSION, "case_id": case_id, "samples": series}) + "\n")
    return path


def read_samples(run_dir: str | Path, case_id: str) -> dict[str, list[float]]:
    """Return the series of raw samples of a case by name; {} if it has none.

    Raises:
        InputError: the file is damaged or of another schema version.
    """
    path = _samples_path(run_dir, case_id)
    if not path.exists():
        return {}
    data = read_json(path)
    check_schema(data.get("schema"), file=path, field="schema")
    series = data.get("samples")
    if not isinstance(series, dict):
        raise InputError("must be a mapping of series", file=path, field="samples", value=type(series).__name__)
    return series
