"""Serving throughput with drafts of Qwen3.5-122B on a B300: verify kernels as published, steps in waves, prefill.

What goes in besides a whole step (:mod:`perfkit.paper.steps`): verify kernels in conventional decode steps (Fig. 10),
snapshots linear in T between the published ends, since they write T states; how many requests fit with snapshots, from
the published count at T = 4; what a request costs besides its steps, from the throughput of standard decoding at
B = 512; and the rate at which drafts are accepted with what a draft pass costs, both fitted to replay's gain over
standard decoding at B = 1 and 32 (:func:`perfkit.paper.fit.fit_drafts`). The cells that these are read off are no test
and say so. What comes out is a range over replay's band from no draft accepted to all.

Source: paper, Figs. 3, 10, Table 9; vLLM pull requests 47576, 49887.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from perfkit.paper.kernels import conventional_us
from perfkit.paper.ours import Predicted
from perfkit.paper.steps import VLLM, vllm_step
from perfkit.profiles import load_model
from perfkit.profiles.published import PaperCell, load_paper
from perfkit.roofline import request_memory, served_tokens_per_s

MODEL, GPU = "qwen3.5-122b-a10b", "b300"
SNAPSHOTS, STANDARD = "speculative decoding with snapshots", "standard decoding"
#: Batches whose gain over standard decoding the drafts are fitted to.
REFERENCES = (1, 32)
#: Batch at which verify kernels are published.
KERNEL_BATCH = 256
#: Tokens that each request generates, and its context on average: a question of some hundred and half an answer. Keys
#: and values are under 1 % of these steps.
TOKENS, CONTEXT = 256, 230
#: Tokens of a request for which the published counts of requests are.
FITTED_CONTEXT = 2048
ACCEPTANCE = "not predicted; the acceptance is not published, and only Qwen3.5-122B has cells to read it off"
WINDOW = "not predicted; verify kernels are published at L = 16 only"
READ_OFF = "what the prediction needs was read off this cell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """What drafts of the model's own layer give and cost.

    Attributes:
        rate: probability that a draft is accepted if all before it were.
        pass_us: of a draft pass beyond its weights.
        rate_interval: 95 %.
    """

    rate: float
    pass_us: float
    rate_interval: tuple[float, float] | None = None

    def accepted(self, draft_len: int) -> float:
        """Return the tokens that a step commits."""
        return float(sum(self.rate**position for position in range(draft_len)))


#: As fitted; a test fits them again. The pass's time is the engine's.
DRAFTS = Drafts(rate=0.829, pass_us=VLLM.pass_us, rate_interval=(0.757, 0.902))


def serving_value(cell: PaperCell) -> Predicted | str:
    """Return ours for a published throughput or a ratio of two, or why there is none."""
    if cell.models != (MODEL,) or not cell.batches or len(cell.draft_lens) != 1:
        return ACCEPTANCE
    if cell.windows not in ((), (16,)):
        return WINDOW
    batch = cell.batches[0]
    reasons: tuple[str, ...] = ()
    found = values(cell)
    absolute = cell.quantity == "serving_tokens_per_s"
    if cell.method == "conventional" if absolute else cell.baseline == STANDARD and batch in REFERENCES:
        reasons = (READ_OFF,)
    return Predicted(low=min(found), high=max(found), reasons=reasons)


def values(cell: PaperCell, drafts: Drafts = DRAFTS, **changes: bool) -> list[float]:
    """Return ours of a cell by both ends of replay's band."""
    batch, draft_len = cell.batches[0], cell.draft_lens[0]
    found = []
    for end in (0, 1):
        ours = tokens_per_s(str(cell.method), batch, draft_len, end, drafts, **changes)
        if cell.baseline == SNAPSHOTS:
            ours /= tokens_per_s("snapshot", batch, draft_len, end, drafts, **changes)
        elif cell.baseline == STANDARD:
            ours /= tokens_per_s("conventional", batch, 1, end, drafts, **changes)
        found.append(ours)
    return found


