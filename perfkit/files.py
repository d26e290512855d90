"""Writing files so that a reader, or a crash, never sees half of one."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfkit.errors import InputError, WriteError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; on success it is synced and renamed to ``path``, else removed.

    Raises:
        WriteError: the folder cannot be written.
    """
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes private files; results are to be shared
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise WriteError(f"cannot write: {error.strerror or error}", file=path) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; raises WriteError if it cannot be written."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def sync_folder(folder: Path) -> None:
    """Make a rename or a new file in a folder durable; file systems that cannot do it are left alone."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_json(path: Path, *, missing: str = "no such file") -> dict[str, Any]:
    """Return a JSON object from a file.

    Raises:
        InputError: the file is missing (with the text given), unreadable, not JSON, or not an object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(missing, file=path) from error
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", file=path) from error
    except ValueError as error:
        raise InputError(f"not JSON: {error}", file=path) from error
    if not isinstance(data, dict):
        raise InputError("must be a JSON object", file=path, value=type(data).__name__)
    return data
