"""What is compiled for GPUs that are not here: by tests, which look for spills, and by ``make compiled``, to ship it.

A kernel takes a second or two, so a part holds what can fail by itself and no more. Everything that the tuner may
choose is compiled for compute capability 9.0, at batches 1 and 256, whose configurations differ. For the other GPUs it
is one shape of each method, at batch 256; with the older Triton, which GPU machines run, defaults for 9.0.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from perfkit.compile import TARGETS
from perfkit.method import Case, Method, Phase
from perfkit.profiles import load_model
from perfkit.registry import methods
from perfkit.samples import compile_cases
from perfkit.shape import Shape
from perfkit.tree import Tree

PINNED, OLD = "pinned", "3.6.0"
OTHERS = tuple(cc for cc in TARGETS if cc != 90)
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
    """What one request to a compiling worker asks for."""

    triton: str
    name: str
    cases: tuple[Case, ...]
    targets: tuple[int, ...]
    configs: str


def point(part: str, model: str, key: str) -> Asked:
    of = PARTS[part]
    return Asked(of.triton, f"{part}: {model} {key}", cases(part, model, key), of.targets, of.configs)


def shipped() -> Iterator[Asked]:
    """All that ships: the parts, and what ``perfkit check`` compiles."""
    from perfkit.cli.check_run import DEFAULT_MODELS

    yield from (point(*names) for names in POINTS)
    for family, model in DEFAULT_MODELS.items():
        for method in methods(family):
            found = tuple(compile_cases(method, shape_of(model)))
            if found:
                yield Asked(PINNED, f"check: {model} {method.key} {method.phase}", found, TARGETS, "usable")
