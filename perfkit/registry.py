"""The methods there are: the folders of :mod:`perfkit.kernels`, installed plug-ins and files that a user names."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from perfkit.errors import InputError
from perfkit.method import Case, Family, Method, Phase
from perfkit.shape import FAMILIES

#: Entry-point group in which an installed package offers methods: each entry names a Method instance.
ENTRY_POINTS = "perfkit.methods"

_STREE = "its scan weighs independent inputs by decays; the delta rule corrects each input by the state before it"
_JOINT = "is defined for scalar decay; on the delta rule each of its two rows would derive all corrections, at 3R + 4W"


@dataclass(frozen=True, slots=True)
class Absent:
    """A strategy that a family has no kernels for; a sweep shows its cases as skipped, with the reason.

    Its fields and :meth:`supports` are what plans ask of a :class:`perfkit.method.Method`.
    """

    key: str
    family: str
    phase: Phase
    source: str
    reason: str
    windowed: bool = False
    trees: bool = False

    def supports(self, case: Case) -> str | None:
        """Return why there is no such method, whatever the case."""
        return self.reason


#: Strategies of the paper that are not built for the delta rule.
_ABSENT = tuple(
    Absent(key, name, "verify", source, reason)
    for name in ("gdn", "kda")
    for key, source, reason in (
        ("joint_attainment", "paper, App. A.1 (Snakes and Ladders, joint attainment)", _JOINT),
        ("stree", "paper, App. A.1 (STree)", _STREE),
        ("stree_released", "paper, App. A.1 (STree, the released path)", _STREE),
    )
)


@cache
def families() -> dict[str, Family]:
    """Return the families that have an oracle, by name."""
    found = {}
    for name in FAMILIES:
        if importlib.util.find_spec(f"perfkit.kernels.{name}") is not None:
            found[name] = importlib.import_module(f"perfkit.kernels.{name}.reference").FAMILY
    return found


def family(name: str) -> Family:
    """Return a family's inputs and oracle.

    Raises:
        InputError: there are no kernels for it.
    """
    if name not in families():
        raise InputError("no kernels for this family", field="family", value=name, allowed=sorted(families()))
    return families()[name]


@cache
def _all_methods() -> tuple[Method, ...]:
    found: list[Method] = []
    for name in families():
        package = importlib.import_module(f"perfkit.kernels.{name}")
        for item in sorted(pkgutil.iter_modules(package.__path__), key=lambda item: item.name):
            module = importlib.import_module(f"{package.__name__}.{item.name}")
            if isinstance(getattr(module, "METHOD", None), Method):
                found.append(module.METHOD)
    for entry in entry_points(group=ENTRY_POINTS):
        method = entry.load()
        if not isinstance(method, Method):
            raise InputError("is not a perfkit.method.Method", field=f"entry point {entry.name}", value=str(method))
        found.append(method)
    order = {"conventional": 0}  # the control first, then by name
    return tuple(sorted(found, key=lambda m: (FAMILIES.index(m.family), m.phase, order.get(m.key, 1), m.key)))


def methods(family: str | None = None, phase: str | None = None) -> list[Method]:
    """Return the known methods, the control of each family first."""
    return [m for m in _all_methods() if family in (None, m.family) and phase in (None, m.phase)]


def absent(family: str | None = None, phase: str | None = None) -> list[Absent]:
    """Return the strategies that a family has no kernels for; an installed plug-in may have brought one."""
    there = {(m.family, m.phase, m.key) for m in methods(family, phase)}
    return [item for item in _ABSENT if family in (None, item.family) and phase in (None, item.phase)
            and (item.family, item.phase, item.key) not in there]  # fmt: skip


def get_method(family: str, key: str, phase: str = "decode") -> Method:
    """Return one method. A key with a colon, ``FILE.py:NAME``, is loaded from that file.

    Raises:
        InputError: unknown key; the message lists what there is. Or one that the family has no kernels for; it says
            why.
    """
    if ":" in key:
        method = load_method(key)
        if (method.family, method.phase) != (family, phase):
            raise InputError(
                f"is for {method.family} {method.phase}, not {family} {phase}", field="--method", value=key
            )
        return method
    for method in methods(family, phase):
        if method.key == key:
            return method
    for item in absent(family, phase):
        if item.key == key:
            raise InputError(f"there is none for {family} {phase}: {item.reason}", field="--method", value=key)
    raise InputError(f"no such method for {family} {phase}", field="--method", value=key,
                     allowed=[m.key for m in methods(family, phase)] or "none yet")  # fmt: skip


@cache
def load_method(spec: str) -> Method:
    """Load a method from ``FILE.py:NAME``, as ``--method`` takes it.

    Raises:
        InputError: the file is missing, fails to import, or has no such method.
    """
    path, _, name = spec.rpartition(":")
    file = Path(path).resolve()
    if not file.is_file():
        raise InputError("no such file", field="--method", value=spec)
    module = _import_file(file)
    method = getattr(module, name, None)
    if not isinstance(method, Method):
        offered = [key for key, value in vars(module).items() if isinstance(value, Method)]
        what = f"{name} is not a perfkit.method.Method" if hasattr(module, name) else f"there is no {name} in it"
        if not offered:
            what += (
                ", nor is anything else in this file" if hasattr(module, name) else ", nor any perfkit.method.Method"
            )
        raise InputError(what, file=file, field="--method", value=spec, allowed=offered or None)
    # The key carries the spec: a worker process must be able to load the same method from a case alone.
    method.key = spec
    return method


def _import_file(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"perfkit_plugin_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise InputError("not a Python file", field="--method", value=str(file))
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises is the user's to read
        raise InputError(f"cannot import: {type(error).__name__}: {error}", file=file, field="--method") from error
    return module
