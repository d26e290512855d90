"""What an implementation adds to the bound from bytes: a few physical parameters, fitted to measured times.

    time   = launches x node + (1 or flush) x hypot(stream, arithmetic x ALU)
    stream = (1 + record_share x tiles of records beyond one) x (overhead + walk x tiles of rows + body / efficiency)

body is the larger of memory at its roof and the chain of updates, ALU the time of the FLOPs at the rate at which state
updates can issue (:mod:`perfkit.roofline.latency`). The parameters belong to the kernels of one method and phase, and
not to a model or a GPU:

``overhead_us`` the chain of dependent trips of one program beyond the roof's own ramp (slot, state, store).
``walk_us``     the same where a program walks down its heads' rows: so much for each tile of 16 rows of d_v.
``record_share`` what each 16 records beyond the first 16 add to a program. Kernels hold records in tiles of a power of
                two, 16 at least, so the window counts rounded up: fitted at powers of two; sweeps over it have no other
                steps.
``wide``        what a window beyond 32 multiplies the stream by. Tiles of 64 records leave a program registers for
                few loads in flight. It is measured apart, on what the others say of such windows, and a family in which
                none was timed takes its siblings'.
``efficiency``  share of the roof that large batches approach.
``arithmetic``  instructions over those of the ideal mix of a state update. They hide behind memory in part: of two
                that take equally long, a step takes 1.4 times as long as either. Where a method has no such
                parameter, arithmetic counts only where it takes longer than memory.
``flush``       what a step that flushes takes over what all of the above says of it: it writes what it has just read
                and folded, and where some rows of a step flush, the bytes that they move count.

Each method has two to four of them (:data:`FORMS`), replay ``wide`` too; the others have no effect. Verify steps were
timed at one batch, so what they wait for whatever the batch is that of the family's decode kernels of the same build,
and so is what tiles of records add where verify was timed at one window (:data:`SHARED`). They are fitted with L2 cold
(:mod:`perfkit.roofline.fitting`).

A method that was never timed in its family is predicted by the same method of another family, :func:`borrowed`, with
an interval that says what such a loan has been worth where both were timed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.roofline.occupancy import Resources, carried_efficiency

if TYPE_CHECKING:
    from perfkit.profiles import Gpu

#: Name of each parameter: the value without effect, where a fit starts, and what it may be.
PARAMETERS: Mapping[str, tuple[float, float, tuple[float, float]]] = {
    "overhead_us": (0.0, 1.0, (0.0, 100.0)),
    "walk_us": (0.0, 1.0, (0.0, 100.0)),
    "record_share": (0.0, 0.05, (0.0, 1.0)),
    "efficiency": (1.0, 0.9, (0.01, 1.0)),
    "arithmetic": (0.0, 1.0, (0.0, 20.0)),
    "flush": (1.0, 1.2, (0.1, 10.0)),
    "wide": (1.0, 1.0, (1.0, 10.0)),
}
#: Longest window whose records lie in a tile that leaves registers for loads in flight.
WIDEST = 32
#: The parameters of a method's kernels. Conventional programs each hold one tile; replay's walk down their heads.
#: Verify runs T updates, or products of T rows, in a pass over memory.
FORMS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("replay", "decode"): ("walk_us", "record_share", "efficiency", "flush"),
    ("replay", "verify"): ("record_share", "efficiency", "arithmetic", "flush"),
}
#: Of them those that a fit does without, where no time tells them from the rest: steps that flush were not timed apart,
#: or no two windows whose records lie in tiles of different sizes.
OPTIONAL: Mapping[str, tuple[str, ...]] = {"decode": ("flush",), "verify": ("flush", "record_share")}
DEFAULT_FORMS: Mapping[str, tuple[str, ...]] = {
    "decode": ("overhead_us", "efficiency"),
    "verify": ("efficiency", "arithmetic"),
}
#: Of which decode method, and which parameters, verify kernels share, for they were timed at one batch, and some at one
#: window: replay walks over tiles of rows and records, the others hold one tile. What verify's own times tell goes
#: first.
SHARED: Mapping[str, tuple[str, tuple[str, ...]]] = {"replay": ("replay", ("walk_us", "record_share", "wide"))}
DEFAULT_SHARED = ("conventional", ("overhead_us",))
#: Whose kernels are most alike, first: the delta rules solve for what they write, and Mamba-2 does not.
SIBLINGS: Mapping[str, tuple[str, ...]] = {"gdn": ("kda", "mamba2"), "kda": ("gdn", "mamba2"), "mamba2": ("gdn", "kda")}
#: Rows of a tile in a walk, and records of the smallest tile.
TILE_ROWS = 16
TILE_RECORDS = 16
#: Spread of times about a fit before any were seen, and how many clusters of times that is worth: fits to one model's
#: conventional rows left 0.6 % and missed another model's by 2.5 % (RMS), replay's left 6 %. Stated.
PRIOR_SPREAD = 0.04
PRIOR_FREEDOM = 4
CONFIDENCE = 0.95
#: Half width of the 95 % interval of a loan where none was ever tried: a factor of two. Stated.
UNTRIED_LOAN = 1.0
#: Half width of the 95 % interval that carrying over to another GPU adds: four kernels of others that were timed on an
#: H200 land within 9.1 % of their published times on a B300. Stated.
CARRIED_WIDTH = 0.10
#: Half width of the 95 % interval that a window beyond WIDEST adds, at most, and where none of the kernels' own was
#: timed: decode of Mamba-2 is 23 % below what the delta rule's says; of verify, where one is 1.9 and the other 1.0, a
#: third family's is hardly known. Stated.
WIDE_DOUBT = 0.35
OURS = "ours"


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The fitted parameters of one method's kernels.

    Attributes:
        family: mamba2, gdn or kda.
        method: its key.
        phase: decode or verify.
        gpu: key of the GPU that the rows are from.
        overhead_us: see the module, as the next six.
        walk_us: µs per tile of 16 rows.
        record_share: per 16 records beyond 16.
        efficiency: 0 to 1.
        arithmetic: factor on the time of the FLOPs.
        flush: factor on steps that flush.
        wide: factor on windows beyond :data:`WIDEST`.
        spread: relative spread of measured times about the fit.
        width: half width of the 95 % interval of a predicted time, as a factor less 1.
        freedom: degrees of freedom of the spread.
        intervals: 95 % interval of each fitted parameter.
        batches: at which the rows were timed, ascending; () if not known.
        lender: the family whose times these are, where it is another one.
        impl: whose kernels.
        kernel: what a program of the largest of them takes; None if not known.
        carried_to: the GPU that the efficiency is carried over to, where it is another one than ``gpu``.
    """

    family: str
    method: str
    phase: str
    gpu: str
    overhead_us: float = 0.0
    walk_us: float = 0.0
    record_share: float = 0.0
    efficiency: float = 1.0
    arithmetic: float = 0.0
    flush: float = 1.0
    wide: float = 1.0
    spread: float = PRIOR_SPREAD
    width: float = 2 * PRIOR_SPREAD
    freedom: float = PRIOR_FREEDOM
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    batches: tuple[int, ...] = ()
    lender: str | None = None
    impl: str = OURS
    kernel: Resources | None = None
    carried_to: str | None = None

    def time_us(
        self, launch_us: Any, body_us: Any, d_v: Any = 0, alu_us: Any = 0.0, window: Any = None, flush: Any = 0.0
    ) -> Any:
        """Return the time of a step; numbers or arrays that broadcast.

        Args:
            launch_us: launches x node.
            body_us: what the step takes at its roof, or for its chain.
            d_v: rows of a head's state.
            alu_us: of its FLOPs, at the rates that they can reach.
            window: of the replay buffer; None for a method without one.
            flush: share of its bytes that rows move which flush: 1 or 0 where rows are in step.
        """
        body = np.asarray(body_us, dtype=np.float64)
        body = body if self.arithmetic else np.maximum(body, alu_us)
        stream = self.fixed_us(d_v, window) + self._slowdown(window) * body / self.efficiency
        # Arithmetic never takes less than it does at its rate, however well it hides.
        busy = np.maximum(np.hypot(stream, self.arithmetic * np.asarray(alu_us)), alu_us)
        return launch_us + busy * (1.0 + (self.flush - 1.0) * np.asarray(flush, dtype=np.float64))

    def fixed_us(self, d_v: Any = 0, window: Any = None) -> Any:
        """Return what a step takes beyond launches and the roof, whatever the batch."""
        waits = self.overhead_us + self.walk_us * np.ceil(np.asarray(d_v) / TILE_ROWS)
        return self._slowdown(window) * waits

    def width_at(self, window: Any = None) -> Any:
        """Return the half width of the 95 % interval at a window, or at each of an array, as a factor less 1."""
        if window is None:
            return self.width
        ends = self.intervals.get("wide")
        doubt = WIDE_DOUBT if ends is None else min(ends[1] / self.wide - 1.0, WIDE_DOUBT)
        return np.where(np.asarray(window) > WIDEST, _wider(self.width, doubt), self.width)

    def _slowdown(self, window: Any) -> Any:
        if window is None:
            return 1.0
        tiles = 1.0 + self.record_share * (tile_of(window) / TILE_RECORDS - 1.0)
        return tiles * np.where(np.asarray(window) > WIDEST, self.wide, 1.0)

    def covers(self, batch: int) -> bool:
        """Say whether a batch lies among those that were timed; without knowing them, yes."""
        return not self.batches or self.batches[0] <= batch <= self.batches[-1]


