"""Kernels against the oracle: outputs, states, cursors, untouched memory and bytes, step by step.

Each step is compared with one float64 step from the state that the buffers stood for before it, so that a tolerance
of a few roundings holds at every step of a long run and low-precision states need no special oracle; since the run
starts from a known state, agreement at every step is agreement with the sequential recurrence. A second oracle is
never re-anchored and bounds the drift.

On the way: rows start at different places of their rings and sit out steps until they are desynchronized, one row is
padded throughout, buffers start as NaN, slots that nobody owns must come out bit-equal, and in the interpreter the
bytes touched must equal what the method declares, to the byte. Afterwards one cached record (or the state) is
perturbed, and the same comparison must fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from perfkit.method import Case, Config, Point
from perfkit.session import Session

#: Relative Frobenius error of one step in FP32, beyond the rounding of the dtype that is stored.
STEP_TOLERANCE = 2e-6
#: The same after a whole run of an FP32 state.
DRIFT_TOLERANCE = 1e-5
#: Rows compared when a batch is large; all rows run.
ROWS_COMPARED = 8


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check found.

    Attributes:
        rel_error: relative Frobenius error of the outputs beyond their own rounding, worst step.
        reason: None, or what is wrong: the first finding.
        steps: steps compared.
    """

    rel_error: float
    reason: str | None
    steps: int

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return self.reason is None


class _Wrong(Exception):
    """A finding."""


def half_ulp(values: torch.Tensor, dtype: torch.dtype, factor: float = 1.0) -> torch.Tensor:
    """Return half the spacing of ``dtype`` at each float64 value: the largest error of rounding to nearest."""
    if dtype in (torch.float32, torch.float64):
        return torch.zeros_like(values)
    info = torch.finfo(dtype)
    exponent = torch.frexp(values).exponent - 1
    spacing = torch.exp2(exponent.double()) * info.eps
    return 0.5 * factor * spacing.clamp(min=info.smallest_normal * info.eps)


def excess_error(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, factor: float = 1.0) -> float:
    """Return ‖max(|found − expected| − half an ulp, 0)‖ / ‖expected‖; NaN anywhere gives infinity."""
    beyond = ((found - expected).abs() - half_ulp(expected, dtype, factor)).clamp(min=0.0)
    norm = float(torch.linalg.vector_norm(expected))
    error = float(torch.linalg.vector_norm(beyond)) / max(norm, 1e-30)
    return error if error == error else float("inf")


