"""The axes of a sweep: lists and ranges as people type them, presets in YAML, flags over presets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfkit.errors import InputError
from perfkit.roofline.acceptance import DEFAULT_ACCEPTANCES, acceptance_list
from perfkit.shape import dtype_name
from perfkit.tree import Tree

SWEEPS = Path(__file__).parent / "profiles" / "sweeps"
MAX_ITEMS = 100_000
#: Largest number that a flag takes; bytes of such a batch still fit into 64 bits.
MAX_VALUE = 2**31 - 1
FLUSH_PHASES = ("aligned", "staggered")
#: What kernels take, as inputs and as states.
DTYPES = ("float32", "float16", "bfloat16")

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
        if last > MAX_VALUE:
            raise bad(f"must be at most {MAX_VALUE}", item)
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
    """The axes of a sweep, parsed and validated; a group for each combination, its methods and windows inside.

    ``accepted`` are acceptances of verify steps as people write them, ``T-1`` among them; None where nobody said any.
    ``trees`` are draft trees (:class:`perfkit.tree.Tree`, as text); with them ``drafts`` are their nodes.
    ``methods_of_preset``: a preset named the methods and a flag the drafts, which not every one of them has to fit.
    """

    batches: tuple[int, ...]
    windows: tuple[int, ...]
    drafts: tuple[int, ...] = (1,)
    methods: tuple[str, ...] = ("all",)
    accepted: tuple[str, ...] | None = None
    trees: tuple[str, ...] = ()
    flush_phase: str = "aligned"
    input_dtypes: tuple[str, ...] = ("bfloat16",)
    state_dtypes: tuple[str, ...] = ("float32",)
    n_layers: int = 1
    self_check: bool = False
    methods_of_preset: bool = False

    @property
    def acceptances(self) -> tuple[str, ...]:
        """The acceptances of its verify steps."""
        return self.accepted or DEFAULT_ACCEPTANCES


_PRESET_FIELDS = ("description", "batches", "windows", "drafts", "methods", "accepted", "trees", "flush_phase",
                  "input_dtypes", "state_dtypes", "layers")  # fmt: skip


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
    from perfkit.profiles.yamlfile import read_yaml

    path = SWEEPS / f"{name_or_path}.yaml"
    if name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
    if not path.is_file():
        raise InputError("no such preset", field="--preset", value=name_or_path,
                         allowed=[*list_presets(), "FILE.yaml"])  # fmt: skip
    data = read_yaml(path)
    texts: dict[str, str] = {}
    for name, value in data.items():
        if name not in _PRESET_FIELDS:
            raise InputError("unknown field", file=path, field=str(name), allowed=_PRESET_FIELDS)
        items = value if isinstance(value, list) else [value]
        if not items or any(isinstance(item, bool) or not isinstance(item, (int, float, str)) for item in items):
            raise InputError("must be a number, a text or a list of them", file=path, field=name, value=value)
        # Trees and rates contain commas.
        texts[name] = (";" if name in ("accepted", "trees") and len(items) > 1 else ",").join(map(str, items))
    for name in ("batches", "windows"):
        if name not in texts:
            raise InputError("is missing", file=path, field=name)
    for name, minimum in (("batches", 1), ("windows", 1), ("drafts", 1), ("layers", 1)):
        if name in texts:
            parse_ints(texts[name], field=name, minimum=minimum, file=path)
    return texts


def parse_trees(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the draft trees of ``--tree``, each once: one a text, or several with ``;`` between them.

    Raises:
        InputError: see :meth:`perfkit.tree.Tree.parse`.
    """
    return tuple(dict.fromkeys(str(Tree.parse(part)) for text in texts for part in text.split(";")))


def _drafts(text: str, trees: tuple[str, ...], given: bool) -> tuple[int, ...]:
    """Return the draft lengths; with trees their nodes, which a ``--draft`` beside them must agree with."""
    drafts = parse_ints(text, field="--draft")
    if not trees:
        return drafts
    nodes = tuple(dict.fromkeys(len(Tree.parse(tree)) for tree in trees))
    if given and set(drafts) != set(nodes):
        raise InputError("a tree has as many positions as nodes, the root included; leave this out beside --tree",
                         field="--draft", value=text, allowed=",".join(map(str, nodes)))  # fmt: skip
    return nodes


def _dtypes(text: str, field: str) -> tuple[str, ...]:
    names = (dtype_name(part, field=field, allowed=DTYPES) for part in text.split(","))
    return tuple(dict.fromkeys(names))


def parse_spec(
    *,
    preset: str = "default",
    batch: str | None = None,
    window: str | None = None,
    draft: str | None = None,
    method: str | None = None,
    accepted: str | None = None,
    tree: Sequence[str] = (),
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
    trees = parse_trees(tree or ([base["trees"]] if "trees" in base and draft is None else ()))
    drafts = _drafts(draft or base.get("drafts", "1"), trees, draft is not None)
    if accepted is None and drafts != (1,):  # a preset's is about verify steps
        accepted = base.get("accepted")
    return SweepSpec(
        batches=parse_ints(batch or base["batches"], field="--batch"),
        windows=parse_ints(window or base["windows"], field="--window"),
        drafts=drafts,
        methods=methods,
        accepted=acceptance_list(accepted) if accepted is not None else None,
        trees=trees,
        flush_phase=phase,
        input_dtypes=_dtypes(input_dtype or base.get("input_dtypes", "bfloat16"), "--input-dtype"),
        state_dtypes=_dtypes(state_dtype or base.get("state_dtypes", model_state_dtype), "--state-dtype"),
        n_layers=n_layers,
        self_check=self_check,
        methods_of_preset=method is None and (draft is not None or bool(tree)),
    )  # fmt: skip
