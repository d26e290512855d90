"""What GPUs that share a model tell each other in a step: all-reduces, estimated.

Each mixer and each MLP or expert layer ends in one sum over the GPUs of B·T rows of the hidden width. A ring sends
2 (n - 1) / n of them through each link. Links are of the datasheet, in one direction; how much of it small messages
reach, and how far they overlap with anything, is not modelled but for a stated latency.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from perfkit.profiles import Gpu, Model

#: Of one all-reduce of a few rows inside a CUDA graph. Stated, not measured.
LATENCY_US = 8.0
ELEMENT_BYTES = 2
#: 10^9 bytes per second in one direction, by generation (NVLink 3, 4, 5), of boards that have it.
NVLINK_GB_S = MappingProxyType({"8.0": 300.0, "9.0": 450.0, "10.0": 900.0, "10.3": 900.0})
#: PCIe 4.0 x16 and 5.0 x16, of the others.
PCIE_GB_S = MappingProxyType({"8": 32.0, "9": 64.0, "10": 64.0, "12": 64.0})
#: Boards of those generations without it, or with bridges between pairs alone.
_NO_NVLINK = ("pcie", "nvl")


def link_gb_s(gpu: Gpu) -> float:
    """Return the bandwidth of a GPU's link to its neighbours in one direction, 10^9 bytes per second."""
    capability = gpu.compute_capability
    if capability in NVLINK_GB_S and not any(word in gpu.key for word in _NO_NVLINK):
        return NVLINK_GB_S[capability]
    return PCIE_GB_S.get(capability.split(".")[0], 32.0)


def comm_us(model: Model, gpu: Gpu, rows: Any, tp: int) -> Any:
    """Return the estimated time of a step's all-reduces, in microseconds; 0 for one GPU. Arrays broadcast."""
    if tp == 1:
        return 0.0
    count = model.n_ssm_layers + model.n_attn_layers + model.n_mlp_layers + model.n_moe_layers
    moved = np.multiply(rows, 2.0 * (tp - 1) / tp * model.hidden_size * ELEMENT_BYTES)
    return count * (LATENCY_US + moved / (link_gb_s(gpu) * 1e3))
