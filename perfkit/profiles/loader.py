"""Keys, aliases, names and paths into models and GPUs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from perfkit.errors import InputError
from perfkit.profiles.checks import check_gpu, check_model
from perfkit.profiles.fields import record, suggest, text
from perfkit.profiles.importers import import_config
from perfkit.profiles.schema import Gpu, Model
from perfkit.profiles.yamlfile import read_text, read_yaml

Profile = TypeVar("Profile", Model, Gpu)

_HERE = Path(__file__).parent
MODELS = _HERE / "models"
GPUS = _HERE / "gpus"


def load_model(key_or_path: str) -> Model:
    """Return a model by key, alias or Hugging Face name, or from a profile (.yaml) or a config.json.

    Raises:
        InputError: nothing by that name (close ones are suggested), or the file is refused.
    """
    found = _by_name(key_or_path, MODELS, read_model)
    if found is not None:
        return found
    path = _path(key_or_path)
    if path.suffix in (".yaml", ".yml"):
        return read_model(path)
    if path.suffix == ".json" or _is(path, Path.is_file):
        return import_config(path)
    if key_or_path.strip() and _is(path, Path.is_dir):
        raise InputError("is a directory", file=path, allowed=f"a file, such as {path / 'config.json'}")
    names = [name for model in list_models() for name in (model.key, model.name, *model.aliases)]
    raise InputError(f"unknown model{suggest(key_or_path, names)}", field="model", value=key_or_path,
                     allowed="a key of `perfkit list models`, or a path to a config.json or .yaml")  # fmt: skip


def load_gpu(key: str) -> Gpu:
    """Return a GPU by key or alias, or from a profile (.yaml).

    Raises:
        InputError: nothing by that name (close ones are suggested), or the file is refused.
    """
    found = _by_name(key, GPUS, read_gpu)
    if found is not None:
        return found
    if Path(key).suffix in (".yaml", ".yml"):
        return read_gpu(_path(key))
    names = [name for gpu in list_gpus() for name in (gpu.key, *gpu.aliases)]
    raise InputError(f"unknown GPU{suggest(key, names)}", field="gpu", value=key,
                     allowed="a key of `perfkit list gpus`, or a path to a .yaml")  # fmt: skip


def list_models() -> list[Model]:
    """Return every shipped model, by key."""
    return [read_model(path) for path in sorted(MODELS.glob("*.yaml"))]


def list_gpus() -> list[Gpu]:
    """Return every shipped GPU, by key."""
    return [read_gpu(path) for path in sorted(GPUS.glob("*.yaml"))]


def find_gpu(nvml_name: str, memory_mib: int | None = None) -> Gpu | None:
    """Return the GPU that NVML calls ``nvml_name``, or None: an unknown GPU is named, never guessed.

    Args:
        nvml_name: the product name; a MIG device's (``NVIDIA A100-SXM4-40GB MIG 1g.5gb``) matches nothing.
        memory_mib: total memory, which tells boards of one name apart; a part of a GPU does not match the whole.
    """
    wanted = _plain(nvml_name)
    for gpu in list_gpus():
        if wanted in map(_plain, gpu.nvml_names) and (memory_mib is None or _memory_fits(gpu, memory_mib)):
            return gpu
    return None


def read_model(path: Path) -> Model:
    """Return the model of one profile.

    Raises:
        InputError: the file or one of its fields is refused.
    """
    return _read_model(path, file_stamp(path))


def read_gpu(path: Path) -> Gpu:
    """Return the GPU of one profile.

    Raises:
        InputError: the file or one of its fields is refused.
    """
    return _read_gpu(path, file_stamp(path))


def to_dict(profile: Model | Gpu) -> dict[str, Any]:
    """Return a profile as plain JSON data."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(profile).items()}


@functools.lru_cache(maxsize=256)
def _read_model(path: Path, _: object) -> Model:
    data = dict(read_yaml(path))
    _split_reasons(data, path)
    return check_model(record(Model, data, file=path), file=path)


