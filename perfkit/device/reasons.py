"""Why the driver holds clocks down, in words, and which of these reasons spoil a timing.

Source: NVML API reference, nvmlClocksEventReasons.
"""

from __future__ import annotations

from types import MappingProxyType

#: Bit -> words.
REASONS = MappingProxyType(
    {
        0x001: "idle",
        0x002: "application clocks setting",
        0x004: "power cap",
        0x008: "hardware slowdown",
        0x010: "sync boost",
        0x020: "software thermal slowdown",
        0x040: "hardware thermal slowdown",
        0x080: "power brake",
        0x100: "display clock setting",
    }
)
#: Reasons that make a sample slower than the GPU is; the others are settings, or say that nothing runs.
THROTTLING = 0x004 | 0x008 | 0x020 | 0x040 | 0x080


def decode(mask: int) -> tuple[str, ...]:
    """Return the words for each bit that is set; a bit without a name is given as a number, not dropped."""
    known = tuple(words for bit, words in REASONS.items() if mask & bit)
    rest = mask & ~sum(REASONS)
    return (*known, f"unknown {rest:#x}") if rest else known


def throttling(mask: int) -> tuple[str, ...]:
    """Return the words of the reasons that spoil a timing."""
    return decode(mask & THROTTLING)
