"""Activation replay for Kimi Delta Attention; see :mod:`perfkit.kernels.delta_activation_replay`.

Source: paper, App. A.1 (Snakes and Ladders, activation replay).
"""

from perfkit.kernels.delta_activation_replay import DeltaActivationReplay
from perfkit.kernels.kda import layout


class ActivationReplayVerify(DeltaActivationReplay):
    """3R + 3W of the state at every step, whatever was accepted."""

    family = "kda"
    layout = layout
    channelwise = True


METHOD = ActivationReplayVerify()
