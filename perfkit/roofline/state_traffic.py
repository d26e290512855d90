"""How many times a step reads and writes the whole state: the paper's table of strategies.

R and W are one full read and one full write of the batch's state. Source: paper, App. A.1; decode: App. C.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from perfkit.errors import InputError


@dataclass(frozen=True, slots=True)
class StateTraffic:
    """One strategy's counts, each a constant and a part that grows with T.

    Attributes:
        reads: R.
        writes: W that every step does.
        writes_per_draft: W for each of the T positions.
        writes_per_flush: W that a flush adds; flushes per step come from the cursor.
        launches: kernels and copies, commit excluded.
        serial: length of the longest chain of dependent state updates, constant part.
        serial_per_draft: its part that grows with T; output-only replay has none.
        serial_per_replayed: its part that grows with the tokens that a step replays: a, or none at a = T.
        trees: whether it takes a draft tree.
        note: what else the count depends on.
    """

    reads: int
    writes: int
    writes_per_draft: int = 0
    writes_per_flush: int = 0
    launches: int = 1
    serial: int = 0
    serial_per_draft: int = 0
    serial_per_replayed: int = 0
    trees: bool = False
    note: str = ""

    def counts(self, draft_len: Any = 1, flush_rate: Any = 0.0) -> tuple[Any, Any]:
        """Return (R, W) of a step with T = ``draft_len`` that flushes with probability ``flush_rate``."""
        return (
            self.reads + 0 * draft_len,
            self.writes + self.writes_per_draft * draft_len + self.writes_per_flush * flush_rate,
        )

    def chain(self, draft_len: Any = 1, replayed: Any = None) -> Any:
        """Return the serial state updates of a step that replays ``replayed`` tokens; T - 1, the most, if None."""
        replayed = draft_len - 1 if replayed is None else replayed
        return self.serial + self.serial_per_draft * draft_len + self.serial_per_replayed * replayed


STATE_TRAFFIC: Mapping[str, StateTraffic] = MappingProxyType(
    {
        "conventional": StateTraffic(reads=1, writes=1, serial=1, note="decode"),
        "snapshot": StateTraffic(reads=1, writes=0, writes_per_draft=1, serial_per_draft=1, trees=True),
        "fused_recovery": StateTraffic(
            reads=1, writes=2, serial_per_draft=1, serial_per_replayed=1, note="chain 2T - 1 at a = T - 1; T at a = T"
        ),
        "activation_replay": StateTraffic(
            reads=3, writes=3, launches=3, serial_per_draft=2, note="replay always runs T steps"
        ),
        "joint_attainment": StateTraffic(
            reads=3, writes=4, launches=2, serial=-1, serial_per_draft=2, note="two rows a request, then a gather"
        ),
        "stree": StateTraffic(
            reads=2, writes=1, launches=2, serial_per_draft=1, trees=True, note="masked replay, read-only scan"
        ),
        "stree_released": StateTraffic(
            reads=5,
            writes=4,
            launches=5,
            serial_per_draft=1,
            trees=True,
            note="as stree, with a self-copy (gather, copy back) and a copy to the working state",
        ),
        "replay": StateTraffic(
            reads=1, writes=0, writes_per_flush=1, trees=True, note="a flush once per about L / a steps"
        ),
    }
)


def state_traffic(key: str) -> StateTraffic:
    """Return a strategy's counts.

    Raises:
        InputError: the table has no such strategy.
    """
    try:
        return STATE_TRAFFIC[key]
    except KeyError:
        raise InputError("no state traffic known", field="method", value=key, allowed=STATE_TRAFFIC) from None
