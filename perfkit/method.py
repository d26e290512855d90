"""The method protocol: one declaration drives kernels, byte model, memory plan, interpreter, compiler and tuner.

A *method* is one way to manage the recurrent state of a layer during one phase (decode: T = 1, verify: T > 1). It
declares the buffers it needs, the launches of one step and the bytes that a step moves. Everything else in perfkit
(allocation, checking against the oracle, graph capture, timing, compiling for GPUs that are not here, planning) reads
these declarations, so a new method is one file and needs no change elsewhere.

This module imports neither torch nor triton, and neither may the module level of a method file import torch.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import InputError
from perfkit.shape import DTYPE_BYTES, Shape
from perfkit.tree import Tree, of_case

Phase = Literal["decode", "verify"]
Role = Literal["state", "record", "cursor", "param", "input", "output", "scratch"]
#: Rows of the buffer ``accepted``: the steps of a timed run of random acceptance; step i reads row i modulo this.
ACCEPTANCE_STEPS = 64
#: Arrays or scalars: byte and FLOP models are evaluated for one point or for a million at once.
Number = int | float | NDArray[Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One point: a method at a shape, a batch and everything else that changes its time.

    ``window`` is None for methods without a replay buffer. ``acceptance`` is the text that the user gave
    (``"1"``, ``"T"``, ``"mean:3.5"``, ``"p:.88,.62"``); decode commits its one token, ``"1"``. ``tree`` holds the
    parents of the drafts (:class:`perfkit.tree.Tree`), None for a chain; ``draft_len`` counts its nodes, and ``"T"``
    accepts its longest path. ``read_dtype`` None means the same as ``state_dtype``. ``options`` are method-specific,
    sorted pairs.
    """

    shape: Shape
    method: str
    batch: int
    window: int | None = None
    draft_len: int = 1
    acceptance: str = "1"
    flush_phase: str = "aligned"
    tree: str | None = None
    input_dtype: str = "bfloat16"
    state_dtype: str = "float32"
    read_dtype: str | None = None
    n_layers: int = 1
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def phase(self) -> Phase:
        """decode for T = 1, else verify."""
        return "decode" if self.draft_len == 1 else "verify"

    @property
    def nodes(self) -> Tree:
        """The tree of its T positions; a chain's where it has none of its own."""
        return of_case(self.tree, self.draft_len)

    @property
    def depth(self) -> int:
        """Most tokens that a step commits: T of a chain, the longest path of a tree."""
        return self.draft_len if self.tree is None else self.nodes.depth

    @property
    def reads(self) -> str:
        """The dtype in which a step that does not flush reads the checkpoint."""
        return self.read_dtype or self.state_dtype

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits of the sha256 of the case's canonical JSON."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:12]

    @property
    def group_id(self) -> str:
        """The id that all cases compared with each other share: the case without method, window and options."""
        data = self.to_dict()
        for name in ("method", "window", "options"):
            del data[name]
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]

    def option(self, name: str, default: Any = None) -> Any:
        """Return a method-specific option."""
        return dict(self.options).get(name, default)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data; :meth:`from_dict` restores the case."""
        data = asdict(self)
        data["options"] = [list(pair) for pair in self.options]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Case:
        """Restore a case written by :meth:`to_dict`.

        Raises:
            InputError: an unknown or missing field.
        """
        known = {item.name for item in fields(cls)}
        for name in data:
            if name not in known:
                raise InputError("unknown field of a case", field=name, allowed=sorted(known))
        values = dict(data)
        try:
            values["shape"] = Shape(**values["shape"])
            values["options"] = tuple((str(key), value) for key, value in values.get("options", ()))
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"not a case: {error}", field="case") from error


@dataclass(frozen=True, slots=True)
class Buffer:
    """One tensor that a method needs.

    Attributes:
        shape: its extents.
        dtype: a name of :data:`perfkit.shape.DTYPE_BYTES`.
        role: ``state`` and ``record`` and ``cursor`` are what a request keeps between steps; ``input`` changes every
            step; ``param`` belongs to the layer; ``output`` is what a step returns; ``scratch`` holds nothing between
            steps, but is zeroed once when it is allocated.
        strides: in elements; None for a contiguous tensor.
        storage: the buffer whose memory this one is a view of, None for its own.
        offset: first element within ``storage``.
    """

    shape: tuple[int, ...]
    dtype: str
    role: Role
    strides: tuple[int, ...] | None = None
    storage: str | None = None
    offset: int = 0

    @property
    def elements(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of memory it occupies; a view occupies none of its own."""
        return 0 if self.storage else int(self.elements * DTYPE_BYTES[self.dtype])


