"""YAML files into mappings: fast where libyaml is there, duplicate keys refused, one line for whatever is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfkit.errors import InputError


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        InputError: no such file, a directory, unreadable, or not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError("no such file", file=path) from None
    except IsADirectoryError:
        raise InputError("is a directory, not a file", file=path) from None
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", file=path) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=path) from None


def parse_yaml(text: str, path: Path) -> dict[Any, Any]:
    """Return the mapping that ``text`` holds; ``path`` is for messages.

    Raises:
        InputError: malformed YAML (with the line), a duplicate key, or something else than a mapping.
    """
    import yaml  # here: arithmetic on profiles, which needs none, imports this module too

    from perfkit.profiles.yamlloader import Loader

    try:
        data = yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}" if mark else None
        raise InputError(f"not valid YAML: {error.problem or error}", file=path, field=where) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"not valid YAML: {error}", file=path) from None
    except RecursionError:
        raise InputError("not valid YAML: nested too deeply", file=path) from None
    if not isinstance(data, dict):
        kind = "empty" if data is None else f"a {type(data).__name__}"
        raise InputError(f"must be a mapping of fields, not {kind}", file=path)
    return data


def read_yaml(path: Path) -> dict[Any, Any]:
    """Return the mapping that a YAML file holds.

    Raises:
        InputError: as :func:`read_text` and :func:`parse_yaml`.
    """
    return parse_yaml(read_text(path), path)
