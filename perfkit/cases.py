"""The axes of a sweep become ordered groups of cases: its points, and why some of them are skipped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit import registry
from perfkit.errors import InputError
from perfkit.method import Case, Method, Phase
from perfkit.presets import SweepSpec, load_preset, parse_ints, parse_spec
from perfkit.registry import Absent
from perfkit.roofline.acceptance import resolve_acceptances, short_acceptance
from perfkit.roofline.capacity import usable_bytes
from perfkit.shape import Shape
from perfkit.tree import Tree

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
        point = " ".join([f"B{case.batch}", *draft_words(case.draft_len, case.acceptance, case.tree)])
        return f"{point} {case.state_dtype} state"


def draft_words(draft_len: int, acceptance: str, tree: str | None = None) -> list[str]:
    """Return the words that name a verify step's drafts and acceptance, ``T4 a1`` or ``tree8 aT``; [] of decode."""
    if draft_len == 1:
        return []
    return [f"T{draft_len}" if tree is None else f"tree{draft_len}", short_acceptance(acceptance)]


def label(case: Case) -> str:
    """Short text that says which case it is, as result lines show it: ``B256 L16 replay``, ``B256 T4 a1 snapshot``.

    Rows that do not flush together are said to be staggered.
    """
    parts = [f"B{case.batch}", *draft_words(case.draft_len, case.acceptance, case.tree)]
    if case.window is not None:
        parts.append(f"L{case.window}")
    name = case.method.rsplit("/", 1)[-1] if ".py:" in case.method else case.method
    alias = case.option("alias")
    phase = [] if case.flush_phase == "aligned" else [case.flush_phase]
    return " ".join([*parts, f"{name}/{alias}" if alias else name, *phase])


def is_plugin(key: str) -> bool:
    """Say whether a method's key is ``FILE.py:METHOD``."""
    return ".py:" in key


def select_methods(
    family: str, phases: Sequence[Phase], keys: Sequence[str]
) -> dict[Phase, dict[str, Method | Absent]]:
    """Return the methods that a sweep times in each phase, by case key, the control of the phase first.

    The control is added when it is not asked for: a speedup needs its baseline in the same group. A method of one of
    the phases alone is left out of the others. What the family has no kernels for is among them, to be skipped.

    Raises:
        InputError: a method of none of the phases, or a family without methods for one of them.
    """
    chosen: dict[Phase, dict[str, Method | Absent]] = {}
    found: set[str] = set()
    for phase in phases:
        known = _known(family, phase)
        if not known:
            have = sorted({f"{item.family} {item.phase}" for item in registry.methods()})
            flag = "--draft" if phase == "verify" else "--model"
            raise InputError(f"there are no {family} {phase} methods yet", field=flag, allowed=have)
        mine: dict[str, Method | Absent] = {}
        for key in keys:
            if key == "all":
                mine |= known
            elif is_plugin(key):
                spec, method = _plugin(family, phase if len(phases) == 1 else None, key)
                mine |= {spec: method} if method.phase == phase else {}
            elif key in known:
                mine[key] = known[key]
            else:
                continue
            found.add(key)
        control = CONTROL[phase]
        first = {control: known[control]} if control in known else {}
        chosen[phase] = first | {key: mine[key] for key in sorted(mine) if key != control}
    for key in keys:
        if key not in found:
            allowed = sorted({known for phase in phases for known in _known(family, phase)})
            raise InputError(f"unknown {family} {' or '.join(phases)} method", field="--method", value=key,
                             allowed=[*allowed, "all", "FILE.py:METHOD"])  # fmt: skip
    return chosen


def _known(family: str, phase: Phase) -> dict[str, Method | Absent]:
    """Return a phase's methods by key, and what the family has no kernels for; none of either without any method."""
    known: dict[str, Method | Absent] = {item.key: item for item in registry.methods(family, phase)}
    return known | {item.key: item for item in registry.absent(family, phase)} if known else {}


def _plugin(family: str, phase: Phase | None, key: str) -> tuple[str, Method]:
    """Return the method of ``FILE.py:METHOD``, of whatever phase if None, and its key as cases have it."""
    path, _, name = key.rpartition(":")
    spec = f"{Path(path).resolve()}:{name}"  # a worker may be started from another folder
    return spec, registry.get_method(family, spec, phase or registry.load_method(spec).phase)


def _without_other_phases(family: str, phases: Sequence[Phase], keys: Sequence[str]) -> tuple[str, ...]:
    """Return the methods without those of other phases alone; all where none is left, so that an error names one."""
    both: tuple[Phase, ...] = ("decode", "verify")
    others = [phase for phase in both if phase not in phases]

    def elsewhere(key: str) -> bool:
        if is_plugin(key):
            return _plugin(family, None, key)[1].phase in others
        known, other = ({name for phase in some for name in _known(family, phase)} for some in (phases, others))
        return key in other - known  # what no phase knows is a mistake, and is said

    return tuple(key for key in keys if not elsewhere(key)) or tuple(keys)


def _split(cases: Iterable[tuple[Case, Method | Absent]]) -> tuple[list[Case], list[tuple[Case, str]]]:
    run: list[Case] = []
    skipped: list[tuple[Case, str]] = []
    for case, method in cases:
        reason = _unfit(case) or method.supports(case) or _no_tree(case, method)
        if reason:
            skipped.append((case, reason))
        else:
            run.append(case)
    return run, skipped


def _unfit(case: Case) -> str | None:
    """Return why no kernel can be asked to run the case, before its method is."""
    if case.window is not None and case.depth > case.window:
        what = "draft length T" if case.tree is None else "longest path of the tree"
        return f"{what} = {case.depth} does not fit in the window L = {case.window}"
    return None