def tokens_per_s(
    method: str, batch: int, draft_len: int, end: int, drafts: Drafts = DRAFTS, *, prefill: bool = True,
    waves: bool = True,
) -> float:  # fmt: skip
    """Return the tokens per second of ``batch`` requests that arrive together.

    Args:
        method: replay, snapshot or conventional.
        batch: requests.
        draft_len: T; 1 is standard decoding.
        end: of replay's band, 0 where no draft is accepted, 1 where all are.
        drafts: what they give and cost.
        prefill: whether what a request costs once counts.
        waves: whether no more requests run at once than fit.
    """
    kernel, fits = 1.0, batch
    if method == "snapshot":
        kernel, fits = snapshot_steps(draft_len), fits_with_snapshots(draft_len) if waves else batch
    elif method == "replay":
        kernel = replay_steps(draft_len)[end]
    return _served(kernel, batch, draft_len, fits, drafts, _request_us() if prefill else 0.0)


@cache
def snapshot_steps(draft_len: int) -> float:
    """Return the time of the snapshot kernel in conventional decode steps: 2.09 at T = 2, 6.40 at T = 8."""
    two, eight = (_published("fig10", method="snapshot", draft_lens=(draft,)) for draft in (2, 8))
    return two + (eight - two) * (draft_len - 2) / 6


@cache
def replay_steps(draft_len: int) -> tuple[float, float]:
    """Return replay's band in conventional decode steps, from no draft accepted to all; T = 6 pays for 8."""
    if draft_len <= 4:
        (cell,) = (one for one in load_paper("fig10").cells if one.draft_lens == (2, 4))
        assert cell.low is not None and cell.high is not None
        return cell.low, cell.high
    none, every = (_published("fig10", method="replay", draft_lens=(8,), acceptances=(text,)) for text in ("1", "T"))
    return none, every


@cache
def fits_with_snapshots(draft_len: int) -> int:
    """Return how many requests fit with snapshots: the published count at T = 4, and by its budget at another T."""
    (count,) = (one.low for one in load_paper("capacity").cells
                if (one.quantity, one.method, one.models) == ("requests", "snapshot", (MODEL,)))  # fmt: skip
    assert count is not None
    four, here = (request_memory(load_model(MODEL), "snapshot", context=FITTED_CONTEXT, draft_len=draft).total
                  for draft in (4, draft_len))  # fmt: skip
    return int(count) * four // here


@cache
def _request_us() -> float:
    """Return what a request takes besides its steps: what the step lacks of standard decoding's throughput."""
    return (1e6 / _standard() - 1e6 / _served(1.0, 512, 1, 512, DRAFTS, 0.0)) * TOKENS


@cache
def _standard() -> float:
    return _published("fig3", quantity="serving_tokens_per_s", method="conventional")


@cache
def _served(kernel: float, batch: int, draft_len: int, fits: int, drafts: Drafts, request_us: float) -> float:
    """Return tokens per second with a kernel that takes ``kernel`` conventional decode steps."""
    step = vllm_step(MODEL, GPU)
    own = replace(step.overheads, pass_us=drafts.pass_us, intervals=())
    step = replace(step, overheads=own)
    layer = conventional_us(MODEL, GPU, 1)

    def step_us(running: Any) -> Any:
        return step.step(kernel * layer * running, running, draft_len=draft_len, context=CONTEXT).us

    return float(
        served_tokens_per_s(
            step_us, batch, fits, accepted=drafts.accepted(draft_len), tokens=TOKENS, request_us=request_us
        )
    )


def _published(name: str, **wanted: Any) -> float:
    (value,) = (one.low for one in load_paper(name).cells
                if all(getattr(one, key) == wish for key, wish in wanted.items()))  # fmt: skip
    assert value is not None
    return value


def serving_cause(cell: PaperCell) -> str:
    """Say what the same cell gives without prefill, without waves, or by another acceptance."""
    said = []
    if cell.baseline == SNAPSHOTS:
        said.append(f"decode steps without prefill would give {_range(values(cell, prefill=False))}")
        said.append(f"all requests at once {_range(values(cell, waves=False))}")
    else:
        assert DRAFTS.rate_interval is not None
        ends = [values(cell, replace(DRAFTS, rate=rate)) for rate in DRAFTS.rate_interval]
        said.append(f"acceptance within its interval would give {_range([one for end in ends for one in end])}")
    if cell.batches[0] < KERNEL_BATCH:
        said.append(f"verify kernels, published at B = {KERNEL_BATCH} only, count as many conventional steps here")
    return "; ".join(said)


def _range(found: list[float]) -> str:
    low, high = (f"{end:,.0f}" if end >= 1000 else f"{end:.2f}" for end in (min(found), max(found)))
    return low if low == high else f"{low}..{high}"