class Checker:
    """One session stepped beside its oracle."""

    def __init__(self, case: Case, device: str, config: Config | None = None, seed: int = 0) -> None:
        self.case = case
        self.session = Session(case, device, config, seed)
        self.interprets = torch.device(device).type == "cpu"
        self.tensors = self.session.tensors
        self.method, self.family = self.session.method, self.session.family
        # The interpreter truncates to BF16 where the GPU rounds.
        self.bf16_factor = 2.0 if self.interprets else 1.0
        self.random = np.random.default_rng(seed)
        self.home = self.tensors["slots"].clone()
        batch = case.batch
        rows = range(batch) if batch <= ROWS_COMPARED else np.linspace(0, batch - 1, ROWS_COMPARED).astype(int)
        self.rows = torch.tensor(sorted({int(row) for row in rows}), device=self.home.device)
        self.padded = batch // 2 if batch > 1 else None
        if self.padded is not None:
            self.home[self.padded] = -1
        self.tensors["slots"].copy_(self.home)
        ring = (case.window or 1) + case.draft_len
        origin = torch.as_tensor(self.random.integers(0, ring, batch), device=self.home.device)
        state = torch.randn(batch, *self.tensors["state"].shape[1:], device=self.home.device) * 0.1
        self.method.start(case, self.tensors, state, origin)
        self.h = np.zeros(batch, dtype=int)
        self.index = 0
        self.worst = 0.0
        self.anchor = self.committed()
        self.drift = self.anchor.clone()
        self.spare = self._spare()

    def committed(self) -> torch.Tensor:
        """The compared rows' states by the buffers."""
        view = {**self.tensors, "slots": self.home[self.rows]}
        state: torch.Tensor = self.method.committed(self.case, view, self.index)
        return state

    def _inputs(self) -> dict[str, torch.Tensor]:
        roles = self.session.buffers
        return {
            name: tensor[self.rows] if roles[name].role in ("input", "output") else tensor
            for name, tensor in self.tensors.items()
            if roles[name].role in ("input", "output", "param")
        }

    def _spare(self) -> list[torch.Tensor]:
        """Bits of everything in slots that no live row owns."""
        n_slots = self.tensors["state"].shape[0]
        owned = set(self.home.tolist())
        free = torch.tensor([slot for slot in range(n_slots) if slot not in owned], device=self.home.device)
        kept = [name for name, b in self.session.buffers.items() if b.role in ("state", "record", "cursor")]
        sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return [
            t[free].clone().view(sizes[t.element_size()]) for name in kept if len(t := self.tensors[name]) == n_slots
        ]

    def flushes(self) -> np.ndarray[Any, Any]:
        """Which rows flush in their next step, by DESIGN's rule for decode: h + 1 = L."""
        return self.h + 1 >= (self.case.window or 2**31)

    def step(self, idle: np.ndarray[Any, Any] | None = None, count_bytes: bool = False) -> None:
        """Run one step, ``idle`` rows sitting out, and compare everything.

        Raises:
            _Wrong: something differs.
        """
        tensors = self.tensors
        self.family.fill_inputs(tensors, 7919 + self.index)
        tensors["out"].fill_(float("nan"))
        live = self.home.cpu().numpy() >= 0
        active = live if idle is None else live & ~idle
        on = torch.as_tensor(active, device=self.home.device)
        tensors["slots"].copy_(torch.where(on, self.home, torch.full_like(self.home, -1)))
        if count_bytes:
            self._counted_step(active)
        else:
            self.session.step(self.index)
        tensors["slots"].copy_(self.home)
        flush = self.flushes() & active
        self.h = np.where(flush, 0, np.where(active & self.method.windowed, self.h + 1, self.h))
        self.index += 1
        self._compare(on[self.rows])

    def _compare(self, on: torch.Tensor) -> None:
        where = f"step {self.index - 1}"
        out = self.tensors["out"][self.rows].double()
        if not out[~on].isnan().all():
            raise _Wrong(f"{where}: output of a row without a slot was written")
        state, expected = self.family.reference(self.anchor, self._inputs())
        self.drift = torch.where(
            on[:, None, None, None], self.family.reference(self.drift, self._inputs())[0], self.drift
        )
        state = torch.where(on[:, None, None, None], state, self.anchor)
        found = self.committed()
        if on.any():
            error = excess_error(out[on], expected[on], self.tensors["out"].dtype, self._factor("out"))
            self.worst = max(self.worst, error)
            if not error <= STEP_TOLERANCE:
                raise _Wrong(f"{where}: output error {error:.1e} > {STEP_TOLERANCE:.0e}")
        error = excess_error(found, state, self.tensors["state"].dtype, self._factor("state"))
        if not error <= STEP_TOLERANCE:
            raise _Wrong(f"{where}: state error {error:.1e} > {STEP_TOLERANCE:.0e}")
        self.anchor = found

    def _factor(self, name: str) -> float:
        return self.bf16_factor if self.tensors[name].dtype == torch.bfloat16 else 1.0

    def _counted_step(self, active: np.ndarray[Any, Any]) -> None:
        from perfkit.touched import touched

        with touched(self.tensors) as record:
            launches = self.session.step(self.index)
        read, write = self.declared(active)
        if record.outside_lanes:
            raise _Wrong(f"step {self.index}: out of bounds: {record.outside[0]}")
        if record.races:
            raise _Wrong(f"step {self.index}: programs of one launch race on {record.races}")
        if (record.bytes_read, record.bytes_written) != (read, write):
            raise _Wrong(
                f"step {self.index}: {record.bytes_read} bytes read and {record.bytes_written} written,"
                f" declared {read} and {write} (read {record.read}, written {record.written})"
            )
        if launches < 1:
            raise _Wrong(f"step {self.index}: no launch")

    def declared(self, active: np.ndarray[Any, Any]) -> tuple[int, int]:
        """Return the bytes that the method declares for a step of the active rows; idle rows read their slot id."""
        point = replace(Point.of(self.case), batch=1)
        flush = self.flushes()
        read, write, shared_read, shared_write = 4 * int((~active).sum()), 0, 0, 0
        for row in np.flatnonzero(active):
            step = self.method.step(self.case.shape, point, int(self.h[row]), bool(flush[row]))
            shared_read, shared_write = int(step.shared_read), int(step.shared_write)
            read += int(step.bytes_read) - shared_read
            write += int(step.bytes_write) - shared_write
        return read + shared_read, write + shared_write

    def finish(self) -> None:
        """Compare what must not have changed, and the drift.

        Raises:
            _Wrong: something differs.
        """
        for before, after in zip(self.spare, self._spare(), strict=True):
            if not torch.equal(before, after):
                raise _Wrong("a slot that no row owns changed")
        if self.case.state_dtype == "float32":
            error = excess_error(self.anchor, self.drift, torch.float32)
            if not error <= DRIFT_TOLERANCE:
                raise _Wrong(f"state drifted by {error:.1e} > {DRIFT_TOLERANCE:.0e} in {self.index} steps")

    def perturb(self) -> str:
        """Change one number that the next step must read; return what."""
        row = next(row for row in self.rows.tolist() if row != self.padded)
        slot = int(self.home[row])
        records = [name for name, b in self.session.buffers.items() if b.role == "record"]
        if self.h[row] > 0 and records:
            name = records[int(self.random.integers(len(records)))]
            part = self.tensors[name][slot]
            part.copy_(torch.where(part.isnan(), part, part * 1.25))
            return name
        self.tensors["state"][slot, 0].mul_(1.25)
        return "state"