def _no_tree(case: Case, method: Method | Absent) -> str | None:
    """Return that the method takes no tree where the case has one: of methods that do not say why themselves."""
    return "takes no draft tree" if case.tree is not None and not method.trees else None


def _check_drafts(family: str, spec: SweepSpec) -> None:
    """Refuse drafts that fit no window, before anything is said of methods; those without a window take any draft."""
    field, values = ("--tree", spec.trees) if spec.trees else ("--draft", tuple(map(str, spec.drafts)))
    depths = [Tree.parse(tree).depth for tree in spec.trees] or spec.drafts
    if min(depths) <= max(spec.windows):
        return
    known = _known(family, "verify")
    if all(key in known and not known[key].windowed for key in spec.methods):
        return
    windows = ",".join(map(str, spec.windows))
    what = "longest path" if spec.trees else "draft length T"
    raise InputError(f"{what} does not fit in any window of --window {windows}: "
                     f"{'it' if spec.trees else 'T'} must be at most L",
                     field=field, value=(";" if spec.trees else ",").join(values),
                     allowed=f"1..{max(spec.windows)}")  # fmt: skip


def _steps(spec: SweepSpec) -> list[tuple[int, str, str | None]]:
    """Return draft length, acceptance and tree of a sweep's groups, in order."""
    if spec.drafts == (1,) and spec.accepted is not None and not set(spec.accepted) <= {"1", "T"}:
        raise InputError("a decode step commits its one token; acceptance needs --draft above 1",
                         field="--accepted", value=",".join(spec.accepted))  # fmt: skip
    points = [(len(tree), tree.depth, str(tree)) for tree in map(Tree.parse, spec.trees)]
    points = points or [(draft_len, draft_len, None) for draft_len in spec.drafts]  # type: ignore[misc]
    depths = {depth for _, depth, _ in points}
    for text in spec.acceptances:
        if text.startswith("p:") and text.count(",") + 2 not in depths:
            resolve_acceptances((text,), max(depths))  # raises: as many rates as no T of the sweep has drafts
    return [(draft_len, acceptance, tree) for draft_len, depth, tree in points
            for acceptance in (resolve_acceptances(spec.acceptances, depth) if draft_len > 1 else ("1",))]  # fmt: skip


def build_groups(shape: Shape, spec: SweepSpec) -> list[Group]:
    """Return the groups of a sweep over one layer shape, in the order in which they run.

    A group for each draft length or tree, acceptance, dtype and batch. In it: each method without a window once, each
    windowed method at every window. With ``self_check`` the control is there twice, under the names A and B. A sweep
    of verify steps alone starts with groups of one conventional decode step, the unit of ``conventional_steps``.
    Points that cannot run are kept with their reason.

    Methods that a preset names are left out where no draft that a flag names has them; a user's own are refused.

    Raises:
        InputError: an unknown method or acceptance, no draft that fits a window, or not a point that can run.
    """
    wanted: dict[Phase, bool] = {"decode": 1 in spec.drafts, "verify": max(spec.drafts) > 1}
    phases = [phase for phase in wanted if wanted[phase]]
    if spec.methods_of_preset:
        spec = replace(spec, methods=_without_other_phases(shape.family, phases, spec.methods))
    _check_drafts(shape.family, spec)
    methods = select_methods(shape.family, phases, spec.methods)
    units = {m.key: m for m in registry.methods(shape.family, "decode") if m.key == CONTROL["decode"]}
    groups: list[Group] = []
    if "decode" not in phases and units:
        unit = replace(spec, flush_phase="aligned", self_check=False)
        groups += _groups(shape, unit, 1, "1", None, units)
    for draft_len, acceptance, tree in _steps(spec):
        groups += _groups(shape, spec, draft_len, acceptance, tree, methods["decode" if draft_len == 1 else "verify"])
    return _some_can_run(groups)


def _groups(
    shape: Shape,
    spec: SweepSpec,
    draft_len: int,
    acceptance: str,
    tree: str | None,
    methods: Mapping[str, Method | Absent],
) -> Iterable[Group]:
    """Yield a group for each dtype and batch."""
    for state_dtype in spec.state_dtypes:
        for input_dtype in spec.input_dtypes:
            for batch in spec.batches:
                base = Case(shape=shape, method="", batch=batch, draft_len=draft_len, acceptance=acceptance, tree=tree,
                            flush_phase=spec.flush_phase, input_dtype=input_dtype, state_dtype=state_dtype,
                            n_layers=spec.n_layers)  # fmt: skip
                run, skipped = _split(_points(base, methods, spec, CONTROL[base.phase]))
                yield Group(base.group_id, tuple(run), tuple(skipped))


def _is_unit(group: Group) -> bool:
    """Say whether a group is one conventional decode step and nothing beside it."""
    keys = [(case.phase, case.method) for case in (*group.cases, *(case for case, _ in group.skipped))]
    return keys == [("decode", CONTROL["decode"])]


def _some_can_run(groups: list[Group]) -> list[Group]:
    # The unit of a verify sweep is no reason to run it.
    asked = [group for group in groups if not _is_unit(group)] or groups
    if not any(group.cases for group in asked):
        case, reason = asked[0].skipped[0]
        raise InputError(f"no point of this sweep can run: {label(case)}: {reason}")
    return groups


def _points(
    base: Case, methods: Mapping[str, Method | Absent], spec: SweepSpec, control: str
) -> Iterable[tuple[Case, Method | Absent]]:
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
    usable = usable_bytes(gpu)
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
