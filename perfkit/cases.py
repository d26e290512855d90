"""Presets and flags become ordered groups of cases: the points of a sweep, and why some of them are skipped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from perfkit import registry
from perfkit.errors import InputError
from perfkit.method import Case, Method
from perfkit.shape import DTYPE_BYTES, Shape, dtype_name

SWEEPS = Path(__file__).parent / "profiles" / "sweeps"
MAX_ITEMS = 100_000
FLUSH_PHASES = ("aligned", "staggered")
STATE_DTYPES = ("float32", "float16", "bfloat16")
#: The method that speedups are against, by phase.
CONTROL = {"decode": "conventional", "verify": "snapshot"}

_RANGE = re.compile(r"^(\d+)\.\.(\d+)(?::([+x])(\d+))?$")


def parse_ints(text: str, *, field: str, minimum: int = 1, file: str | Path | None = None) -> tuple[int, ...]:
    """Return the whole numbers of a list such as ``1,8,64``, ``1..512:x2`` or ``2..6:+2,16``, in order, each once.

    ``A..B`` steps by one, ``A..B:+K`` by K, ``A..B:xK`` multiplies by K; B is included only if a step hits it.

    Raises:
        InputError: names the flag and the item that is not a number or a range, or is below ``minimum``.
    """

    def bad(message: str, item: str) -> InputError:
        return InputError(message, file=file, field=field, value=item)

    values: dict[int, None] = {}
    for item in (part.strip() for part in text.split(",")):
        match = _RANGE.match(item)
        if item.isdecimal():
            first, last, by, step = int(item), int(item), "+", 1
        elif match:
            first, last, by = int(match[1]), int(match[2]), match[3] or "+"
            step = int(match[4] or 1)
        else:
            raise bad("not a whole number or a range such as 1..512:x2 or 8..64:+8", item)
        if first < minimum:
            raise bad(f"must be at least {minimum}", item)
        if last < first:
            raise bad("the range ends before it starts", item)
        if step < (2 if by == "x" else 1):
            raise bad("a range must step by +1 or x2 at least", item)
        if by == "+" and (last - first) // step >= MAX_ITEMS:
            raise bad(f"more than {MAX_ITEMS} values", item)
        while first <= last:
            values[first] = None
            first = first + step if by == "+" else first * step
    return tuple(values)


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """The axes of a sweep, parsed and validated; a group for each combination, its methods and windows inside."""

    batches: tuple[int, ...]
    windows: tuple[int, ...]
    drafts: tuple[int, ...] = (1,)
    methods: tuple[str, ...] = ("all",)
    accepted: str | None = None
    flush_phase: str = "aligned"
    input_dtypes: tuple[str, ...] = ("bfloat16",)
    state_dtypes: tuple[str, ...] = ("float32",)
    n_layers: int = 1
    self_check: bool = False


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


# -- presets ---------------------------------------------------------------------------------------------------------

_PRESET_FIELDS = ("description", "batches", "windows", "drafts", "methods", "accepted", "flush_phase", "input_dtypes",
                  "state_dtypes", "layers")  # fmt: skip


def list_presets() -> list[str]:
    """Return the names of the shipped presets."""
    return sorted(path.stem for path in SWEEPS.glob("*.yaml"))


def load_preset(name_or_path: str) -> dict[str, str]:
    """Return a preset's fields as the text that the flags of the same name take.

    Args:
        name_or_path: a shipped preset, or the path of a YAML file.

    Raises:
        InputError: no such preset, not YAML, an unknown or missing field, or a value of the wrong kind.
    """
    import yaml

    path = SWEEPS / f"{name_or_path}.yaml"
    if name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
    if not path.is_file():
        raise InputError("no such preset", field="--preset", value=name_or_path,
                         allowed=[*list_presets(), "FILE.yaml"])  # fmt: skip
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"not readable YAML: {error}", file=path) from error
    if not isinstance(data, dict):
        raise InputError("must be a mapping of fields", file=path, value=type(data).__name__, allowed=_PRESET_FIELDS)
    texts: dict[str, str] = {}
    for name, value in data.items():
        if name not in _PRESET_FIELDS:
            raise InputError("unknown field", file=path, field=str(name), allowed=_PRESET_FIELDS)
        items = value if isinstance(value, list) else [value]
        if not items or any(isinstance(item, bool) or not isinstance(item, (int, float, str)) for item in items):
            raise InputError("must be a number, a text or a list of them", file=path, field=name, value=value)
        texts[name] = ",".join(str(item) for item in items)
    for name in ("batches", "windows"):
        if name not in texts:
            raise InputError("is missing", file=path, field=name)
    for name, minimum in (("batches", 1), ("windows", 1), ("drafts", 1), ("layers", 1)):
        if name in texts:
            parse_ints(texts[name], field=name, minimum=minimum, file=path)
    return texts


# -- flags -----------------------------------------------------------------------------------------------------------


def _dtypes(text: str, field: str, allowed: Sequence[str]) -> tuple[str, ...]:
    names = (dtype_name(part, field=field, allowed=tuple(allowed)) for part in text.split(","))
    return tuple(dict.fromkeys(names))


def parse_spec(
    *,
    preset: str = "default",
    batch: str | None = None,
    window: str | None = None,
    draft: str | None = None,
    method: str | None = None,
    accepted: str | None = None,
    flush_phase: str | None = None,
    input_dtype: str | None = None,
    state_dtype: str | None = None,
    layers: int | None = None,
    self_check: bool = False,
    model_state_dtype: str = "float32",
) -> SweepSpec:
    """Return the axes of a sweep: the preset's, each replaced by its flag where one is given.

    The state's dtype is the model's where neither says one.

    Raises:
        InputError: names the flag (or the preset's field), the item and what is allowed.
    """
    base = load_preset(preset)
    phase = flush_phase or base.get("flush_phase", "aligned")
    if phase not in FLUSH_PHASES:
        raise InputError("unknown flush phase", field="--flush-phase", value=phase, allowed=FLUSH_PHASES)
    n_layers = layers if layers is not None else int(base.get("layers", 1))
    if n_layers < 1:
        raise InputError("must be at least 1", field="--layers", value=n_layers)
    methods = tuple(dict.fromkeys(part.strip() for part in (method or base.get("methods", "all")).split(",")))
    return SweepSpec(
        batches=parse_ints(batch or base["batches"], field="--batch"),
        windows=parse_ints(window or base["windows"], field="--window"),
        drafts=parse_ints(draft or base.get("drafts", "1"), field="--draft"),
        methods=methods,
        accepted=accepted or base.get("accepted"),
        flush_phase=phase,
        input_dtypes=_dtypes(input_dtype or base.get("input_dtypes", "bfloat16"), "--input-dtype", STATE_DTYPES),
        state_dtypes=_dtypes(state_dtype or base.get("state_dtypes", model_state_dtype), "--state-dtype",
                             tuple(name for name in DTYPE_BYTES if name.startswith(("float", "bfloat")))),
        n_layers=n_layers,
        self_check=self_check,
    )  # fmt: skip


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


def build_groups(shape: Shape, spec: SweepSpec) -> list[Group]:
    """Return the groups of a sweep over one layer shape, in the order in which they run.

    In a group: each method without a window once, each windowed method at every window. With ``self_check`` the
    control is there twice, under the names A and B. Points that cannot run are kept with their reason.

    Raises:
        InputError: an unknown method or acceptance, or not a single point that can run.
    """
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


def spec_dict(spec: SweepSpec) -> dict[str, Any]:
    """Return the axes as plain JSON data, for the manifest."""
    return {item.name: _plain(getattr(spec, item.name)) for item in fields(spec)}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
