"""The same question on several GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfkit.errors import InputError
from perfkit.plan.answer import Answer, answer
from perfkit.plan.question import Question
from perfkit.profiles import Gpu, load_gpu
from perfkit.roofline import roofs_for


@dataclass(frozen=True, slots=True)
class OnGpu:
    """What a plan says on one GPU.

    Attributes:
        gpu: its profile.
        answer: None where the question cannot run there.
        reason: why not.
    """

    gpu: Gpu
    answer: Answer | None
    reason: str | None = None


def on_gpus(question: Question, keys: Sequence[str]) -> list[OnGpu]:
    """Return the answers, in the order of the keys, each GPU once.

    Raises:
        InputError: an unknown GPU.
    """
    found = []
    own = question.gpu  # a profile of its own may be known by no key
    profiles = [own if key == own.key else load_gpu(key) for key in keys]
    for profile in {one.key: one for one in profiles}.values():
        memory = question.memory_gb if profile.key == own.key else None  # what was stated is of that GPU
        try:
            there = question.but(gpu=profile, roofs=roofs_for(profile), memory_gb=memory)
            found.append(OnGpu(profile, answer(there)))
        except InputError as error:
            found.append(OnGpu(profile, None, str(error)))
    return found
