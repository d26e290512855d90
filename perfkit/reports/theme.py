"""Colours and markers: a method looks the same in every figure, page and version, in light and dark.

The colours are Okabe and Ito's, adjusted so that each keeps a contrast of at least 3:1 with its background; the
marker tells methods apart where colour cannot. Figures are built in light colours; the page maps each of them to its
dark twin through :func:`dark_twins`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Style:
    """How a method is drawn: colours ``#rrggbb`` for the two backgrounds, and the name of a Plotly marker."""

    light: str
    dark: str
    marker: str


METHOD_STYLES = MappingProxyType(
    {
        "conventional": Style("#4d5562", "#c3cad4", "square"),
        "replay": Style("#0072b2", "#56b4e9", "circle"),
        "snapshot": Style("#d55e00", "#ff9450", "diamond"),
        "fused_recovery": Style("#008a66", "#2fd0a2", "triangle-up"),
        "activation_replay": Style("#b0478f", "#e79acb", "triangle-down"),
        "joint_attainment": Style("#8a6d00", "#e6c229", "hexagon"),
        "stree": Style("#4b3aa8", "#a79bff", "triangle-left"),
        "stree_released": Style("#882255", "#f27ba5", "triangle-right"),
    }
)
#: For methods that perfkit does not ship; the key chooses, so that a plug-in also looks the same in every report.
_OTHER_COLOURS = (
    ("#117733", "#6fcf7f"),
    ("#7a7a00", "#cfcf55"),
    ("#2f6fb0", "#8fbcf0"),
    ("#a03a2c", "#f08f80"),
    ("#6b4f9e", "#bda6ef"),
)
_OTHER_MARKERS = ("pentagon", "star", "hexagram", "star-square", "star-diamond", "bowtie", "hourglass")

BACKGROUND = ("#ffffff", "#14181e")
TEXT = ("#1c2430", "#e7eaef")
MUTED = ("#5a6472", "#a0aab8")
GRID = ("#e4e8ed", "#2a313b")
AXIS = ("#aab2bd", "#56606e")
ACCENT = ("#a8480a", "#f5a65b")
#: Direct labels stand on this, so that grid lines do not cross them.
PLATE = ("#fffffe", "#14181f")
BAND_ALPHA = 0.16


def method_style(key: str) -> Style:
    """Return how a method is drawn; unknown keys get a style chosen by their name alone."""
    known = METHOD_STYLES.get(key)
    if known is not None:
        return known
    digest = zlib.crc32(key.encode())
    light, dark = _OTHER_COLOURS[digest % len(_OTHER_COLOURS)]
    return Style(light, dark, _OTHER_MARKERS[(digest // len(_OTHER_COLOURS)) % len(_OTHER_MARKERS)])


def translucent(colour: str, alpha: float = BAND_ALPHA) -> str:
    """Return ``#rrggbb`` as ``rgba(r,g,b,alpha)``."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def dark_twins() -> dict[str, str]:
    """Return every light colour that a figure may use, and its twin on the dark background."""
    pairs = [BACKGROUND, TEXT, MUTED, GRID, AXIS, ACCENT, PLATE, *_OTHER_COLOURS]
    pairs += [(style.light, style.dark) for style in METHOD_STYLES.values()]
    twins = dict(pairs)
    return twins | {translucent(light): translucent(dark) for light, dark in pairs}
