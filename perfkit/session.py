"""One case on one device: buffers become tensors, steps become launches or a CUDA graph, state can be restored.

A session holds ``copies`` independent sets of everything (states, rings, cursors, inputs, outputs), as many layers of
a model would: rotating through them keeps L2 as cold as it is under serving.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from perfkit import registry
from perfkit.errors import InputError
from perfkit.measure import Subject, capture
from perfkit.method import Buffer, Case, Config, Family, Method
from perfkit.ranges import case_name, mark
from perfkit.shape import Shape

#: Roles whose content a request keeps between steps; restoring them puts a session back to an earlier step.
KEPT = ("state", "record", "cursor", "scratch")


def state_extents(shape: Shape) -> tuple[int, int, int]:
    """Return the extents of one row's state: heads, d_v, d_k."""
    return (shape.n_v_heads, shape.d_v, shape.d_k)


def allocate(buffers: dict[str, Buffer], device: torch.device | str) -> dict[str, torch.Tensor]:
    """Allocate every buffer; views share their storage's memory.

    Floating-point buffers start as NaN, so that whatever a kernel reads before something wrote it shows up in its
    outputs; integer buffers and scratch start at zero.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, buffer in buffers.items():
        if buffer.storage is None:
            tensor = torch.empty(buffer.shape, dtype=torch_dtype(buffer.dtype), device=device)
            poison = tensor.is_floating_point() and buffer.role != "scratch"
            tensors[name] = tensor.fill_(float("nan")) if poison else tensor.zero_()
    for name, buffer in buffers.items():
        if buffer.storage is not None:
            strides = buffer.strides or tuple(torch.empty(buffer.shape, device="meta").stride())
            tensors[name] = tensors[buffer.storage].as_strided(buffer.shape, strides, buffer.offset)
    return {name: tensors[name] for name in buffers}


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype of a dtype name.

    Raises:
        InputError: torch has no such dtype.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError("torch has no such dtype", field="dtype", value=name)
    return dtype


class Session:
    """A case with its tensors.

    Args:
        case: what to run.
        device: a torch device.
        config: the launch configuration; None for the method's default.
        seed: seeds parameters, inputs, initial states and the assignment of slots.
        copies: independent sets of buffers.
    """

    def __init__(
        self, case: Case, device: torch.device | str, config: Config | None = None, seed: int = 0, copies: int = 1
    ) -> None:
        self.case = case
        self.device = torch.device(device)
        self.family: Family = registry.family(case.shape.family)
        self.method: Method = registry.get_method(case.shape.family, case.method, case.phase)
        reason = self.method.supports(case)
        if reason is not None:
            raise InputError(reason, field=case.method)
        self.config = config or self.method.configs(case)[0]
        self.seed = seed
        self.buffers = {**self.family.inputs(case), **self.method.buffers(case)}
        self.copies = [allocate(self.buffers, self.device) for _ in range(copies)]
        for index, tensors in enumerate(self.copies):
            self._fill(tensors, seed + 1009 * index)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The first copy's tensors."""
        return self.copies[0]

    @property
    def nbytes(self) -> int:
        """Bytes of memory of all copies."""
        return sum(buffer.nbytes for buffer in self.buffers.values()) * len(self.copies)

    def _fill(self, tensors: dict[str, torch.Tensor], seed: int) -> None:
        generator = torch.Generator(device=self.device).manual_seed(seed)
        self.family.fill_params(tensors, seed)
        self.family.fill_inputs(tensors, seed + 1)
        case, n_slots = self.case, tensors["state"].shape[0]
        order = torch.randperm(n_slots, generator=generator, device=self.device)
        tensors["slots"].copy_(order[: case.batch])
        if "drafts" in tensors:
            tensors["drafts"].fill_(case.draft_len)
        if "ancestors" in tensors:
            tensors["ancestors"].copy_(torch.tensor(case.nodes.ancestors, dtype=torch.int32))
        # Slots that no row owns hold numbers too: they must come out bit-equal.
        spare = order[case.batch :]
        shape = (len(spare), *tensors["state"].shape[1:])
        tensors["state"][spare] = self._random(shape, generator).to(tensors["state"].dtype)
        self.method.start(case, tensors, self._random((case.batch, *state_extents(case.shape)), generator))

    def _random(self, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        # A stationary state has entries of about a tenth; see Mamba2.fill_params.
        return torch.randn(tuple(shape), generator=generator, device=self.device) * 0.1

    def step(self, index: int = 0, copy: int = 0) -> int:
        """Launch one step of one copy; return the number of launches."""
        return len([launch() for launch in self.method.launches(self.case, self.config, self.copies[copy], index)])

    def marked_step(self, index: int = 0, copy: int = 0) -> int:
        """Launch one step of one copy, each launch in a range that tells its kernel, grid and configuration.

        On a GPU such a range is what the host took to enqueue the launch, which says nothing about the GPU's time.
        """
        launches = 0
        for launch in self.method.launches(self.case, self.config, self.copies[copy], index):
            told = {"kernel": launch.name, "grid": list(launch.grid), **launch.constexprs, **launch.config}
            with mark(f"launch/{launch.name}", **told):
                launch()
            launches += 1
        return launches

    def compiled(self) -> list[Any]:
        """Launch one step and return its compiled kernels, as far as Triton made them."""
        launched = [launch() for launch in self.method.launches(self.case, self.config, self.tensors, 0)]
        return [kernel for kernel in launched if hasattr(kernel, "n_regs")]

    def run(self, steps: Iterable[int]) -> int:
        """Launch steps over all copies, a step of every copy before the next; return the number of launches."""
        return sum(self.step(index, copy) for index in steps for copy in range(len(self.copies)))

    def snapshot(self) -> list[dict[str, torch.Tensor]]:
        """Return copies of everything that steps change."""
        kept = [name for name, buffer in self.buffers.items() if buffer.role in KEPT and buffer.storage is None]
        return [{name: tensors[name].clone() for name in kept} for tensors in self.copies]

    def restore(self, saved: list[dict[str, torch.Tensor]]) -> None:
        """Put back what :meth:`snapshot` returned, in place."""
        into = [tensors[name] for tensors, old in zip(self.copies, saved, strict=True) for name in old]
        torch._foreach_copy_(into, [value for old in saved for value in old.values()])

    def capture(self, steps: Sequence[int]) -> Replayable:
        """Capture steps over all copies into one CUDA graph; the kernels must have been launched once before.

        Without a GPU, in the interpreter, replaying runs the steps one by one.
        """
        if self.device.type != "cuda":
            return _Steps(self, tuple(steps))
        graph: Replayable = capture(lambda: self.run(steps))
        return graph

    def subject(
        self, name: str, steps: Sequence[int], saved: list[dict[str, torch.Tensor]], part: int | None = None
    ) -> Subject:
        """Capture steps over all copies as something to time: restored to ``saved`` before each sample.

        Args:
            name: of the subject.
            steps: whole periods.
            saved: what :meth:`snapshot` returned.
            part: steps that one graph holds; None for all of them.
        """
        units, part = len(steps) * len(self.copies), part or len(steps)
        graphs = [self.capture(steps[at : at + part]) for at in range(0, len(steps), part)]

        def run() -> None:
            for graph in graphs:
                graph.replay()

        parts = tuple(graph.replay for graph in graphs) if len(graphs) > 1 else ()
        return Subject(name, run, lambda: self.restore(saved), units, parts, case_name(self.case))


class Replayable(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Enqueue it."""


class _Steps:
    """Steps that run when they are replayed, with the copies and the configuration of when they were captured."""

    def __init__(self, session: Session, steps: tuple[int, ...]) -> None:
        self._session, self._steps = session, steps
        self._captured = (list(session.copies), session.config)

    def replay(self) -> None:
        session = self._session
        now = (session.copies, session.config)
        session.copies, session.config = self._captured
        try:
            session.run(self._steps)
        finally:
            session.copies, session.config = now
