"""Steps of activation replay by hand, for tests of every family."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from perfkit.method import Case
from perfkit.session import Session


def walk_activation_replay(case: Case, launches: Sequence[str]) -> None:
    """Step two rows of T = 3 beside the oracle: a = T, T − 1, 1; then one row sits out.

    The working state is garbage before every step. ``launches``: names of a step's kernels, in order.
    """
    session = Session(case, "cpu")
    method, tensors, state = session.method, session.tensors, session.method.committed(case, session.tensors, 0)
    home, pending = tensors["slots"].clone(), torch.tensor([0, 0])
    steps = (((3, 1), (3, 3)), ((2, 3), (3, 3)), ((1, 2), (2, 3)), ((1, 1), (3, 1)))
    for index, (accepted, drafts) in enumerate(steps):
        session.family.fill_inputs(tensors, index)
        tensors["working"].fill_(math.nan)
        tensors["out"].fill_(math.nan)
        tensors["accepted"][index].copy_(pending)
        tensors["drafts"].copy_(torch.tensor(drafts))
        tensors["slots"].copy_(home if index < 3 else torch.tensor([home[0], -1]))
        assert [launch.name for launch in method.launches(case, session.config, tensors, index)] == list(launches)
        assert session.step(index) == 3
        walked = [state]
        for t in range(3):
            after, out = session.family.reference(walked[-1], session.family.token(tensors, t))
            walked.append(after)
            on = (tensors["slots"] >= 0) & (tensors["drafts"] > t)
            assert torch.allclose(tensors["out"][on, t].double(), out[on], rtol=1e-5, atol=1e-6)
            assert tensors["out"][~on, t].isnan().all()
        state = torch.stack([walked[n][row] for row, n in enumerate(accepted)])
        pending = torch.tensor(accepted)
        tensors["accepted"][index + 1].copy_(pending)
        found = method.committed(case, tensors, index + 1)
        on = tensors["slots"] >= 0
        assert torch.allclose(found[on], state[on], rtol=1e-5, atol=1e-6)
