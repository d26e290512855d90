"""The axes of a sweep become ordered groups of cases: its points, and why some of them are skipped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit import registry
from perfkit.errors import InputError
from perfkit.method import Case, Method
from perfkit.presets import SweepSpec, load_preset, parse_ints, parse_spec
from perfkit.shape import Shape

if TYPE_CHECKING:
    from perfkit.profiles import Gpu

__all__ = [
    "CONTROL",
    "Group",
    "SweepSpec",
    "build_groups",
    "case_memory",
    "fit_memory",
    "is_plugin",
    "label",
    "load_preset",
    "memory_reason",
    "parse_ints",
    "parse_spec",
    "select_methods",
]

#: The method that speedups are against, by phase.
CONTROL = {"decode": "conventional", "verify": "snapshot"}


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that are compared with each other: timed in the same process, interleaved.

    Attributes:
        group_id: :attr:`Case.group_id` of its cases.
        cases: those to run, the control first.
        skipped: those that cannot run, each with the reason.
    """

    group_id: str
    cases: tuple[Case, ...]
    skipped: tuple[tuple[Case, str], ...] = ()

    @property
    def label(self) -> str:
        """Short text that says which point the group is."""
        case = (self.cases or tuple(case for case, _ in self.skipped))[0]
        draft = f" T{case.draft_len}" if case.draft_len > 1 else ""
        return f"B{case.batch}{draft} {case.state_dtype} state"


def label(case: Case) -> str:
    """Short text that says which case it is, as result lines show it: ``B256 L16 replay``."""
    parts = [f"B{case.batch}"]
    if case.draft_len > 1:
        parts.append(f"T{case.draft_len}")
    if case.window is not None:
        parts.append(f"L{case.window}")
    name = case.method.rsplit("/", 1)[-1] if ".py:" in case.method else case.method
    alias = case.option("alias")
    return " ".join([*parts, f"{name}/{alias}" if alias else name])


def is_plugin(key: str) -> bool:
    """Say whether a method's key is ``FILE.py:METHOD``."""
    return ".py:" in key


def select_methods(family: str, phase: str, keys: Sequence[str]) -> dict[str, Method]:
    """Return the methods that a sweep times in one phase, by case key, the control first.

    The control is added when it is not asked for: a speedup needs its baseline in the same group.

    Raises:
        InputError: an unknown method, or a file's method of another family or phase.
    """
    known = {item.key: item for item in registry.methods(family, phase)}
    if not known:
        have = sorted({f"{item.family} {item.phase}" for item in registry.methods()})
        flag = "--draft" if phase == "verify" else "--model"
        raise InputError(f"there are no {family} {phase} methods yet", field=flag, allowed=have)
    chosen: dict[str, Method] = {}
    for key in keys:
        if key == "all":
            chosen.update(known)
        elif is_plugin(key):
            path, _, name = key.rpartition(":")
            spec = f"{Path(path).resolve()}:{name}"  # a worker may be started from another folder
            chosen[spec] = registry.get_method(family, spec, phase)
        elif key in known:
            chosen[key] = known[key]
        else:
            raise InputError(f"unknown {family} {phase} method", field="--method", value=key,
                             allowed=[*sorted(known), "all", "FILE.py:METHOD"])  # fmt: skip
    control = CONTROL[phase]
    ordered = {control: known[control]} if control in known else {}
    return ordered | {key: chosen[key] for key in sorted(chosen) if key != control}


def _accepted(spec: SweepSpec, draft_len: int) -> str:
    from perfkit.roofline import acceptance_pmf

    if draft_len == 1:
        if spec.accepted not in (None, "1", "T") and spec.drafts == (1,):
            raise InputError("a decode step commits its one token; acceptance needs --draft above 1",
                             field="--accepted", value=spec.accepted)  # fmt: skip
        return "1"
    text = spec.accepted or "T"
    acceptance_pmf(text, draft_len)  # raises InputError
    return text


def _split(cases: Iterable[tuple[Case, Method]]) -> tuple[list[Case], list[tuple[Case, str]]]:
    run: list[Case] = []
    skipped: list[tuple[Case, str]] = []
    for case, method in cases:
        reason = None
        if case.window is not None and case.draft_len > case.window:
            reason = f"draft length T = {case.draft_len} does not fit in the window L = {case.window}"
        reason = reason or method.supports(case)
        if reason:
            skipped.append((case, reason))
        else:
            run.append(case)
    return run, skipped


