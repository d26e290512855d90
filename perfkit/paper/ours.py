"""What stands beside a published number: ours, where it is from, and how the two differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from perfkit.profiles.published import PaperCell

#: Whose kernels the rows of a run are, unless a row says otherwise in a column ``implementation``.
IMPLEMENTATION = "perfkit"
#: A comparable number that is off by more than this share is a miss: published figures have two or three digits.
TOLERANCE = 0.05

Kind = Literal["measured", "recorded", "model"]
Verdict = Literal["miss", "agrees", "not comparable", "not measured", "not predicted", "not published"]
VERDICTS: tuple[Verdict, ...] = (
    "miss", "agrees", "not comparable", "not measured", "not predicted", "not published",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """Our number for a cell, or a range of numbers, and what it rests on.

    Attributes:
        kind: measured (a run that was named), recorded (measured earlier and shipped) or model (a formula).
        low: the number, or the least of a range.
        high: the number, or the largest.
        gpu: key of the GPU's profile; None for what no GPU decides.
        implementation: whose kernels, or ``formula``.
        baseline: as :attr:`perfkit.profiles.published.PaperCell.baseline`.
        routing: how requests chose experts; None where nothing does.
        date: the day that it was measured, YYYY-MM-DD.
        run: name of the file or folder that it is from.
    """

    kind: Kind
    low: float
    high: float
    gpu: str | None
    implementation: str
    baseline: str | None
    routing: str | None = None
    date: str | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the model says of a published cell of somebody else's implementation.

    Attributes:
        low: the number, or the least of a range over what is not published.
        high: the largest.
        basis: what stands in for what is not published; None where nothing does.
        reasons: why it is no test of the model; () where it is one.
    """

    low: float
    high: float
    basis: str | None = None
    reasons: tuple[str, ...] = ()

    def of(self, cell: PaperCell) -> Ours:
        """Return it as ours of a cell: the GPU, kernels, baseline and routing are those that were published."""
        return Ours(kind="model", low=self.low, high=self.high, gpu=cell.gpu, implementation=cell.implementation,
                    baseline=cell.baseline, routing=cell.routing)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A published cell and ours.

    Attributes:
        cell: the published one.
        ours: ours; None where there is none.
        absent: why there is none.
        reasons: why the two are not comparable; () where they are.
        basis: what ours rests on where not all that it takes is published.
        cause: of a miss: what the same gives under other assumptions.
    """

    cell: PaperCell
    ours: Ours | None
    absent: str | None
    reasons: tuple[str, ...]
    basis: str | None = None
    cause: str | None = None

    @property
    def ratio(self) -> tuple[float, float] | None:
        """Ours over published, end by end of a range; of an open range the end that is there, twice."""
        low, high = self.cell.low, self.cell.high
        if self.ours is None or (low is None and high is None) or low == 0 or high == 0:
            return None
        ends = [ours / paper for ours, paper in ((self.ours.low, low), (self.ours.high, high)) if paper is not None]
        return ends[0], ends[-1]

    @property
    def off(self) -> float:
        """How far the ratio is from 1, as the size of its logarithm; past an open end only. 0 without a ratio.

        Two zeros agree; a zero and another number are infinitely far. Of a range that the model gives for one number,
        because not all that it takes is published, the middle counts.
        """
        if self.ours is None or self.cell.lost is not None:
            return 0.0
        if self.ours.kind == "model" and self.cell.low == self.cell.high and self.ours.low > 0 and self.cell.low:
            return abs(_distance(math.sqrt(self.ours.low * self.ours.high), self.cell.low))
        if self.cell.low is None and self.cell.high is not None:
            return max(0.0, _distance(self.ours.high, self.cell.high, signed=True))
        if self.cell.high is None and self.cell.low is not None:
            return max(0.0, -_distance(self.ours.low, self.cell.low, signed=True))
        assert self.cell.low is not None and self.cell.high is not None
        return max(abs(_distance(self.ours.low, self.cell.low)), abs(_distance(self.ours.high, self.cell.high)))

    @property
    def verdict(self) -> Verdict:
        """What to make of it."""
        if self.cell.lost is not None:
            return "not published"
        if self.ours is None:
            return "not predicted" if self.cell.kind == "step" else "not measured"
        if self.reasons:
            return "not comparable"
        return "miss" if self.off > math.log1p(TOLERANCE) else "agrees"

    @property
    def order(self) -> tuple[int, float]:
        """Misses first, then by verdict; within one the furthest first."""
        return VERDICTS.index(self.verdict), -self.off


def differences(cell: PaperCell, ours: Ours) -> tuple[str, ...]:
    """Return why our number and the published one are not of the same thing; () where they are."""
    pairs = {
        "GPU": (ours.gpu, cell.gpu),
        "implementation": (ours.implementation, cell.implementation),
        "baseline": (ours.baseline, cell.baseline),
        "routing": (ours.routing, cell.routing),
    }
    return tuple(f"{name} {mine or 'none'}, not {theirs or 'none'}"
                 for name, (mine, theirs) in pairs.items() if mine != theirs)  # fmt: skip


def compared(cell: PaperCell, ours: Ours | None, absent: str | None) -> Compared:
    """Return a cell with ours, or with why there is none."""
    return Compared(cell=cell, ours=ours, absent=absent, reasons=() if ours is None else differences(cell, ours))


def document(item: Compared) -> dict[str, Any]:
    """Return a compared cell as plain data; ``ratio`` and the two numbers are [low, high]."""
    cell, ours = item.cell, item.ours
    published: Mapping[str, Any] = {
        "low": cell.low, "high": cell.high, "lost": cell.lost, "unit": cell.unit, "source": cell.source,
        "where": cell.where, "gpu": cell.gpu, "implementation": cell.implementation, "baseline": cell.baseline,
        "routing": cell.routing,
    }  # fmt: skip
    return {
        "quantity": cell.quantity, "label": cell.label, "method": cell.method, "models": cell.models,
        "batches": cell.batches, "draft_lens": cell.draft_lens, "windows": cell.windows,
        "acceptances": cell.acceptances, "state_dtype": cell.state_dtype, "read_dtype": cell.read_dtype,
        "step": cell.step, "note": cell.note, "published": published, "ours": ours, "absent": item.absent,
        "ratio": item.ratio, "comparable": None if ours is None or cell.lost else not item.reasons,
        "reasons": item.reasons, "verdict": item.verdict, "basis": item.basis, "cause": item.cause,
    }  # fmt: skip


def _distance(ours: float, paper: float, *, signed: bool = False) -> float:
    """Return log(ours / paper): 0 for two equal numbers, infinite where there is no ratio above 0."""
    if ours == paper:
        return 0.0
    if ours * paper <= 0:
        return math.copysign(math.inf, ours - paper) if signed else math.inf
    return math.log(ours / paper)