def form(method: str, phase: str) -> tuple[str, ...]:
    """Return the names of the parameters that a method's kernels have."""
    return FORMS.get((method, phase), DEFAULT_FORMS[phase])


def tile_of(window: Any) -> Any:
    """Return the records of the tile that holds a window: a power of two, :data:`TILE_RECORDS` at least."""
    return 2.0 ** np.ceil(np.log2(np.maximum(window, TILE_RECORDS)))


def from_entry(entry: Mapping[str, Any]) -> Efficiency:
    """Return the fit that an entry of :func:`perfkit.profiles.load_efficiency` holds."""
    given = entry["parameters"]
    return Efficiency(
        **{name: entry[name] for name in ("family", "method", "phase", "gpu", "spread", "width")},
        **{name: item["value"] for name, item in given.items()},
        **{name: entry[name] for name in ("freedom", "impl") if entry.get(name) is not None},
        intervals={name: (item["lo"], item["hi"]) for name, item in given.items()},
        batches=tuple(entry.get("batches") or ()),
        kernel=Resources(**entry["kernel"]) if entry.get("kernel") else None,
    )


def borrowed(family: str, method: str, phase: str, known: Sequence[Efficiency], off: float) -> Efficiency | None:
    """Return the fit of the same method of the family whose kernels are most alike; None if none was timed.

    A fit of as few times as it has parameters meets them whatever they are, and lends nothing where another can.

    Arithmetic of the families' other methods says how many more instructions the borrower's updates take than the
    lender's.

    Args:
        family: the borrower.
        method: its key.
        phase: decode or verify.
        known: the fits that there are.
        off: half width of the 95 % interval of a loan, as a factor less 1.
    """
    siblings = SIBLINGS.get(family, ())
    same = [one for one in known if one.family in siblings and (one.method, one.phase) == (method, phase)]
    if not same:
        return None
    found = min(same, key=lambda one: (one.freedom <= PRIOR_FREEDOM, siblings.index(one.family)))
    pairs = [
        (mine.arithmetic, theirs.arithmetic)
        for mine in known if mine.family == family
        for theirs in known
        if (theirs.family, theirs.method, theirs.phase, theirs.gpu) == (found.family, mine.method, mine.phase, mine.gpu)
        and mine.method != method and all(one.intervals.get("arithmetic", (0,))[0] > 0 for one in (mine, theirs))
    ]  # fmt: skip
    more = math.exp(float(np.mean([math.log(mine / theirs) for mine, theirs in pairs]))) if pairs else 1.0
    return replace(found, family=family, arithmetic=found.arithmetic * more, width=_wider(found.width, off),
                   lender=found.family)  # fmt: skip


