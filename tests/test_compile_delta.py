"""The kernels of the delta rule, compiled for GPUs that are not here, by both supported Triton versions: no spills.

Child processes compile (this one interprets), at the shapes of the paper's Qwen3.5 models and of Kimi-Linear. Every
configuration that the tuner may choose is compiled for compute capability 9.0. For 8.0, 10.0, 10.3 and 12.0 it is the
one that the tuner would start from there: the first that spills nothing.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest
from compilehelp import OLD, PINNED, check_limits, compiled

from perfkit.compile import TARGETS, Compiled, assert_no_spills
from perfkit.method import Case
from perfkit.profiles import load_model
from perfkit.registry import get_method, methods
from perfkit.tree import Tree

SHAPES = {key: load_model(key).shape for key in ("qwen3.5-4b", "qwen3.5-122b", "kimi-linear-48b-a3b")}
EACH = ("qwen3.5-4b", "kimi-linear-48b-a3b")
#: Drafts of a verify step that branch: eight nodes.
TREE = "0,0,1,1,2,2,3"
OTHERS = tuple(cc for cc in TARGETS if cc != 90)


@dataclass(frozen=True)
class Part:
    """What one request compiles; batches 1 and 256, which may have different configurations."""

    triton: str
    targets: tuple[int, ...]
    configs: str
    models: tuple[str, ...]
    drafts: tuple[int | str, ...]  # T, or a tree's parents for methods that take trees
    windows: tuple[int, ...] = (16,)  # of replay; those beyond its longest are left out


#: The model of each family whose programs may take most heads: its configurations are all there are.
ALL = ("qwen3.5-122b", "kimi-linear-48b-a3b")
#: The shapes of Gated DeltaNet differ in nothing but heads, so each part has one of each family.
PARTS = {
    "decode": Part(PINNED, (90,), "all", ALL, (1,)),
    "decode, other GPUs": Part(PINNED, OTHERS, "usable", EACH, (1,)),
    "decode, old Triton": Part(OLD, TARGETS, "usable", EACH, (1,)),
    "decode, other windows": Part(PINNED, (90,), "default", EACH, (1,), (32, 64, 128)),
    "verify": Part(PINNED, (90,), "all", ALL, (4, TREE)),
    "verify, most drafts": Part(PINNED, (90,), "usable", EACH, (16,)),
    "verify, other GPUs": Part(PINNED, OTHERS, "usable", EACH, (4, TREE)),
    "verify, old Triton": Part(OLD, TARGETS, "usable", EACH, (4,)),
}
POINTS = [
    (part, model, method.key)
    for part, of in PARTS.items()
    for model in of.models
    for method in methods(SHAPES[model].family, "decode" if of.drafts == (1,) else "verify")
    if method.windowed or of.windows == (16,)
]


def cases(part: str, model: str, key: str) -> list[Case]:
    found = []
    for draft in PARTS[part].drafts:
        tree = draft if isinstance(draft, str) else None
        draft_len = draft if isinstance(draft, int) else len(Tree.parse(draft))
        method = get_method(SHAPES[model].family, key, "decode" if draft_len == 1 else "verify")
        if tree is None or method.trees:
            windows = PARTS[part].windows if method.windowed else (None,)
            points = [Case(SHAPES[model], key, batch, window, draft_len, tree=tree)
                      for window in windows for batch in (1, 256)]  # fmt: skip
            found += [case for case in points if method.supports(case) is None]
    return found


@functools.cache
def kernels(part: str, model: str, key: str) -> list[tuple[Compiled, str]]:
    of = PARTS[part]
    found = compiled(of.triton, cases(part, model, key), of.targets, of.configs)
    return [item for case in found.values() for item in case]


@pytest.mark.parametrize(("part", "model", "key"), POINTS)
def test_no_spills(part: str, model: str, key: str) -> None:
    of, found = PARTS[part], kernels(part, model, key)
    assert {item.cc for item, _ in found} == set(of.targets)
    assert_no_spills(item for item, _ in found)
    for item, _ in found:
        check_limits(item)
        assert of.triton in (PINNED, item.triton)


@pytest.mark.parametrize("part", ["decode", "verify"])
@pytest.mark.parametrize("model", ALL)
def test_every_configuration_of_the_tuner_is_compiled(part: str, model: str) -> None:
    for method in methods(SHAPES[model].family, part):
        wanted = {str(config) for case in cases(part, model, method.key) for config in method.configs(case)}
        assert {config for _, config in kernels(part, model, method.key)} == wanted


@pytest.mark.parametrize("phase", ["decode", "verify"])
@pytest.mark.parametrize("version", [PINNED, OLD])
def test_targets_are_all_covered(version: str, phase: str) -> None:
    parts = [part for name, part in PARTS.items() if part.triton == version and name.startswith(phase)]
    assert {cc for part in parts for cc in part.targets} == set(TARGETS)
