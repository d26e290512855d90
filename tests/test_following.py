"""Launches that follow each other closely: what they are told for a target, on a CPU, and where they take no part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from perfkit import registry
from perfkit.kernels import targets
from perfkit.kernels.following import close_pair
from perfkit.kernels.targets import capability, compiled_for
from perfkit.method import Case, Launch, Method
from perfkit.session import Session
from perfkit.shape import Shape
from perfkit.spec import specs

METHODS = [method for method in registry.methods() if method.key == "replay"]
#: Those whose second launch follows the first.
PAIRS = {("gdn", "decode"), ("gdn", "verify"), ("kda", "decode"), ("kda", "verify")}
TOLD = ("FOLLOWED", "FOLLOWS")


def name_of(method: Method) -> str:
    return f"{method.family}-{method.phase}"


def case_of(method: Method, batch: int = 1) -> Case:
    shape = Shape(method.family, 1, 1, 16, 16)
    return Case(shape, method.key, batch, 4, 1 if method.phase == "decode" else 3, input_dtype="float32")


def launches(method: Method) -> list[Launch]:
    """A step's launches, of tensors without data."""
    case = case_of(method)
    family = registry.family(method.family)
    return list(method.launches(case, method.configs(case)[0], specs(case, method, family), 0))


def told(launch: Launch) -> dict[str, Any]:
    return {name: launch.constexprs[name] for name in TOLD if name in launch.constexprs}


def pair(**config: int) -> tuple[Launch, Launch]:
    first = Launch("first", (3,), (1, 2), {"T": 4}, {"num_warps": 1})
    second = Launch("second", (5,), (3,), {"T": 4}, {"num_warps": 2, **config})
    return first, second


@pytest.mark.parametrize("method", METHODS, ids=name_of)
@pytest.mark.parametrize("target", [80, 86, 89, 90, 100, 120])
def test_launches_are_told_what_a_target_can_do(method: Method, target: int) -> None:
    can = target >= 90
    own = launches(method)
    for launch in own:
        found = compiled_for(launch, target)
        assert told(found) == dict.fromkeys(told(launch), can)
        assert (found.config.get("launch_pdl") is True) == (can and "FOLLOWS" in told(launch))
        assert can or "launch_pdl" not in found.config
        assert compiled_for(found, 80) == compiled_for(launch, 80)  # and back
    if (method.family, method.phase) in PAIRS:
        assert [set(told(launch)) for launch in own] == [{"FOLLOWED"}, {"FOLLOWS"}]


@pytest.mark.parametrize(
    "method", [one for one in METHODS if one.trees and (one.family, one.phase) in PAIRS], ids=name_of
)
def test_the_gather_of_a_tree_is_not_followed(method: Method) -> None:
    """Three launches; the fold reads what the gather wrote, so it waits for it as for any other kernel."""
    case = replace(case_of(method), draft_len=4, tree="0,0,1", window=6)
    own = list(method.launches(case, method.configs(case)[0], specs(case, method, registry.family(method.family)), 0))
    found = [compiled_for(launch, 90) for launch in own]
    assert [told(launch) for launch in found] == [{}, {"FOLLOWED": True}, {"FOLLOWS": True}]
    assert ["launch_pdl" in launch.config for launch in found] == [False, False, True]
    assert found[0] is own[0]


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_on_a_cpu_nothing_follows(method: Method) -> None:
    session = Session(case_of(method, 2), "cpu")
    for launch in (*method.launches(session.case, session.config, session.tensors, 0), *launches(method)):
        assert not any(told(launch).values()) and "launch_pdl" not in launch.config


def test_other_launches_are_returned_as_they_are() -> None:
    first, _ = pair()
    for target in (80, 90, 120):
        assert compiled_for(first, target) is first


def test_a_pair_keeps_the_rest() -> None:
    first, second = pair(maxnreg=168)
    one, two = close_pair(first, second, 90)
    assert (one.constexprs, one.config) == ({"T": 4, "FOLLOWED": True}, {"num_warps": 1})
    assert two.constexprs == {"T": 4, "FOLLOWS": True}
    assert two.config == {"num_warps": 2, "maxnreg": 168, "launch_pdl": True}
    assert (one.kernel, one.grid, one.args) == ("first", (3,), (1, 2))
    assert (two.kernel, two.grid, two.args) == ("second", (5,), (3,))
    for cc in (0, 89):
        one, two = close_pair(one, two, cc)
        assert (one.constexprs["FOLLOWED"], two.constexprs["FOLLOWS"]) == (False, False)
        assert two.config == {"num_warps": 2, "maxnreg": 168}
    assert second.config == {"num_warps": 2, "maxnreg": 168}  # what was given has not changed


@pytest.mark.parametrize(("cc", "apart"), [(80, True), (90, True), (100, False), (103, False), (120, True)])
def test_a_fold_is_a_function_where_its_products_may_be_in_one(cc: int, apart: bool) -> None:
    launch = Launch("fold", (3,), (), {"APART": not apart}, {"num_warps": 4})
    found = compiled_for(launch, cc)
    assert (found.constexprs, found.config) == ({"APART": apart}, {"num_warps": 4})


def test_devices_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is asked for its compute capability, once; a CPU, and tensors without data, never."""
    asked: list[str] = []

    def answer(device: str) -> tuple[int, int]:
        asked.append(device)
        return {"cuda:0": (8, 9), "cuda:1": (9, 0), "cuda:2": (12, 0)}[device]

    class On:
        def __init__(self, device: str) -> None:
            self.device = device

    monkeypatch.setattr(torch.cuda, "get_device_capability", answer)
    targets._capability.cache_clear()
    try:
        assert [capability({"state": On(f"cuda:{index % 3}")}) for index in range(6)] == [89, 90, 120] * 2
        assert capability({"state": torch.zeros(1)}) == capability({"state": None}) == 0
        assert asked == ["cuda:0", "cuda:1", "cuda:2"]
    finally:
        targets._capability.cache_clear()
