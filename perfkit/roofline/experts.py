"""How many routed experts a step touches: each that is picked by one row at least is read once.

A row picks k of E experts. Rows with different tokens pick independently of each other, as trained routers that
balance their load do, so that of n *distinct* rows an expert is left alone by all with probability (1 - k/E)^n. Rows
that are the same token after the same prompt pick the same experts and count as one: published whole-step runs sent one
prompt B times, greedily, and so read as few experts as a batch of one.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from perfkit.errors import InputError

Routing = Literal["independent", "identical"]
ROUTINGS: tuple[Routing, ...] = ("independent", "identical")


def distinct_rows(routing: str, batch: Any, draft_len: Any = 1) -> Any:
    """Return n, the token rows of a step that route each in their own way; arrays broadcast.

    Args:
        routing: ``independent``, every request has tokens of its own: B * T; ``identical``, one prompt B times: T.
        batch: B, requests.
        draft_len: T, rows of a request.

    Raises:
        InputError: another word.
    """
    if routing not in ROUTINGS:
        raise InputError("how rows pick experts", field="routing", value=routing, allowed=ROUTINGS)
    rows = np.multiply(batch, draft_len)
    return rows if routing == "independent" else np.broadcast_to(draft_len, np.shape(rows))[()]


def hit_share(rows: Any, top_k: int, experts: int) -> Any:
    """Return the expected share of experts that ``rows`` distinct rows touch: 1 - (1 - k/E)^n; arrays broadcast.

    Super, 22 of 512: 0.043 for one row, 0.99999 for 256. Qwen3.5-122B, 8 of 256: 0.031 and 0.9997.

    Raises:
        InputError: k is not one of 1..E.
    """
    if not 1 <= top_k <= experts:
        raise InputError("must be a number of experts", field="moe_top_k", value=top_k, allowed=f"1..{experts}")
    if top_k == experts:
        return np.minimum(rows, 1.0)
    return -np.expm1(np.asarray(rows, dtype=np.float64) * np.log1p(-top_k / experts))