def check_case(
    case: Case,
    device: str,
    config: Config | None = None,
    *,
    seed: int = 0,
    count_bytes: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Check one case: desynchronize for a window, run two more, look at what must not change, perturb.

    Args:
        case: what to check.
        device: ``cpu`` interprets (the process must have been started so), ``cuda`` runs.
        config: the launch configuration, the default one if None.
        seed: of all random data.
        count_bytes: compare bytes to the byte; by default in the interpreter, with the steps of one window.
        progress: told (steps done, steps in all).
    """
    checker = Checker(case, device, config, seed)
    window = case.window or 4
    total = 3 * window
    counting = checker.interprets if count_bytes is None else count_bytes
    try:
        for index in range(total):
            idle = None
            if index < window:  # each row sits out with a probability of its own
                idle = checker.random.random(case.batch) < np.linspace(0.0, 0.8, case.batch)
            checker.step(idle, counting and window - 1 <= index < 2 * window)
            if progress is not None:
                progress(index + 1, total)
        checker.finish()
    except _Wrong as finding:
        return Outcome(checker.worst, str(finding), checker.index)
    if not fails_when_perturbed(case, device, config, seed):
        return Outcome(checker.worst, "the check does not see a perturbed record", checker.index)
    return Outcome(checker.worst, None, checker.index)


def fails_when_perturbed(case: Case, device: str, config: Config | None = None, seed: int = 0) -> bool:
    """Return whether changing one cached record, or the state, makes the comparison fail."""
    checker = Checker(case, device, config, seed + 1)
    for _ in range(min(2, (case.window or 3) - 1)):
        checker.step()
    checker.perturb()
    try:
        checker.step()
    except _Wrong:
        return True
    return False


def run_group(request: Mapping[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Serve a worker's request in the interpreter: check each case, emit one result per case."""
    torch.set_num_threads(1)
    settings = request.get("settings") or {}
    for data in request["cases"]:
        case = Case.from_dict(data)

        def progress(done: int, total: int, case_id: str = case.id) -> None:
            emit({"event": "phase", "case_id": case_id, "phase": "check", "done": done, "total": total})

        progress(0, 1)
        outcome = check_case(case, "cpu", seed=int(settings.get("seed") or 0), progress=progress)
        emit({
            "event": "result", "case_id": case.id, "status": "ok" if outcome.ok else "incorrect",
            "reason": outcome.reason, "samples": {},
            "row": {"checked": "interpreter", "rel_error": outcome.rel_error if outcome.ok else None},
        })  # fmt: skip