def _wider(width: float, more: float) -> float:
    """Return the half width of an interval with a second, independent doubt in it; all are factors less 1."""
    return math.expm1(math.hypot(math.log1p(width), math.log1p(more)))


def known() -> tuple[Efficiency, ...]:
    """Return the fits of our kernels: a user's own (``perfkit fit``), then those that ship."""
    from perfkit.profiles import roofs_folder
    from perfkit.profiles.loader import file_stamp
    from perfkit.profiles.measured import EFFICIENCY, MEASURED

    folders = (roofs_folder(), MEASURED)
    return tuple(fit for one in folders for fit in _read(one, file_stamp(one / EFFICIENCY))[0])


def loan_width() -> float:
    """Return the half width of the 95 % interval of a loan, as a factor less 1, as it ships."""
    from perfkit.profiles.loader import file_stamp
    from perfkit.profiles.measured import EFFICIENCY, MEASURED

    return _read(MEASURED, file_stamp(MEASURED / EFFICIENCY))[1]


@lru_cache(maxsize=8)
def _read(folder: Path, stamp: object) -> tuple[tuple[Efficiency, ...], float]:
    from perfkit.profiles.measured import load_efficiency, load_loan

    loan = load_loan(folder)
    return tuple(map(from_entry, load_efficiency(folder))), UNTRIED_LOAN if loan is None else loan["width"]


