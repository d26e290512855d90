"""What is compiled for GPUs that are not here: by tests, which look for spills, and by ``make compiled``, to ship it.

A kernel takes a second or two, so a part holds what can fail by itself and no more. Everything that the tuner may
choose is compiled for compute capability 9.0, at batches 1 and 256, whose configurations differ. For the other GPUs it
is one shape of each method, at batch 256; with the older Triton, which GPU machines run, defaults for 9.0, and what the
tuner chose there for each row of the measurements that ship.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from perfkit.compile import TARGETS
from perfkit.method import Case, Method, Phase
from perfkit.profiles import load_model
from perfkit.profiles.measured import COUNTERS_SUFFIX, MEASURED
from perfkit.registry import methods
from perfkit.samples import compile_cases
from perfkit.shape import Shape
from perfkit.tree import Tree

PINNED, OLD = "pinned", "3.6.0"
OTHERS = tuple(cc for cc in TARGETS if cc != 90)
#: Where rows of measurements that ship lie, times and sweeps over the window.
SHIPPED_ROWS = (MEASURED, MEASURED.parent / "windows")
#: Drafts of a verify step that branch: eight nodes.
TREE = "0,0,1,1,2,2,3"

SUPER, QWEN, LARGE_QWEN, KIMI = "nemotron-super", "qwen3.5-4b", "qwen3.5-122b", "kimi-linear-48b-a3b"
MAMBA2 = (SUPER, "nemotron-nano")
#: Shapes of Gated DeltaNet differ in nothing but heads: one each family.
DELTA = (QWEN, KIMI)
#: The same where all configurations count: programs of the larger model may take most heads.
DELTA_ALL = (LARGE_QWEN, KIMI)


@dataclass(frozen=True)
class Part:
    """What is compiled for a reason of its own; ``configs`` as in a worker's request: default, all or usable."""

    triton: str
    targets: tuple[int, ...]
    configs: str
    models: tuple[str, ...]
    #: T, or a tree's parents for methods that take trees.
    drafts: tuple[int | str, ...] = (1,)
    #: Of methods with a replay buffer; those beyond a method's longest are left out.
    windows: tuple[int, ...] = (16,)
    keys: tuple[str, ...] | None = None
    batches: tuple[int, ...] = (1, 256)

    @property
    def phase(self) -> Phase:
        return "decode" if self.drafts == (1,) else "verify"


#: Kernels of Mamba-2 spill in no default, but for what tests list; those of the delta rule may have a default that
#: spills on a GPU, where the tuner takes the first that does not. Left out are draft counts that change little (most
#: kernels take T at run time; replay holds up to 8 drafts as 8, and its registers are the same at T = 2, 4 and 8), so
#: windows other than 16 have T = 4, and 16 where it fits.
PARTS = {
    "decode": Part(PINNED, (90,), "all", MAMBA2 + DELTA_ALL),
    "decode, other windows": Part(PINNED, (90,), "default", MAMBA2, windows=(8, 32)),
    "decode, longer windows": Part(PINNED, (90,), "default", DELTA, windows=(32, 64, 128)),
    "decode, other GPUs": Part(PINNED, OTHERS, "default", (SUPER,), batches=(256,)),
    "decode, other GPUs, delta rule": Part(PINNED, OTHERS, "usable", DELTA, batches=(256,)),
    "decode, old Triton": Part(OLD, (90,), "default", MAMBA2),
    "decode, old Triton, delta rule": Part(OLD, (90,), "usable", DELTA),
    "verify": Part(PINNED, (90,), "all", MAMBA2, (4, 8, TREE)),
    "verify, delta rule": Part(PINNED, (90,), "all", DELTA_ALL, (4, TREE)),
    "verify, two drafts": Part(PINNED, (90,), "default", MAMBA2, (2,), keys=("activation_replay", "stree")),
    "verify, most drafts": Part(PINNED, (90,), "default", MAMBA2, (16,)),
    "verify, most drafts, delta rule": Part(PINNED, (90,), "usable", DELTA, (16,)),
    "verify, other windows": Part(PINNED, (90,), "default", MAMBA2, (4,), (8, 32, 64)),
    "verify, most drafts, other windows": Part(PINNED, (90,), "default", MAMBA2, (16,), (32, 64)),
    "verify, other GPUs": Part(PINNED, OTHERS, "default", (SUPER,), (4, TREE), batches=(256,)),
    "verify, other GPUs, delta rule": Part(PINNED, OTHERS, "usable", DELTA, (4, TREE), batches=(256,)),
    "verify, old Triton": Part(OLD, (90,), "default", MAMBA2, (4, TREE)),
    "verify, old Triton, delta rule": Part(OLD, (90,), "usable", DELTA, (4,)),
}
#: All configurations, for GPUs on which a default spills; 10.3 compiles almost as 10.0 does.
FALLBACKS = "verify, fallbacks"
PARTS[FALLBACKS] = Part(PINNED, (100, 120), "all", (SUPER,), (4,), keys=("replay",), batches=(256,))