@functools.lru_cache(maxsize=256)
def _read_gpu(path: Path, _: object) -> Gpu:
    raw = read_yaml(path)
    for name in ("sources", "uncertain", "reasons"):
        if name in raw:
            raise InputError("belongs to its number, as {value: …, source: …, uncertain: why}", file=path, field=name)
    references = raw.pop("references", None) or {}
    if not isinstance(references, Mapping):
        raise InputError("must be a mapping of texts", file=path, field="references")
    data: dict[Any, Any] = {}
    sources: dict[str, str] = {}
    uncertain: dict[str, str] = {}
    for name, value in raw.items():
        if not isinstance(value, Mapping):
            data[name] = value
            continue
        for part in value:
            if part not in ("value", "source", "uncertain"):
                raise InputError("unknown part of a number", file=path, field=f"{name}.{part}",
                                 allowed=("value", "source", "uncertain"))  # fmt: skip
        data[name] = value.get("value")
        if "source" in value:
            source = text(value["source"], file=path, field=f"{name}.source")
            sources[name] = text(references.get(source, source), file=path, field=f"references.{source}")
        if "uncertain" in value:
            uncertain[name] = text(value["uncertain"], file=path, field=f"{name}.uncertain")
    data |= {"sources": sources, "uncertain": list(uncertain), "reasons": uncertain}
    return check_gpu(record(Gpu, data, file=path), file=path)


def _split_reasons(data: dict[Any, Any], path: Path) -> None:
    """A model's file has ``uncertain: {field: why}``; the record has the names and the reasons."""
    if "reasons" in data:
        raise InputError("belongs under uncertain, as {field: why}", file=path, field="reasons")
    uncertain = data.pop("uncertain", None) or {}
    if not isinstance(uncertain, Mapping):
        raise InputError("must be a mapping of a field to the reason", file=path, field="uncertain")
    data |= {"uncertain": [str(name) for name in uncertain], "reasons": uncertain}


def _by_name(name: str, folder: Path, read: Callable[[Path], Profile]) -> Profile | None:
    """Return the profile whose key, alias or name is ``name``, or None.

    Only files that can hold it are parsed: a key is a file name, and another name stands literally in its file.
    """
    folded = name.casefold()
    own = folder / f"{folded}.yaml"
    if re.fullmatch(r"[a-z0-9][a-z0-9._-]*", folded) and _is(own, Path.is_file):
        return read(own)
    for path in sorted(folder.glob("*.yaml")):
        if folded and folded in read_text(path).casefold():
            profile: Profile = read(path)
            names = (profile.key, *profile.aliases, *((profile.name,) if isinstance(profile, Model) else ()))
            if folded in (other.casefold() for other in names):
                return profile
    return None


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # ~ of a user that does not exist
        return Path(text)


def _is(path: Path, kind: Callable[[Path], bool]) -> bool:
    try:
        return kind(path)
    except OSError:  # a name that is too long, a folder that may not be read
        return False


def file_stamp(path: Path) -> object:
    """Return what changes when a file does, so that caches hold the file as it is."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # reading it will say what is wrong
        return None
    return status.st_mtime_ns, status.st_size


def _plain(nvml_name: str) -> str:
    """Older drivers leave out the vendor."""
    return " ".join(nvml_name.split()).casefold().removeprefix("nvidia ")


def _memory_fits(gpu: Gpu, memory_mib: int) -> bool:
    """NVML's total is up to 2 % above CUDA's; without CUDA's figure the marketing one may be GB or GiB."""
    if gpu.usable_mib is not None:
        return abs(memory_mib / gpu.usable_mib - 1) < 0.05
    return 0.92 * gpu.mem_capacity_gb * 1e9 / 2**20 < memory_mib < 1.03 * gpu.mem_capacity_gb * 1024
