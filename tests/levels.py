"""What FP16 corrections leave of a state at α = 0.999, for both delta rules: the level of the error does not grow."""

from __future__ import annotations

import math
from typing import Any

import torch

from perfkit.method import Case
from perfkit.session import Session


def check_level_of_fp16_corrections(family: Any, replay: Any, case: Case, steps: int = 2000, run: int = 48) -> None:
    """Step the recurrence in float64 with corrections rounded as replay rounds them; its kernels stay with it.

    Where a step flushes it rounds nothing. The kernels run the first ``run`` steps, checkpoints in FP32. An output is
    held against the sum of the absolute values of its terms, a state against its norm.
    """
    session = Session(case, "cpu")
    t = session.tensors
    states, outputs = [], []
    t["a_log"].zero_()
    t["dt_bias"].fill_(math.log(math.expm1(1e-3)))  # α = exp(−softplus(bias)) = 0.999
    exact = rounded = replay.committed(case, t, 0)
    for index in range(steps):
        family.fill_inputs(t, index)
        t["gate"].zero_()
        exact, _ = family.reference(exact, t)
        decay, u, k, q = family.update(rounded, t)
        decay = decay[..., None, :] if decay.dim() == 3 else decay[..., None, None]
        u = u if index % case.window == case.window - 1 else u.half().double()
        rounded = rounded * decay + u[..., None] * k[..., None, :]
        off = rounded - exact
        size = torch.linalg.vector_norm(exact)
        states.append(float(torch.linalg.vector_norm(off) / size))
        seen = torch.linalg.vector_norm((off * q[..., None, :]).sum(-1))
        outputs.append(float(seen / torch.linalg.vector_norm((exact.abs() * q.abs()[..., None, :]).sum(-1))))
        if index < run:
            session.step(index)
            assert torch.linalg.vector_norm(replay.committed(case, t, index + 1) - rounded) / size < 2e-5
    half = steps // 2
    assert max(outputs) < 1e-4  # 3e-5 as a rule
    assert max(states) < 3e-4 and max(states[half:]) < 1.3 * max(states[:half])
