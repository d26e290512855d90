"""One session stepped beside its float64 oracle: what is compared after every step, and what must not change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from perfkit.errors import DeviceError, first_line
from perfkit.method import Case, Config, Point
from perfkit.ranges import listened
from perfkit.session import Replayable, Session, state_extents, torch_dtype
from perfkit.tolerance import (
    HEAD_TOLERANCE,
    STEP_TOLERANCE,
    drift_tolerance,
    excess_error,
    half_ulp,
    head_error,
    output_size,
)

#: Rows compared when a batch is large; all rows run.
ROWS_COMPARED = 8

#: Inputs that hold a row for each step instead of one for each row of the batch.
BY_STEP = ("accepted", "path")

Mask = NDArray[np.bool_]
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Wrong(Exception):
    """A finding: what differs, and at which step."""


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy as integers, so that NaNs compare equal to themselves."""
    return tensor.contiguous().clone().view(_BITS[tensor.element_size()])


def _not_numbers(values: torch.Tensor, what: str) -> str:
    """Say how many values are no numbers, of an error of infinity: far off is another fault than never written."""
    count = int((~values.isfinite()).flatten(1).any(1).sum())
    return f"; NaN or inf in {count} of {len(values)} {what}" if count else ""


def _per_buffer(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count)


class Checker:
    """A case of one token a step with its oracle; :mod:`perfkit.verify_checker` adds steps that verify drafts.

    One row of several is padded throughout: it has no slot. The others start at random places of their rings.

    Attributes:
        h: committed records of each row by the flush rule, [batch].
        index: steps done.
        rows: the rows that are compared.
        worst: largest error of the outputs so far.
        counted: False once bytes were to be counted of launches that are not Triton's.
    """

    def __init__(self, case: Case, device: str, config: Config | None = None, seed: int = 0) -> None:
        self.case = case
        self.session = Session(case, device, config, seed)
        self.interprets = torch.device(device).type == "cpu"
        self.tensors = self.session.tensors
        self.method, self.family = self.session.method, self.session.family
        self.random = np.random.default_rng(seed)
        self.home = self.tensors["slots"].clone()
        batch = case.batch
        rows = range(batch) if batch <= ROWS_COMPARED else np.linspace(0, batch - 1, ROWS_COMPARED).astype(int)
        self.padded = batch // 2 if batch > 1 else None
        compared = {int(row) for row in rows} | ({self.padded} if self.padded is not None else set())
        self.rows = torch.tensor(sorted(compared), device=self.home.device)
        if self.padded is not None:
            self.home[self.padded] = -1
        self.live: Mask = self.home.cpu().numpy() >= 0
        self.tensors["slots"].copy_(self.home)
        self.generator = torch.Generator(device=self.home.device).manual_seed(seed + 1)
        self.method.start(case, self.tensors, self._random_states(batch), self._random_origins(batch))
        self.h = np.zeros(batch, dtype=int)
        self.index = 0
        self.worst = 0.0
        self.counted = True
        self._graphs: tuple[int, list[Replayable]] | None = None
        self._begin()
        self.anchor = self.committed()
        self.drift = self.anchor.clone()
        self.spare = self._spare()

    def _begin(self) -> None:
        """Set up what a phase adds, before anything is asked of the buffers."""

    def _random_states(self, count: int) -> torch.Tensor:
        shape = (count, *state_extents(self.case.shape))
        return torch.randn(shape, generator=self.generator, device=self.home.device) * 0.1

    def _random_origins(self, count: int) -> torch.Tensor:
        ring = (self.case.window or 1) + self.case.draft_len
        return torch.as_tensor(self.random.integers(0, ring, count), device=self.home.device)

    def _slots(self, on: torch.Tensor) -> torch.Tensor:
        return torch.where(on, self.home, torch.full_like(self.home, -1))

    def committed(self) -> torch.Tensor:
        """Return the compared rows' states by the buffers, float64."""
        return torch.as_tensor(self.method.committed(self.case, self._view(), self.index))

    def _view(self) -> dict[str, torch.Tensor]:
        """Return the tensors as a method sees them that is asked about the compared rows only."""
        return {**self.tensors, "slots": self.home[self.rows]}

    def _checkpoint(self) -> torch.Tensor:
        """Bits of the compared rows' states in memory."""
        return bits(self.tensors["state"][self.home[self.rows].long().clamp(min=0)])

    def _inputs(self) -> dict[str, torch.Tensor]:
        roles = {name: buffer.role for name, buffer in self.session.buffers.items()}
        return {
            name: tensor[self.rows] if roles[name] in ("input", "output") else tensor
            for name, tensor in self.tensors.items()
            if roles[name] in ("input", "output", "param") and name not in BY_STEP
        }

    def _spare(self) -> list[torch.Tensor]:
        """Bits of everything in slots that no live row owns."""
        n_slots = self.tensors["state"].shape[0]
        owned = set(self.home.tolist())
        free = torch.tensor([slot for slot in range(n_slots) if slot not in owned], device=self.home.device)
        kept = [name for name, b in self.session.buffers.items() if b.role in ("state", "record", "cursor")]
        return [bits(t[free.long()]) for name in kept if len(t := self.tensors[name]) == n_slots]

    def flushes(self) -> Mask:
        """Return which rows flush in their next step, by the rule for decode: h + 1 = L."""
        return np.asarray(self.h + 1 >= (self.case.window or 2**31))

    def step(self, idle: Mask | None = None, count_bytes: bool = False) -> None:
        """Run one step, ``idle`` rows sitting out, and compare everything.

        Raises:
            Wrong: something differs.
        """
        on, flush, before = self._launch(idle, count_bytes)
        self._compare(on, flush, before)

    def _launch(self, idle: Mask | None, count_bytes: bool) -> tuple[torch.Tensor, Mask, torch.Tensor]:
        tensors = self.tensors
        active = self.live if idle is None else self.live & ~idle
        self._prepare(active)
        on = torch.as_tensor(active, device=self.home.device)
        before = self._checkpoint()
        tensors["slots"].copy_(self._slots(on))
        if count_bytes:
            self._counted_step(active)
        elif self._run() < 1:
            raise Wrong(f"step {self.index}: no launch")
        tensors["slots"].copy_(self.home)
        flush = self.flushes() & active
        self._advance(active, flush)
        self.index += 1
        return on[self.rows], flush, before

    def _prepare(self, active: Mask) -> None:
        """Fill the inputs of the step that comes next."""
        self.family.fill_inputs(self.tensors, 7919 + self.index)
        self.tensors["out"].fill_(float("nan"))

    def _advance(self, active: Mask, flush: Mask) -> None:
        """Move each row on by the step that has just run."""
        self.h = np.where(flush, 0, np.where(active & self.method.windowed, self.h + 1, self.h))

    def capture(self) -> None:
        """Run every further step as a replay of two graphs in turn, captured here and once.

        One graph has to serve rows that flush and rows that do not, whatever the cursors say later; there are two
        because launches may depend on a step's parity. Without a GPU the steps run one by one.

        Raises:
            DeviceError: a launch cannot be captured, such as a plug-in's that waits for the device.
        """
        try:
            self._graphs = (self.index, [self.session.capture([self.index + odd]) for odd in (0, 1)])
        except RuntimeError as error:
            raise DeviceError(f"a step cannot be captured in a CUDA graph: {first_line(error)}") from error

    def _run(self) -> int:
        if self._graphs is None:
            told = self.interprets and self.index == 0 and listened()
            return self.session.marked_step() if told else self.session.step(self.index)
        first, graphs = self._graphs
        graphs[(self.index - first) % 2].replay()
        return 1

    def _launched_as(self) -> int:
        """Return the index with which the launches of the step that comes next are made, or were when captured."""
        if self._graphs is None:
            return self.index
        first, _ = self._graphs
        return first + (self.index - first) % 2

    def _compare(self, on: torch.Tensor, flush: Mask, before: torch.Tensor) -> None:
        where = f"step {self.index - 1}"
        if not self.tensors["out"][self.rows][~on].isnan().all():
            raise Wrong(f"{where}: output of a row without a slot was written")
        inputs = self._inputs()
        state, expected = self.family.reference(self.anchor, inputs)
        wide = on[:, None, None, None]
        self.drift = torch.where(wide, self.family.reference(self.drift, inputs)[0], self.drift)
        state = torch.where(wide, state, self.anchor)
        found = self.committed()
        slack = torch.where(wide, self._slack(self.anchor, inputs, torch.zeros_like(state)), 0.0)
        sizes = output_size(state, self.family.query(inputs))
        self._compare_numbers(where, on, on, expected, sizes, state, found, slack)
        self._compare_checkpoint(where, on, flush, before)
        self.anchor = found

    def _compare_numbers(
        self, where: str, on: torch.Tensor, written: torch.Tensor, expected: torch.Tensor, sizes: torch.Tensor,
        state: torch.Tensor, found: torch.Tensor, slack: torch.Tensor,
    ) -> None:  # fmt: skip
        """Compare outputs, those ``written`` of ``expected``, and the states found of the rows that are ``on``.

        ``sizes``: of the outputs by :func:`output_size`. ``slack``: how far the states may lie off because records are
        rounded.
        """
        error = self._output_error(expected, written)
        self.worst = max(self.worst, error)
        if not error <= STEP_TOLERANCE:
            told = _not_numbers(self.tensors["out"][self.rows][written], "outputs")
            raise Wrong(f"{where}: output error {error:.1e} > {STEP_TOLERANCE:.0e}{told}")
        error = excess_error(found, state, self.tensors["state"].dtype, self._factor("state"), slack)
        if not error <= STEP_TOLERANCE:
            raise Wrong(f"{where}: state error {error:.1e} > {STEP_TOLERANCE:.0e}{_not_numbers(found, 'states')}")
        out = self.tensors["out"]
        worst = head_error(out[self.rows][written].double(), expected[written], out.dtype, self._factor("out"),
                           least=sizes[written])  # fmt: skip
        worst = max(worst, head_error(found[on], state[on], self.tensors["state"].dtype, self._factor("state"),
                                      slack[on]))  # fmt: skip
        if not worst <= HEAD_TOLERANCE:
            raise Wrong(f"{where}: error {worst:.1e} of one head > {HEAD_TOLERANCE:.0e}")

    def _due(self, on: torch.Tensor, flush: Mask) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which compared rows' states in memory may change in a step, and which must."""
        due = torch.as_tensor(flush, device=on.device)[self.rows] if self.method.windowed else on
        return due, due

    def _compare_checkpoint(self, where: str, on: torch.Tensor, flush: Mask, before: torch.Tensor) -> None:
        """The state in memory changes at a flush and at no other step, else the window is not the one asked for."""
        may, must = self._due(on, flush)
        changed = (before != self._checkpoint()).flatten(1).any(1) & (self.home[self.rows] >= 0)
        if (changed & ~may).any():
            raise Wrong(f"{where}: the checkpoint of a row that does not flush was written")
        if (must & ~changed).any():
            raise Wrong(f"{where}: a row that is due did not write its checkpoint")

    def _output_error(self, expected: torch.Tensor, on: torch.Tensor) -> float:
        if not on.any():
            return 0.0
        out = self.tensors["out"]
        return excess_error(out[self.rows][on].double(), expected[on], out.dtype, self._factor("out"))

    def _slack(self, state: torch.Tensor, inputs: Mapping[str, torch.Tensor], before: torch.Tensor) -> torch.Tensor:
        """Return how far a token leaves the state off because records are rounded, ``before`` it was that far."""
        dtype = self.method.rounds(self.case)
        if dtype is None:
            return before
        off = partial(half_ulp, dtype=torch_dtype(dtype))
        return torch.as_tensor(self.family.slack(state, inputs, off, before))

    def _factor(self, name: str) -> float:
        # The interpreter truncates to BF16 where the GPU rounds.
        return 2.0 if self.interprets and self.tensors[name].dtype == torch.bfloat16 else 1.0

    def _counted_step(self, active: Mask) -> None:
        from perfkit.touched import touched

        where = f"step {self.index}"
        with touched(self.tensors) as record:
            launches = self.session.step(self.index)
        if launches and not record.launches:  # a plug-in's callable: nothing that could be counted ran
            self.counted = False
            return
        read, write = self.declared(active)
        if launches < 1:
            raise Wrong(f"{where}: no launch")
        if record.outside_lanes:
            raise Wrong(f"{where}: out of bounds: {record.outside[0]}")
        if record.races:
            raise Wrong(f"{where}: programs of one launch race on {record.races}")
        if (record.bytes_read, record.bytes_written) != (read, write):
            touched_bytes = "; ".join(f"{what} {_per_buffer(counts)}" for what, counts in
                                      (("read", record.read), ("written", record.written)))  # fmt: skip
            raise Wrong(
                f"{where}: {record.bytes_read} bytes read and {record.bytes_written} written, declared {read} and"
                f" {write} ({touched_bytes})"
            )

    def declared(self, active: Mask) -> tuple[int, int]:
        """Return the bytes declared for a step of the active rows; of idle rows each launch reads the slot id."""
        flush = self.flushes()
        launches = int(self.method.step(self.case.shape, self._point(0), 0, False).launches)
        read, write = 4 * launches * int((~active).sum()), 0
        shared: dict[bool, tuple[int, int]] = {}  # of the launches that serve flushing and other rows
        for row in np.flatnonzero(active):
            step = self.method.step(self.case.shape, self._point(int(row)), int(self.h[row]), bool(flush[row]))
            own = (int(step.shared_read), int(step.shared_write))
            shared[self.method.apart and bool(flush[row])] = own
            read += int(step.bytes_read) - own[0]
            write += int(step.bytes_write) - own[1]
        return read + sum(both[0] for both in shared.values()), write + sum(both[1] for both in shared.values())

    def _point(self, row: int) -> Point:
        """Return the point of one row's next step."""
        return replace(Point.of(self.case), batch=1)

    def desynchronize(self, index: int, steps: int) -> Mask:
        """Return the rows that sit out step ``index`` of the ``steps`` in which rows fall out of step.

        Each row sits out with a probability of its own; the last step parts rows that are still together.
        """
        idle: Mask = self.random.random(self.case.batch) < np.linspace(0.0, 0.8, self.case.batch)
        live = np.flatnonzero(self.live)
        if index == steps - 1 and len(live) > 1 and len(set(self.h[live].tolist())) == 1:
            idle = np.arange(self.case.batch) == live[-1]
        return idle

    def restart(self, row: int) -> None:
        """Hand a row over to a new request in mid-run: new state, new place in the ring, NaN for its old records."""
        slot = int(self.home[row])
        for name, buffer in self.session.buffers.items():
            tensor = self.tensors[name]
            if buffer.role in ("state", "record") and tensor.is_floating_point():
                tensor[slot] = float("nan")
        only = torch.zeros_like(self.home, dtype=torch.bool)
        only[row] = True
        view = {**self.tensors, "slots": self._slots(only)}
        state = self._random_states(1).expand(self.case.batch, -1, -1, -1)
        self.method.start(self.case, view, state, self._random_origins(self.case.batch))
        self._forget(row)
        fresh = self.committed()
        mine = (self.rows == row)[:, None, None, None]
        if not torch.equal(fresh.where(~mine, 0.0), self.anchor.where(~mine, 0.0)):
            raise Wrong(f"step {self.index}: handing one row over changed another")
        self.anchor = fresh
        self.drift = torch.where(mine, fresh, self.drift)

    def _forget(self, row: int) -> None:
        """Count a row as just handed over."""
        self.h[row] = 0

    def finish(self) -> None:
        """Compare what must not have changed, and the drift.

        Raises:
            Wrong: something differs.
        """
        for before, after in zip(self.spare, self._spare(), strict=True):
            if not torch.equal(before, after):
                raise Wrong("a slot that no row owns changed")
        if self.case.state_dtype == "float32":
            error = excess_error(self.anchor, self.drift, torch.float32)
            limit = drift_tolerance(self.method.rounds(self.case))
            if not error <= limit:
                raise Wrong(f"state drifted by {error:.1e} > {limit:.0e} in {self.index} steps")

    # Perturbation: outputs must depend on everything that a step reads.

    def remembered(self) -> list[str]:
        """Return the buffers that a step must read: the state, and records where a step ever finds some."""
        records = [name for name, b in self.session.buffers.items() if b.role == "record"]
        return ["state", *(records if (self.case.window or 1) > 1 else [])]

    def sees(self, name: str) -> bool:
        """Change one row's share of a buffer, run a step, and return whether that row's results disagree.

        Steps until the row holds a record first. What was changed counts as true afterwards.
        """
        row = int(np.flatnonzero(self.live & np.isin(np.arange(self.case.batch), self.rows.tolist()))[0])
        self._hold_record(row, name)
        part = self._part(row, name)
        # One record is a small part of an output that may be rounded to half precision: change it by a lot, and not by
        # one factor, of which a key that is normalized shows nothing.
        factor = part.new_tensor([1.5, 1.25] if name == "state" else [64.0, 16.0])
        turns = torch.arange(part.shape[-1], device=part.device) % 2
        part.copy_(part * factor[turns] if part.is_floating_point() else part + 1)
        on, _, _ = self._launch(None, False)
        error = self._row_error(on & (self.rows == row))
        self.anchor = self.committed()
        return not error <= STEP_TOLERANCE

    def _hold_record(self, row: int, name: str) -> None:
        while name != "state" and self.h[row] == 0:
            self.step()

    def _part(self, row: int, name: str) -> torch.Tensor:
        """Return a row's share of a buffer."""
        return self.tensors[name][int(self.home[row])]

    def _row_error(self, mine: torch.Tensor) -> float:
        """Return the error of the last step's outputs of the compared rows that are ``mine``."""
        _, expected = self.family.reference(self.anchor, self._inputs())
        return self._output_error(expected, mine)
