"""What perfkit knows of models and GPUs: one YAML file each, a loader, and importers of ``config.json`` files.

A new model or GPU is one file in ``models/`` or ``gpus/``. Measurements that ship with perfkit lie in ``measured/``; a
user's own roofs in :func:`roofs_folder`.
"""

from __future__ import annotations

from perfkit.profiles.importers import import_config
from perfkit.profiles.loader import find_gpu, list_gpus, list_models, load_gpu, load_model, to_dict
from perfkit.profiles.measured import load_efficiency, load_measured, measured_files
from perfkit.profiles.roofs import find_roofs, load_roofs, read_roofs, roofs_folder, roofs_name
from perfkit.profiles.schema import Gpu, Model

__all__ = [
    "Gpu",
    "Model",
    "find_gpu",
    "find_roofs",
    "import_config",
    "list_gpus",
    "list_models",
    "load_efficiency",
    "load_gpu",
    "load_measured",
    "load_model",
    "load_roofs",
    "measured_files",
    "read_roofs",
    "roofs_folder",
    "roofs_name",
    "to_dict",
]
