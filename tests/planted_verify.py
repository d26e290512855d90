"""Verify methods that are wrong, each in one way; ``FILE.py:NAME`` loads them, and checks must catch every one.

What a fault needs is computed by torch on the device, in launches of its own: they can be captured in a graph, and the
bytes that the kernels touch stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from perfkit.kernels.mamba2.fused_recovery_verify import FusedRecoveryVerify
from perfkit.kernels.mamba2.joint_attainment_verify import JointAttainmentVerify
from perfkit.kernels.mamba2.reference import PAST, packed_inputs
from perfkit.kernels.mamba2.replay_verify import ReplayVerify
from perfkit.kernels.mamba2.snapshot_verify import SnapshotVerify
from perfkit.kernels.mamba2.stree_verify import StreeVerify
from perfkit.method import Buffer, Case, Config, Launch, Method, Number, Point, Step
from perfkit.shape import Shape

Tensors = Mapping[str, Any]
#: The tree of the cases that have one.
TREE = "0,0,1,1"


def call(function: Any, *args: Any) -> Launch:
    return Launch(function, (1,), args)


def planted(base: type[Method], wrong: str | None = None) -> Any:
    """Return ``base`` with a buffer of its own that ``falsify`` fills and that kernels get as the input ``wrong``."""

    class Planted(base):  # type: ignore[misc,valid-type]
        def buffers(self, case: Case) -> dict[str, Buffer]:
            found: dict[str, Buffer] = super().buffers(case)
            if wrong is None:
                return found
            from perfkit.registry import family

            return {**found, "wrong": replace(family("mamba2").inputs(case)[wrong], role="scratch")}

        def launches(self, case: Case, config: Config, tensors: Tensors, step: int = 0) -> Iterable[Launch]:
            if wrong is None:
                yield from super().launches(case, config, tensors, step)
                return
            yield call(lambda: tensors["wrong"].copy_(self.falsify(tensors, step)))
            yield from super().launches(case, config, {**tensors, wrong: tensors["wrong"]}, step)

        def falsify(self, tensors: Tensors, step: int) -> Any:
            raise NotImplementedError

    return Planted


def _ones(t: Tensors) -> Any:
    """How many nodes each path has."""
    return sum((t["path"] >> node) & 1 for node in range(t["ancestors"].shape[1]))


class Right(SnapshotVerify):
    """Nothing wrong: what is caught below is not caught because it is a plug-in."""


class CommitsOneLess(planted(SnapshotVerify, "accepted")):
    """Counts the accepted drafts without the token before them."""

    def falsify(self, tensors: Tensors, step: int) -> Any:
        return (tensors["accepted"] - 1).clamp(min=1).where(tensors["accepted"] > 0, 0)


class CommitsAll(planted(FusedRecoveryVerify, "accepted")):
    """Replays everything that was drafted, accepted or not."""

    def falsify(self, tensors: Tensors, step: int) -> Any:
        return tensors["accepted"].where(tensors["accepted"] == 0, tensors["x"].shape[1])


class ReadsTheFirstStep(SnapshotVerify):
    """Reads the acceptance of step 0 at every step."""

    def launches(self, case: Case, config: Config, tensors: Tensors, step: int = 0) -> Iterable[Launch]:
        return super().launches(case, config, tensors, 0)


class ServesAllPositions(planted(SnapshotVerify, "drafts")):
    """Takes every row for one of T positions."""

    def falsify(self, tensors: Tensors, step: int) -> Any:
        return torch.full_like(tensors["drafts"], tensors["x"].shape[1])


class ReadsAllPositions(ServesAllPositions):
    """Computes T positions of every row and keeps the results of those that there are."""

    def buffers(self, case: Case) -> dict[str, Buffer]:
        from perfkit.registry import family

        return {**super().buffers(case), "all": replace(family("mamba2").inputs(case)["out"], role="scratch")}

    def launches(self, case: Case, config: Config, tensors: Tensors, step: int = 0) -> Iterable[Launch]:
        yield from super().launches(case, config, {**tensors, "out": tensors["all"]}, step)

        def keep() -> None:
            t, n = tensors, case.draft_len
            there = (t["drafts"][:, None] > torch.arange(n, device=t["out"].device)) & (t["slots"] >= 0)[:, None]
            t["out"].copy_(torch.where(there[..., None, None], t["all"], t["out"]))

        yield call(keep)


class ServesPaddedRows(SnapshotVerify):
    """Takes a row without a slot for one in slot 0."""

    def launches(self, case: Case, config: Config, tensors: Tensors, step: int = 0) -> Iterable[Launch]:
        return super().launches(case, config, {**tensors, "slots": tensors["slots"].clamp(min=0)}, step)


class KeepsOldAcceptance(planted(FusedRecoveryVerify, "accepted")):
    """A row that is handed over replays the last request's record."""

    def falsify(self, tensors: Tensors, step: int) -> Any:
        return tensors["accepted"].clamp(min=1) if step else tensors["accepted"]


