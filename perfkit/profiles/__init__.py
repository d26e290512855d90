"""What perfkit knows of models and GPUs: one YAML file each, a loader, and importers of ``config.json`` files.

A new model or GPU is one file in ``models/`` or ``gpus/``. Measurements that ship with perfkit lie in ``measured/``.
"""

from __future__ import annotations

from perfkit.profiles.importers import import_config
from perfkit.profiles.loader import find_gpu, list_gpus, list_models, load_gpu, load_model, to_dict
from perfkit.profiles.measured import load_efficiency, load_measured, load_roofs
from perfkit.profiles.schema import Gpu, Model

__all__ = [
    "Gpu",
    "Model",
    "find_gpu",
    "import_config",
    "list_gpus",
    "list_models",
    "load_efficiency",
    "load_gpu",
    "load_measured",
    "load_model",
    "load_roofs",
    "to_dict",
]