def efficiency_for(
    family: str, method: str, phase: str, gpu: str | Gpu | None = None, impl: str = OURS
) -> Efficiency | None:
    """Return what is known of a method's kernels: on that GPU, else carried over to it, else a loan (:func:`borrowed`).

    None for a method that was timed in no family, and for one of somebody else's that was never published. A GPU is a
    key or a profile, which need not be one that ships; without one it is the first that the method was timed on.

    Raises:
        InputError: an implementation that nothing is known of.
    """
    key = gpu if gpu is None or isinstance(gpu, str) else gpu.key
    fits = known() if impl == OURS else _others(impl, gpu)
    same = [one for one in fits if (one.family, one.method, one.phase) == (family, method, phase)]
    found = next((one for one in same if one.gpu == key), same[0] if same else None)
    if found is None and impl == OURS:
        found = borrowed(family, method, phase, fits, loan_width())
    return found if found is None or gpu is None or key == found.gpu else carried(found, gpu)


def carried(found: Efficiency, gpu: str | Gpu) -> Efficiency:
    """Return a fit carried over to a GPU (:mod:`perfkit.roofline.occupancy`); as it is, if that has no profile."""
    from perfkit.errors import InputError
    from perfkit.profiles import load_gpu

    try:
        here, there = load_gpu(found.gpu), load_gpu(gpu) if isinstance(gpu, str) else gpu
    except InputError:
        return found
    speeds = (there.bandwidth_gb_s, here.bandwidth_gb_s)  # of datasheets: roofs of few GPUs were measured
    faster = speeds[0] / speeds[1] if speeds[0] and speeds[1] else 1.0
    share = carried_efficiency(found.efficiency, here, there, faster, found.kernel)
    return replace(found, efficiency=share, width=_wider(found.width, CARRIED_WIDTH), carried_to=there.key)


@lru_cache(maxsize=32)
def _others(impl: str, gpu: str | Gpu | None) -> tuple[Efficiency, ...]:
    from perfkit.roofline.implementations import load_implementations

    return tuple(map(from_entry, load_implementations(impl, gpu)))
