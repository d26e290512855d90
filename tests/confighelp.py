"""Files of config.json for tests: published and synthetic, changed field by field, and the line that refuses one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfkit.errors import InputError
from perfkit.profiles import load_model
from perfkit.profiles.importers import import_config
from perfkit.profiles.schema import Model

CONFIGS = Path(__file__).parent / "data" / "configs"
SYNTHETIC = CONFIGS / "synthetic"


def read(stem: str) -> dict[str, Any]:
    """A file of CONFIGS, or of SYNTHETIC where its name begins so."""
    folder = SYNTHETIC if stem.startswith("synthetic-") else CONFIGS
    data: dict[str, Any] = json.loads((folder / f"{stem}.config.json").read_text(encoding="utf-8"))
    return data


def write(folder: Path, data: Any) -> Path:
    """A config.json that holds ``data``."""
    path = folder / "config.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def changed(folder: Path, stem: str, **changes: Any) -> Path:
    """A file with fields changed; ... removes one, part__name reaches into a nested object."""
    data = read(stem)
    for name, value in changes.items():
        *outer, last = name.split("__")
        target = data
        for part in outer:
            target = target[part]
        if value is ...:
            target.pop(last, None)
        else:
            target[last] = value
    return write(folder, data)


def imported(folder: Path, stem: str, **changes: Any) -> Model:
    """The model of a changed file."""
    return import_config(changed(folder, stem, **changes))


def refusal(path: Path) -> str:
    """The one line that refuses a file, without the file's name."""
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message and caught.value.exit_code == 2
    return message.removeprefix(f"{path}: ")
