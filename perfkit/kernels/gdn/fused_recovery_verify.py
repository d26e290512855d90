"""Fused recovery for Gated DeltaNet; see :mod:`perfkit.kernels.delta_fused_recovery`.

Source: paper, App. A.1 (The Mamba in the Llama).
"""

from perfkit.kernels.delta_fused_recovery import DeltaFusedRecovery
from perfkit.kernels.gdn import layout


class FusedRecoveryVerify(DeltaFusedRecovery):
    """1R + 2W of the state at every step, and the inputs of the accepted tokens once more."""

    family = "gdn"
    layout = layout
    channelwise = False


METHOD = FusedRecoveryVerify()