@dataclass(frozen=True, slots=True)
class Config:
    """A launch configuration: tile sizes, warps, stages; what the tuner searches over."""

    values: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, **values: int) -> Config:
        """Build a configuration from keyword arguments."""
        return cls(tuple(values.items()))

    def __getitem__(self, name: str) -> int:
        return dict(self.values)[name]

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values) or "-"

    @classmethod
    def parse(cls, text: str) -> Config:
        """Inverse of ``str``."""
        return cls(
            tuple((name, int(value)) for name, value in (item.split("=") for item in text.split()))
            if text != "-"
            else ()
        )


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch. ``kernel`` is a Triton JIT function, or any callable taking ``args`` (plug-ins).

    ``args`` are the positional run-time arguments: tensors, integers, floats. ``constexprs`` are the keyword
    arguments that the kernel is specialized for; ``config`` holds the compiler's options: ``num_warps``,
    ``num_stages``, a limit of registers, and whether the launch follows the one before it closely.
    """

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(getattr(self.kernel, "__name__", type(self.kernel).__name__))

    def __call__(self) -> Any:
        """Launch it; return the compiled kernel where the kernel is Triton's."""
        if hasattr(self.kernel, "run") and hasattr(self.kernel, "__getitem__"):
            return self.kernel[self.grid](*self.args, **self.constexprs, **self.config)
        return self.kernel(*self.args)


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of a whole batch moves and computes. Fields are scalars or arrays of one shape.

    Attributes:
        bytes_read: bytes that the step must read, each address once a launch.
        bytes_write: bytes that it must write, each address once a launch.
        flops: floating-point operations; a multiplication and an addition are two.
        launches: kernel launches.
        serial: length of the longest chain of dependent state updates.
        shared_read: the part of ``bytes_read`` that does not grow with the batch (parameters, counters).
        shared_write: the same for ``bytes_write``.
        tensor_flops: the part of ``flops`` that are matrix products on tensor cores.
    """

    bytes_read: Number
    bytes_write: Number
    flops: Number
    launches: Number = 1
    serial: Number = 1
    shared_read: Number = 0
    shared_write: Number = 0
    tensor_flops: Number = 0


@dataclass(frozen=True, slots=True)
class Point:
    """The numbers of a case that byte and FLOP models depend on; each may be an array.

    Attributes:
        batch: rows.
        window: L; 1 for a method without one.
        draft_len: T; the nodes of a tree.
        input_bytes: of an element of inputs and outputs.
        state_bytes: of an element of the state.
        read_bytes: of an element of the checkpoint as steps that do not flush read it.
        accepted: mean number of tokens that the step before committed.
        tree: whether the positions are a tree, whose accepted path has to be gathered.
        rereads: states that a walk through a tree reads once more, at branches.
        last_draft_len: positions of the step before; None for ``draft_len``, as always but where rows mix lengths.
    """

    batch: Number
    window: Number
    draft_len: Number
    input_bytes: Number
    state_bytes: Number
    read_bytes: Number
    accepted: Number = 1
    tree: bool = False
    rereads: Number = 0
    last_draft_len: Number | None = None

    @classmethod
    def of(cls, case: Case) -> Point:
        """Return the point of one case; a null window is 1."""
        from perfkit.roofline import acceptance_pmf

        pmf = acceptance_pmf(case.acceptance, case.depth)
        return cls(
            batch=case.batch,
            window=case.window or 1,
            draft_len=case.draft_len,
            input_bytes=DTYPE_BYTES[case.input_dtype],
            state_bytes=DTYPE_BYTES[case.state_dtype],
            read_bytes=DTYPE_BYTES[case.reads],
            accepted=float(np.arange(1, case.depth + 1) @ pmf),
            tree=case.tree is not None,
            rereads=mean_rereads(case.nodes, pmf) if case.tree is not None else 0,
        )


def mean_rereads(tree: Tree, pmf: NDArray[np.float64]) -> float:
    """Return how many states a walk through a tree reads again on average: one at each node that it comes back to.

    A step starts from the state after the last node of the path before, any node at its depth alike; that state is
    counted as read already. ``pmf`` [depth] is P(a = 1, 2, …).
    """
    again = tree.branch_parents()
    shared = sum(p * len(again.intersection(nodes)) / len(nodes)
                 for a, p in enumerate(pmf, start=1) if (nodes := tree.at_depth(a)))  # fmt: skip
    return len(again) - float(shared)


class Family(ABC):
    """The recurrence of a family: its inputs, their random data, its oracle."""

    name: str

    #: Inputs that each token has its own of: dimension 1 of a verify step's are its T positions.
    per_token: tuple[str, ...] = ()

    @abstractmethod
    def inputs(self, case: Case) -> dict[str, Buffer]:
        """Return the input, param and output buffers of one step, shared by all methods of the family.

        A verify step's have its T positions as dimension 1, and with them come ``drafts`` [batch] int32, the
        positions of each row, 1..T, and ``accepted`` [ACCEPTANCE_STEPS, batch] int32, what the row's step before
        committed (0 for a row that was handed over since), read at the step's index. A tree adds ``ancestors``
        [batch, T] int32, the bitmask of each node's ancestors and itself, and ``path`` [ACCEPTANCE_STEPS, batch]
        int32, the bitmask of the nodes that the step before committed.
        """

    def token(self, inputs: Mapping[str, Any], position: int) -> dict[str, Any]:
        """Return the inputs of one position of a verify step, as :meth:`reference` takes them."""
        return {name: value[:, position] if name in self.per_token else value for name, value in inputs.items()}

    @abstractmethod
    def fill_params(self, tensors: Mapping[str, Any], seed: int) -> None:
        """Fill the layer's parameters in place: random, with decays that keep states stationary."""

    @abstractmethod
    def fill_inputs(self, tensors: Mapping[str, Any], seed: int) -> None:
        """Fill one token's inputs in place with random data, never zeros. ``slots`` are left to the caller."""

    @abstractmethod
    def reference(self, state: Any, inputs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Advance a state by one token, sequentially, in float64.

        Args:
            state: [batch, n_v_heads, d_v, d_k] float64.
            inputs: the step's inputs and params as the kernels see them (already rounded to their dtypes).

        Returns:
            The new state and the output [batch, n_v_heads, d_v], both float64.
        """

    @abstractmethod
    def query(self, inputs: Mapping[str, Any]) -> Any:
        """Return what a token reads the new state with, S q: [batch, n_v_heads, d_k] float64, of every value head."""

    def slack(self, state: Any, inputs: Mapping[str, Any], off: Callable[[Any], Any], before: Any) -> Any:
        """Return how far each element of the new state may lie from :meth:`reference`'s if records are rounded.

        A record of a delta rule holds what was derived from the state. Rounded, it stands for another state than the
        exact one, whatever the kernel; where records hold inputs, which are kept as they are given, this is zero.

        Args:
            state: [batch, n_v_heads, d_v, d_k] float64, before the token.
            inputs: of the token.
            off: the largest error of rounding values to what records keep, :meth:`Method.rounds`.
            before: the slack of ``state``: 0, or as this returns it.
        """
        return before


def constant_acceptance(case: Case) -> int | None:
    """Return how many tokens every step commits, None where that is random."""
    from perfkit.roofline import acceptance_pmf

    pmf = acceptance_pmf(case.acceptance, case.depth)
    most = int(pmf.argmax())
    return most + 1 if pmf[most] > 1 - 1e-12 else None


class Method(ABC):
    """One way to manage the state in one phase. A method file holds one instance, called ``METHOD``."""

    key: str  # "conventional", "replay"
    family: str  # "mamba2"
    phase: Phase
    source: str  # "paper, Alg. 1; App. C.3"
    windowed: bool = False  # True when it has a replay buffer and so a window
    trees: bool = False  # True when it verifies draft trees, not only chains
    apart: bool = False  # True when launches of their own serve rows that flush, and read what is shared once more

    def supports(self, case: Case) -> str | None:
        """Return None, or the reason why this case cannot run (a sweep shows it as skipped)."""
        return None

    @abstractmethod
    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return the buffers that the method adds to the family's inputs; also the memory per request."""

    def rounds(self, case: Case) -> str | None:
        """Return the dtype in which records keep what was derived from the state; None where they hold inputs."""
        return None

    @abstractmethod
    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int) -> Iterable[Launch]:
        """Return the launches of one step, commit included.

        ``step`` counts the steps since the cursors were last set; only its parity may matter (double-buffered
        cursors), and of verify which row of ``accepted`` or ``path`` it reads. ``tensors`` holds the family's inputs
        and the method's buffers by name; launches may use their ``stride()`` and ``shape`` but must not read their
        data.
        """

    @abstractmethod
    def start(self, case: Case, tensors: Mapping[str, Any], state: Any, origin: Any = 0) -> None:
        """Hand every live row over from prefill, on the device: checkpoint = ``state``, no records, cursors reset.

        ``state`` is [batch, n_v_heads, d_v, d_k]; rows with a null slot are left alone. ``origin`` is where the ring
        starts: an integer or a tensor [batch]; methods without a ring ignore it. Whatever an earlier request left
        in the record buffers is never read again.
        """

    @abstractmethod
    def committed(self, case: Case, tensors: Mapping[str, Any], step: int) -> Any:
        """Return the state [batch, n_v_heads, d_v, d_k] in float64 that the buffers stand for, for checks.

        ``step`` is the step that would come next, which says which half of double-buffered cursors holds.
        """

    def period(self, case: Case) -> int:
        """Return the steps after which cursors and acceptance are back where they started.

        One if there are no cursors; of random acceptance the steps that are drawn.
        """
        return 1 if constant_acceptance(case) is not None else ACCEPTANCE_STEPS

    @abstractmethod
    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        """Return the exact counts of a step whose rows all have ``h`` committed records, flushing or not.

        A verify method without a window holds what the step before committed, if anything: its h is that ``a``, and
        0 after a hand-over.
        """

    @abstractmethod
    def paper(self, shape: Shape, point: Point) -> Step:
        """Return the paper's count of the same step, amortized over a window, in the paper's own convention."""

    @abstractmethod
    def configs(self, case: Case) -> Sequence[Config]:
        """Return the launch configurations to search; the first is the default."""

    def memory_per_request(self, case: Case) -> int:
        """Return the bytes that one more request needs in this layer, a slot's share: state, records, cursors."""
        keep = ("state", "record", "cursor")
        return sum(b.nbytes // b.shape[0] for b in self.buffers(case).values() if b.role in keep)
