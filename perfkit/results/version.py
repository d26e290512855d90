"""The schema version that every file of a run carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfkit.errors import InputError


def check_schema(version: Any, *, file: Path, field: str) -> None:
    """Refuse a schema version other than ours; the message names it."""
    from perfkit.results.schema import SCHEMA_VERSION

    if isinstance(version, bool) or version != SCHEMA_VERSION:
        what = "missing" if version is None else version
        raise InputError("written in another schema version", file=file, field=field, value=what,
                         allowed=str(SCHEMA_VERSION))  # fmt: skip
