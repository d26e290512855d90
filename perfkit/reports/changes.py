"""Before and after: what :mod:`perfkit.compare` says of the runs of a report that are of one model and GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfkit.errors import InputError
from perfkit.reports.runs import Run, distinct
from perfkit.reports.text import count, join, sentence

if TYPE_CHECKING:
    from perfkit.compare import Comparison

#: So many rows of a comparison stand in the page; ``perfkit compare`` prints the others.
MAX_ROWS = 200
#: So many cases are named in the answer.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Change:
    """Two runs compared.

    Attributes:
        base, new: their names in the report.
        found: the comparison; None where the runs do not compare.
        why_not: the reason then.
    """

    base: str
    new: str
    found: Comparison | None
    why_not: str = ""

    @property
    def verdict(self) -> str:
        """One word: ``faster``, ``slower``, ``same``, ``mixed``, ``ambiguous``, ``missing`` or ``none``."""
        return "none" if self.found is None else self.found.verdict

    @property
    def headline(self) -> str:
        """How many cases ended with which verdict."""
        if self.found is None:
            return f"{self.new} does not compare with {self.base}: {self.why_not}"
        counts = self.found.counts
        words = [f"{n} {'the same' if name == 'same' else name}" for name, n in counts.items() if n]
        return f"{self.new} against {self.base}: of {count(len(self.found.cases), 'case')} {join(words)}"

    @property
    def advice(self) -> str:
        """The worst cases by name, with their changes."""
        from perfkit.compare.text import percent

        if self.found is None:
            return ""
        slower = [case for case in self.found.cases if case.verdict == "slower" and case.change is not None]
        broken = [case for case in self.found.cases if case.broke]
        uncompared = self.found.uncompared
        parts = []
        if slower:
            names = [f"{case.name} {percent(case.change.value)}" for case in slower[:_NAMED] if case.change is not None]
            parts.append(f"slowest against their controls: {join(names)}")
        if broken:
            names = [f"{case.name} ({case.new.status})" for case in broken[:_NAMED]]
            parts.append(f"no longer ok: {join(names)}")
        if uncompared:
            names = [f"{case.name} ({case.reason})" for case in uncompared[:_NAMED]]
            parts.append(f"not compared: {join(names)}")
        return f"{sentence('; '.join(parts) or 'no case is slower beyond the floor and the noise')}."

    @property
    def rows(self) -> list[list[str]]:
        """The table, worst first, without cases that are the same; at most :data:`MAX_ROWS`."""
        from perfkit.compare import rows

        return [] if self.found is None else rows(self.found)[:MAX_ROWS]

    @property
    def notes(self) -> list[str]:
        """What stands below the table."""
        from perfkit.compare import lines, rows

        if self.found is None:
            return []
        left_out = len(rows(self.found)) - MAX_ROWS
        more = [f"{count(left_out, 'more row')}: perfkit compare prints them"] if left_out > 0 else []
        return [*more, *(" ".join(line.split()) for line in lines(self.found))]


def changes(runs: Sequence[Run]) -> list[Change]:
    """Compare each run with the first before it that was measured on the same GPUs with the same models."""
    return list(_changes(runs))


def _changes(runs: Sequence[Run]) -> Iterator[Change]:
    names = distinct([run.name for run in runs])
    first: dict[tuple[frozenset[str], ...], int] = {}
    for i, run in enumerate(runs):
        measured = run.frame[run.frame["source"].eq("measured")]
        if run.path is None or not len(measured):
            continue
        j = first.setdefault((frozenset(measured["model"].dropna()), frozenset(measured["gpu"].dropna())), i)
        if j != i:
            yield _change(runs[j], run, names[j], names[i])


def _change(base: Run, new: Run, base_name: str, new_name: str) -> Change:
    from perfkit import compare

    try:
        found = compare.compare(compare.load(str(base.path)), compare.load(str(new.path)))
    except InputError as error:
        return Change(base_name, new_name, None, str(error).partition(";")[0])  # flags of the command follow
    return Change(base_name, new_name, found)
