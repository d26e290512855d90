"""A method of your own, timed beside perfkit's: the conventional decode step of Mamba-2 in plain torch operators.

    perfkit check --method examples/torch_decode.py:METHOD
    perfkit sweep --model nemotron-nano --method conventional,examples/torch_decode.py:METHOD --batch 16,256

A launch may be any callable that enqueues work on the current stream, so a CUDA C++ or CuTe kernel goes the same way.
The state's buffer, its hand-over and the byte count are conventional decode's, and so is the oracle that it must meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfkit.kernels.mamba2.conventional_decode import ConventionalDecode
from perfkit.method import Case, Config, Launch


def update(t: Mapping[str, Any]) -> None:
    """Advance every live row by one token, in FP32, in place. A dozen launches, each through memory."""
    import torch

    live = t["slots"] >= 0
    slots = t["slots"].long().clamp(min=0)
    group = t["x"].shape[1] // t["k"].shape[1]
    k, q = (t[name].float().repeat_interleave(group, dim=1) for name in ("k", "q"))
    x, dt = t["x"].float(), torch.nn.functional.softplus(t["dt"].float() + t["dt_bias"], threshold=30.0)
    old = t["state"][slots].float()
    new = old * torch.exp(t["a"] * dt)[..., None, None] + (dt[..., None] * x)[..., None] * k[..., None, :]
    out = (new * q[..., None, :]).sum(-1) + t["d_skip"][:, None] * x
    # Padded rows write back what they read of slot 0 and what their output held: no host sync, one CUDA graph.
    first = live[:, None, None, None]
    rows = torch.where(live, torch.arange(len(slots), device=slots.device), live.long().argmax())
    t["state"].index_copy_(0, slots[rows], torch.where(first, new, old)[rows].to(t["state"].dtype))
    t["out"].copy_(torch.where(live[:, None, None], out.to(t["out"].dtype), t["out"]))


class TorchDecode(ConventionalDecode):
    """Conventional decode, one operator at a time."""

    key = "torch"
    source = "paper, Eq. 1, in torch operators"

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """One callable; it enqueues several kernels."""
        yield Launch(update, (), (tensors,))

    def configs(self, case: Case) -> Sequence[Config]:
        """Nothing to search."""
        return [Config()]


METHOD = TorchDecode()
