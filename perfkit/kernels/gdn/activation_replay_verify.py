"""Activation replay for Gated DeltaNet; see :mod:`perfkit.kernels.delta_activation_replay`.

Source: paper, App. A.1 (Snakes and Ladders, activation replay).
"""

from perfkit.kernels.delta_activation_replay import DeltaActivationReplay
from perfkit.kernels.gdn import layout


class ActivationReplayVerify(DeltaActivationReplay):
    """3R + 3W of the state at every step, whatever was accepted."""

    family = "gdn"
    layout = layout
    channelwise = False


METHOD = ActivationReplayVerify()
