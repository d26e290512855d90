"""Verify methods that only keep cursors, in torch: what each step read, when rows flush, and what it would cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from perfkit import registry
from perfkit.kernels.mamba2 import layout
from perfkit.method import (
    ACCEPTANCE_STEPS,
    Buffer,
    Case,
    Config,
    Launch,
    Method,
    Number,
    Point,
    Step,
    constant_acceptance,
)
from perfkit.roofline import period
from perfkit.shape import Shape

#: µs of a step of snapshots; of a step of the buffered stub in which no row, or every row, flushes.
SNAPSHOT_US, OUTPUT_US, FLUSH_US = 20.0, 5.0, 15.0
SHAPE = Shape("mamba2", 1, 1, 4, 4)


@dataclass
class Log:
    """What the stubs did: the time that they cost, and for each step (index, live rows, acceptance read)."""

    spent: float = 0.0
    steps: list[tuple[int, list[bool], list[int]]] = field(default_factory=list)

    def time_us(self, run: Any) -> float:
        self.spent = 0.0
        run()
        return self.spent


class Stub(Method):
    family = "mamba2"
    phase = "verify"
    source = "a test"

    def __init__(self, log: Log) -> None:
        self.log = log

    def buffers(self, case: Case) -> dict[str, Buffer]:
        return {"state": layout.state(case)}

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int) -> Iterable[Launch]:
        yield Launch(self.advance, (), (case, config, tensors, step))

    def start(self, case: Case, tensors: Mapping[str, Any], state: Any, origin: Any = 0) -> None:
        layout.store_state(tensors, state)

    def committed(self, case: Case, tensors: Mapping[str, Any], step: int) -> Any:
        return layout.load_state(tensors)

    def advance(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int) -> None:
        slots = tensors["slots"].long()
        name = "path" if "path" in tensors else "accepted"
        read = tensors[name][step % ACCEPTANCE_STEPS].tolist()
        self.log.steps.append((step, (slots >= 0).tolist(), read))
        tensors["out"][slots >= 0] = tensors["x"][slots >= 0]  # outputs depend on inputs, as those of a step do

    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        state = point.batch * shape.state_elements * point.state_bytes
        return Step(state, state * np.where(flush, 1, 0.5), 1.0)

    def paper(self, shape: Shape, point: Point) -> Step:
        return self.step(shape, point, 0, False)

    def configs(self, case: Case) -> Sequence[Config]:
        return [Config.of(rows=1), Config.of(rows=2)]


class Snapshot(Stub):
    key = "snapshot"

    def advance(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int) -> None:
        super().advance(case, config, tensors, step)
        self.log.spent += SNAPSHOT_US + (4.0 if config["rows"] == 1 else 0.0)


class Buffered(Stub):
    """Keeps ``cursor`` [slots]: the records before those that the last step left to be accepted."""

    key = "replay"
    windowed = True

    def buffers(self, case: Case) -> dict[str, Buffer]:
        return {**super().buffers(case), "cursor": Buffer((layout.n_slots(case),), "int32", "cursor")}

    def start(self, case: Case, tensors: Mapping[str, Any], state: Any, origin: Any = 0) -> None:
        super().start(case, tensors, state, origin)
        tensors["cursor"][tensors["slots"][tensors["slots"] >= 0].long()] = 0

    def advance(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int) -> None:
        super().advance(case, config, tensors, step)
        live = tensors["slots"] >= 0
        h, slots = records(case, tensors, step), tensors["slots"][live].long()
        flush = (h + case.depth > case.window)[live]
        tensors["cursor"][slots] = torch.where(flush, 0, h[live]).int()
        self.log.spent += OUTPUT_US + (FLUSH_US - OUTPUT_US) * float(flush.double().mean())

    def period(self, case: Case) -> int:
        accepted = constant_acceptance(case)
        return ACCEPTANCE_STEPS if accepted is None else int(period(case.window, case.depth, accepted))


def records(case: Case, tensors: Mapping[str, Any], step: int) -> Any:
    """Return h of each row as its next step, ``step``, finds it."""
    if "path" in tensors:
        pending = torch.tensor([bin(mask).count("1") for mask in tensors["path"][step % ACCEPTANCE_STEPS].tolist()])
    else:
        pending = tensors["accepted"][step % ACCEPTANCE_STEPS]
    return tensors["cursor"][tensors["slots"].long().clamp(min=0)] + pending


@contextmanager
def stubs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """Put the stubs in place of the registry's methods."""
    log = Log()
    methods = {method.key: method for method in (Snapshot(log), Buffered(log))}
    monkeypatch.setattr(registry, "get_method", lambda family, key, phase="decode": methods[key])
    yield log


def verify_case(method: str = "replay", **changes: Any) -> Case:
    values: dict[str, Any] = {"batch": 8, "window": 16 if method == "replay" else None, "draft_len": 4,
                              "acceptance": "3", "input_dtype": "float32"}  # fmt: skip
    return Case(SHAPE, method, **{**values, **changes})
