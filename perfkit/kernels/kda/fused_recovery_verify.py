"""Fused recovery for Kimi Delta Attention; see :mod:`perfkit.kernels.delta_fused_recovery`.

Source: paper, App. A.1 (The Mamba in the Llama).
"""

from perfkit.kernels.delta_fused_recovery import DeltaFusedRecovery
from perfkit.kernels.kda import layout


class FusedRecoveryVerify(DeltaFusedRecovery):
    """1R + 2W of the state at every step, and the inputs of the accepted tokens once more."""

    family = "kda"
    layout = layout
    channelwise = True


METHOD = FusedRecoveryVerify()