@functools.cache
def shape_of(model: str) -> Shape:
    return load_model(model).shape


@functools.cache
def cases(part: str, model: str, key: str) -> tuple[Case, ...]:
    """The cases of one method in a part: none if it takes no trees, or has no window, and the part is of those."""
    of, shape = PARTS[part], shape_of(model)
    method = next(method for method in methods(shape.family, of.phase) if method.key == key)
    windows = of.windows if method.windowed else (None,) if of.windows == (16,) else ()
    points = [Case(shape, key, batch, window, _length(draft), tree=draft if isinstance(draft, str) else None)
              for draft in of.drafts for window in windows for batch in of.batches]  # fmt: skip
    return tuple(case for case in points if method.supports(case) is None)


def _length(draft: int | str) -> int:
    return draft if isinstance(draft, int) else len(Tree.parse(draft))


def methods_of(part: str, model: str) -> list[Method]:
    of = PARTS[part]
    found = [method for method in methods(shape_of(model).family, of.phase) if of.keys is None or method.key in of.keys]
    return [method for method in found if cases(part, model, method.key)]


#: Every (part, model, method key).
POINTS = tuple((part, model, method.key) for part, of in PARTS.items() for model in of.models
               for method in methods_of(part, model))  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What one request to a compiling worker asks for; ``configs`` as in a part, or by name, those of each case."""

    triton: str
    name: str
    cases: tuple[Case, ...]
    targets: tuple[int, ...]
    configs: str | tuple[tuple[str, ...], ...]


def point(part: str, model: str, key: str) -> Asked:
    of = PARTS[part]
    return Asked(of.triton, f"{part}: {model} {key}", cases(part, model, key), of.targets, of.configs)


@dataclass(frozen=True)
class Timed:
    """A row of the measurements that ship: its file and model, what was timed, and with which launch configuration."""

    file: str
    model: str
    case: Case
    config: str

    @property
    def name(self) -> str:
        return f"{self.model} {self.case.method} {self.case.phase}"

    def __str__(self) -> str:
        case = self.case
        window, tree = f" L{case.window}" if case.window else "", f" tree {case.tree}" if case.tree else ""
        return (f"{self.file}: {case.id} ({case.method} B{case.batch}{window} T{case.draft_len}{tree} "
                f"a={case.acceptance}): {self.config}")  # fmt: skip


@functools.cache
def timed(directories: tuple[Path, ...] = SHIPPED_ROWS) -> tuple[Timed, ...]:
    """Every row that has a time and says with which launch configuration."""
    from perfkit.refit import case_of
    from perfkit.results import load_run, plain_rows

    files = [path for directory in directories for path in sorted(directory.glob("*.csv"))]
    return tuple(Timed(f"{path.parent.name}/{path.name}", row["model"], case_of(row), row["launch_config"])
                 for path in files if not path.stem.endswith(COUNTERS_SUFFIX) for row in plain_rows(load_run(path))
                 if row["status"] == "ok" and row["launch_config"])  # fmt: skip


def offered(case: Case) -> tuple[str, ...]:
    """The launch configurations that a case's method offers there; none if there is no such method."""
    known = [method for method in methods(case.shape.family, case.phase) if method.key == case.method]
    return tuple(str(config) for method in known for config in method.configs(case))


def tuned(rows: Iterable[Timed]) -> Mapping[str, Asked]:
    """What compiles the rows' configurations, by name of the model, method and phase.

    A case is compiled as it is tuned: once for all acceptances and flush phases of a verify step, which run the same
    kernels. What is not offered any more is left out.
    """
    found: dict[str, dict[Case, dict[str, None]]] = {}
    for row in rows:
        if row.config in offered(row.case):
            found.setdefault(row.name, {}).setdefault(as_tuned(row.case), {})[row.config] = None
    return {name: Asked(OLD, f"tuned: {name}", tuple(configs), (90,), tuple(map(tuple, configs.values())))
            for name, configs in found.items()}  # fmt: skip


def as_tuned(case: Case) -> Case:
    """The case without what does not change which kernels run, as the tuner has it."""
    options = tuple(pair for pair in case.options if pair[0] != "alias")
    if case.phase == "decode":
        return replace(case, options=options)
    return replace(case, options=options, acceptance="1", flush_phase="aligned")


def shipped() -> Iterator[Asked]:
    """All that ships: the parts, what the tuner chose for rows that ship, and what ``perfkit check`` compiles."""
    from perfkit.cli.check_run import DEFAULT_MODELS

    yield from (point(*names) for names in POINTS)
    yield from tuned(timed()).values()
    for family, model in DEFAULT_MODELS.items():
        for method in methods(family):
            found = tuple(compile_cases(method, shape_of(model)))
            if found:
                yield Asked(PINNED, f"check: {model} {method.key} {method.phase}", found, TARGETS, "usable")
