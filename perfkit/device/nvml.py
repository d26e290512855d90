"""The way to NVML: it is imported late, started once per use, and its errors become words.

``nvidia-ml-py`` (module ``pynvml``) reads the driver; CUDA is not initialized. Every function of this package takes the
module as an argument, so that tests hand in another.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from perfkit.errors import DeviceError

NO_MODULE = "nvidia-ml-py is missing: pip install nvidia-ml-py"
NO_DRIVER = "no NVIDIA driver answers; on a machine with a GPU, see that nvidia-smi works here"


@contextlib.contextmanager
def session(nvml: Any = None) -> Iterator[Any]:
    """Yield the NVML module, started; it is shut down afterwards.

    Raises:
        DeviceError: the module or the driver is missing; says what to do.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError as error:
            raise DeviceError(NO_MODULE) from error
    try:
        nvml.nvmlInit()
    except Exception as error:
        if not is_nvml_error(nvml, error):
            raise
        raise DeviceError(f"{NO_DRIVER} ({text(error)})") from error
    try:
        yield nvml
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()


def is_nvml_error(nvml: Any, error: BaseException) -> bool:
    """Say whether the driver raised it; a function that an old driver lacks is missing from the library."""
    return isinstance(error, (nvml.NVMLError, AttributeError))


def read(nvml: Any, function: str, *args: Any, default: Any = None) -> Any:
    """Call a function of NVML by name; ``default`` where this GPU, driver or user may not ask."""
    try:
        return getattr(nvml, function)(*args)
    except Exception as error:
        if is_nvml_error(nvml, error):
            return default
        raise


def first(nvml: Any, functions: tuple[str, ...], *args: Any) -> Any:
    """Return the answer of the first function that has one: newer drivers rename some."""
    for function in functions:
        value = read(nvml, function, *args)
        if value is not None:
            return value
    return None


def gpu_by_uuid(nvml: Any, uuid: str) -> Any:
    """Return the handle of a GPU, None if there is no such GPU here."""
    handle = read(nvml, "nvmlDeviceGetHandleByUUID", uuid)
    if handle is None:
        handle = read(nvml, "nvmlDeviceGetHandleByUUID", uuid.encode())  # older modules take bytes
    return handle


def text(value: Any) -> str:
    """Return text from NVML, which older modules give as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def optional(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Convert a value unless it is None."""
    return None if value is None else convert(value)