class KeepsOldRecords(ReplayVerify):
    """A row that is handed over keeps the cursor of the request before it."""

    def start(self, case: Case, tensors: Tensors, state: Any, origin: Any = 0) -> None:
        cursor = tensors["cursor"].clone()
        super().start(case, tensors, state, origin)
        tensors["cursor"].copy_(cursor)


class ForgetsIdleRows(planted(SnapshotVerify, "accepted")):
    """Takes what a row accepted for gone once the row has sat out a step."""

    def buffers(self, case: Case) -> dict[str, Buffer]:
        return {**super().buffers(case), "ran": Buffer((case.batch,), "int32", "scratch")}

    def launches(self, case: Case, config: Config, tensors: Tensors, step: int = 0) -> Iterable[Launch]:
        yield from super().launches(case, config, tensors, step)
        yield call(lambda: tensors["ran"].copy_(tensors["slots"] >= 0))

    def falsify(self, tensors: Tensors, step: int) -> Any:
        return tensors["accepted"] * tensors["ran"]


def _siblings(tensors: Tensors) -> Any:
    """Masks by which every node before a node is its ancestor."""
    nodes = torch.arange(tensors["ancestors"].shape[1], device=tensors["ancestors"].device)
    return ((2 << nodes) - 1).to(torch.int32).expand_as(tensors["ancestors"])


class LeaksSiblings(planted(SnapshotVerify, "ancestors")):
    """Runs a tree as a chain."""

    def falsify(self, tensors: Tensors, step: int) -> Any:
        return _siblings(tensors)


class LeaksSiblingsInScan(planted(StreeVerify, "ancestors")):
    """Weighs siblings as ancestors where a causal mask would."""

    def falsify(self, tensors: Tensors, step: int) -> Any:
        return _siblings(tensors)


class TakesFirstNodes(planted(StreeVerify, "path")):
    """Commits the first nodes of a tree, as many as were accepted."""

    def falsify(self, tensors: Tensors, step: int) -> Any:
        return (1 << _ones(tensors)) - 1


class ForgetsFourBytes(SnapshotVerify):
    """Counts no acceptance."""

    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        step = super().step(shape, point, h, flush)
        return replace(step, bytes_read=step.bytes_read - 4 * point.batch)


class ForgetsRereads(SnapshotVerify):
    """Counts no second read of a state at a branch."""

    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        return super().step(shape, replace(point, rereads=0), h, flush)


class OtherWindow(ReplayVerify):
    """Works at a window of its own; every number that it returns is right."""

    by = 0

    def _other(self, case: Case) -> Case:
        return replace(case, window=case.window + self.by)

    def buffers(self, case: Case) -> dict[str, Buffer]:
        return super().buffers(self._other(case))

    def launches(self, case: Case, config: Config, tensors: Tensors, step: int = 0) -> Iterable[Launch]:
        return super().launches(self._other(case), config, tensors, step)

    def committed(self, case: Case, tensors: Tensors, step: int = 0) -> Any:
        return super().committed(self._other(case), tensors, step)


class FlushesLate(OtherWindow):
    by = 1


class FlushesEarly(OtherWindow):
    by = -1


class RoundsTwice(StreeVerify):
    """Keeps a half-precision checkpoint with fewer digits than it has."""

    def launches(self, case: Case, config: Config, tensors: Tensors, step: int = 0) -> Iterable[Launch]:
        for launch in super().launches(case, config, tensors, step):
            yield launch
            state = tensors["state"]
            yield call(lambda kept: kept.copy_(kept.bfloat16()), state)


class RoundsCheckpoint(planted(FusedRecoveryVerify)):
    """The last digits of an FP32 checkpoint go."""

    def launches(self, case: Case, config: Config, tensors: Tensors, step: int = 0) -> Iterable[Launch]:
        yield from super().launches(case, config, tensors, step)
        yield call(lambda kept: kept.copy_(kept.bfloat16()), tensors["state"])


class Deaf(FusedRecoveryVerify):
    """Keeps a copy of one buffer and works from that: right as long as nobody looks at what it depends on."""

    def __init__(self, name: str) -> None:
        self.name = name

    def buffers(self, case: Case) -> dict[str, Buffer]:
        found = super().buffers(case)
        return {**found, "copy": replace(found[self.name], role="scratch")}

    def start(self, case: Case, tensors: Tensors, state: Any, origin: Any = 0) -> None:
        super().start(case, tensors, state, origin)
        tensors["copy"].copy_(tensors[self.name])

    def launches(self, case: Case, config: Config, tensors: Tensors, step: int = 0) -> Iterable[Launch]:
        yield from super().launches(case, config, {**tensors, self.name: tensors["copy"]}, step)
        yield call(tensors[self.name].copy_, tensors["copy"])


