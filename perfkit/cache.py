"""What perfkit keeps for its next run, in JSON files: compiled kernels' facts, launch configurations."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfkit.errors import InputError
from perfkit.files import write_text


def cache_root() -> Path:
    """Return the folder: ``$PERFKIT_CACHE``, or perfkit under the user's cache."""
    own = os.environ.get("PERFKIT_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perfkit"


def load(path: Path) -> dict[str, Any] | None:
    """Return what :func:`save` wrote, or None if there is nothing or it cannot be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def save(path: Path, data: Mapping[str, Any]) -> None:
    """Write atomically: readers see a whole file or none. A cache that cannot be written is no error."""
    with contextlib.suppress(OSError, InputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n")
