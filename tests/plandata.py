"""Answers of a plan and their frames, made once for tests."""

from __future__ import annotations

from functools import cache
from typing import Any

from perfkit.plan import Answer, Frames, answer, frames, make_question, parse_drafts
from perfkit.profiles import load_gpu, load_model
from perfkit.roofline import shipped_roofs


@cache
def found(
    model: str = "nemotron-super", gpu: str = "b300", acceptance: str | None = ".88,.62,.40", **given: Any
) -> Answer:
    """The answer for 256 requests, unless something else is given."""
    profile = load_gpu(gpu)
    return answer(make_question(load_model(model), profile, shipped_roofs(profile), drafts=parse_drafts(acceptance),
                                **{"concurrency": 256, **given}))  # fmt: skip


@cache
def made(model: str = "nemotron-super", gpu: str = "b300", **given: Any) -> Frames:
    """Its frames, the front over two precisions."""
    said = found(model, gpu, **given)
    return frames(said, said.table.question.but(state_dtypes=("float32", "float16")))