class KeepsOwnPast(JointAttainmentVerify):
    """Keeps the inputs of its last step, and does not look at those that the layer hands over again."""

    def buffers(self, case: Case) -> dict[str, Buffer]:
        own = packed_inputs(case, (case.batch, case.draft_len), "own_")
        return {**super().buffers(case), **{name: replace(buffer, role="scratch") for name, buffer in own.items()}}

    def launches(self, case: Case, config: Config, tensors: Tensors, step: int = 0) -> Iterable[Launch]:
        own = {PAST + name: tensors[f"own_{name}"] for name in ("x", "k", "dt")}
        yield from super().launches(case, config, {**tensors, **own}, step)

        def keep() -> None:
            ran = (tensors["slots"] >= 0)[:, None, None]
            for name in ("packed", "dt"):
                tensors[f"own_{name}"].copy_(torch.where(ran, tensors[name], tensors[f"own_{name}"]))

        yield call(keep)


RIGHT = Right()
COMMITS_ONE_LESS = CommitsOneLess()
COMMITS_ALL = CommitsAll()
READS_THE_FIRST_STEP = ReadsTheFirstStep()
SERVES_ALL_POSITIONS = ServesAllPositions()
READS_ALL_POSITIONS = ReadsAllPositions()
SERVES_PADDED_ROWS = ServesPaddedRows()
KEEPS_OLD_ACCEPTANCE = KeepsOldAcceptance()
KEEPS_OLD_RECORDS = KeepsOldRecords()
FORGETS_IDLE_ROWS = ForgetsIdleRows()
LEAKS_SIBLINGS = LeaksSiblings()
LEAKS_SIBLINGS_IN_SCAN = LeaksSiblingsInScan()
TAKES_FIRST_NODES = TakesFirstNodes()
FORGETS_FOUR_BYTES = ForgetsFourBytes()
FORGETS_REREADS = ForgetsRereads()
FLUSHES_LATE = FlushesLate()
FLUSHES_EARLY = FlushesEarly()
ROUNDS_TWICE = RoundsTwice()
ROUNDS_CHECKPOINT = RoundsCheckpoint()
DEAF_X, DEAF_K, DEAF_DT, DEAF_STATE = (Deaf(name) for name in ("x_cache", "k_cache", "dt_cache", "state"))
KEEPS_OWN_PAST = KeepsOwnPast()

#: Name, window, tree and what a check finds, counting no bytes: as on a GPU.
FAULTS: list[tuple[str, int | None, str | None, str]] = [
    ("COMMITS_ONE_LESS", None, None, "output error"),
    ("COMMITS_ALL", None, None, "output error"),
    ("READS_THE_FIRST_STEP", None, None, "output error"),
    ("READS_THE_FIRST_STEP", None, TREE, "output error"),
    ("SERVES_ALL_POSITIONS", None, None, "output of a position that a row does not have was written"),
    ("SERVES_ALL_POSITIONS", None, TREE, "output of a position that a row does not have was written"),
    ("SERVES_PADDED_ROWS", None, None, "output of a row without a slot was written"),
    ("KEEPS_OLD_ACCEPTANCE", None, None, "error inf"),
    ("KEEPS_OLD_RECORDS", 7, None, "error inf"),
    ("KEEPS_OLD_RECORDS", 5, TREE, "error inf"),
    ("FORGETS_IDLE_ROWS", None, None, "output error"),
    ("LEAKS_SIBLINGS", None, TREE, "output error"),
    ("LEAKS_SIBLINGS_IN_SCAN", None, TREE, "output error"),
    ("TAKES_FIRST_NODES", None, TREE, "output error"),
    ("FLUSHES_LATE", 7, None, "a row that is due did not write its checkpoint"),
    ("FLUSHES_EARLY", 7, None, "checkpoint of a row that does not flush was written"),
    ("FLUSHES_LATE", 5, TREE, "a row that is due did not write its checkpoint"),
    ("FLUSHES_EARLY", 5, TREE, "checkpoint of a row that does not flush was written"),
    ("ROUNDS_CHECKPOINT", None, None, "state error"),
    ("DEAF_X", None, None, "outputs do not change when x_cache is perturbed"),
    ("DEAF_K", None, None, "outputs do not change when k_cache is perturbed"),
    ("DEAF_DT", None, None, "outputs do not change when dt_cache is perturbed"),
    ("KEEPS_OWN_PAST", None, None, "outputs do not change when past_packed is perturbed"),
    ("DEAF_STATE", None, None, "outputs do not change when state is perturbed"),
]
