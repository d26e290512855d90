"""Where reports go: a place is tried before the work, and a file appears at once when it is complete."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from perfkit.errors import InputError


def check_writable(out: Path, field: str = "--out") -> None:
    """Refuse a place where no file can be written, before any work is done.

    Raises:
        InputError: a folder, a parent that is missing, or no permission.
    """
    if out.is_dir():
        raise InputError("is a folder", field=field, value=str(out), allowed="a file name")
    folder = out.absolute().parent
    if not folder.is_dir():
        raise InputError("its folder does not exist", field=field, value=str(out))
    if out.exists() and not os.access(out, os.W_OK):
        raise InputError("cannot be written", field=field, value=str(out))
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", field=field, value=str(out)) from error


def check_page(out: Path) -> None:
    """Refuse a place where no page can be written, before any work is done.

    Raises:
        InputError: no HTML file, or as :func:`check_writable`.
    """
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError("must be an HTML file", field="--out", value=str(out), allowed="*.html")
    check_writable(out)


def write_text(text: str, out: Path, field: str = "--out") -> Path:
    """Write a file in one step, so that a reader never sees half of it.

    Raises:
        InputError: the file cannot be written.
    """
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"cannot be written: {error.strerror}", field=field, value=str(out)) from error
    return out