def _check_drafts(family: str, spec: SweepSpec) -> None:
    """Refuse drafts that fit no window, before anything is said of methods; those without a window take any draft."""
    if min(spec.drafts) <= max(spec.windows):
        return
    known = {item.key: item for item in registry.methods(family, "verify")}
    if all(key in known and not known[key].windowed for key in spec.methods):
        return
    drafts, windows = (",".join(map(str, values)) for values in (spec.drafts, spec.windows))
    raise InputError(f"draft length T does not fit in any window of --window {windows}: T must be at most L",
                     field="--draft", value=drafts, allowed=f"1..{max(spec.windows)}")  # fmt: skip


def build_groups(shape: Shape, spec: SweepSpec) -> list[Group]:
    """Return the groups of a sweep over one layer shape, in the order in which they run.

    In a group: each method without a window once, each windowed method at every window. With ``self_check`` the
    control is there twice, under the names A and B. Points that cannot run are kept with their reason.

    Raises:
        InputError: an unknown method or acceptance, no draft that fits a window, or not a point that can run.
    """
    _check_drafts(shape.family, spec)
    groups: list[Group] = []
    for draft_len in spec.drafts:
        phase = "decode" if draft_len == 1 else "verify"
        methods = select_methods(shape.family, phase, spec.methods)
        acceptance = _accepted(spec, draft_len)
        for state_dtype in spec.state_dtypes:
            for input_dtype in spec.input_dtypes:
                for batch in spec.batches:
                    base = Case(shape=shape, method="", batch=batch, draft_len=draft_len, acceptance=acceptance,
                                flush_phase=spec.flush_phase, input_dtype=input_dtype, state_dtype=state_dtype,
                                n_layers=spec.n_layers)  # fmt: skip
                    run, skipped = _split(_points(base, methods, spec, CONTROL[phase]))
                    groups.append(Group(base.group_id, tuple(run), tuple(skipped)))
    return _some_can_run(groups)


def _some_can_run(groups: list[Group]) -> list[Group]:
    if not any(group.cases for group in groups):
        case, reason = groups[0].skipped[0]
        raise InputError(f"no point of this sweep can run: {label(case)}: {reason}")
    return groups


def _points(base: Case, methods: dict[str, Method], spec: SweepSpec, control: str) -> Iterable[tuple[Case, Method]]:
    for key, method in methods.items():
        windows: Sequence[int | None] = spec.windows if method.windowed else (None,)
        aliases: Sequence[Any] = ("A", "B") if spec.self_check and key == control else (None,)
        for window in windows:
            for alias in aliases:
                options = (("alias", alias),) if alias else ()
                yield replace(base, method=key, window=window, options=options), method


def case_memory(case: Case) -> int:
    """Return the bytes of all buffers of a case: the family's inputs and the method's own, for all its layers."""
    method = registry.get_method(case.shape.family, case.method, case.phase)
    inputs = registry.family(case.shape.family).inputs(case)
    total = sum(b.nbytes for b in inputs.values()) + sum(b.nbytes for b in method.buffers(case).values())
    return total * case.n_layers


def memory_reason(case: Case, gpu: Gpu) -> str | None:
    """Return why a case cannot run in the GPU's memory, None if it fits (or a plug-in's buffers cannot be counted)."""
    usable = gpu.usable_mib * 2**20 if gpu.usable_mib is not None else gpu.mem_capacity_gb * 1e9
    try:
        needed = case_memory(case)
    except Exception:
        return None
    if needed <= usable:
        return None
    return f"needs {math.ceil(needed / 1e9):,} GB, {gpu.key} has {math.floor(usable / 1e9):,} GB"


def fit_memory(groups: Iterable[Group], gpu: Gpu) -> list[Group]:
    """Return the groups with the cases that are larger than the GPU's memory skipped, for sweeps that only predict.

    Raises:
        InputError: not a single case fits.
    """
    found = []
    for group in groups:
        reasons = {case: memory_reason(case, gpu) for case in group.cases}
        skipped = tuple((case, reason) for case, reason in reasons.items() if reason is not None)
        fitting = tuple(case for case, reason in reasons.items() if reason is None)
        found.append(replace(group, cases=fitting, skipped=(*group.skipped, *skipped)))
    return _some_can_run(found)
