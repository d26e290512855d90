"""The roofs that a roofline shows: what the rows themselves say, and the datasheet of their GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfkit.reports import select

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class RoofLines:
    """Memory roofs by name in GB/s, fastest first, and the FP32 peak in TFLOP/s if the GPU is known."""

    memory: tuple[tuple[str, float], ...]
    peak_tflops: float | None

    @property
    def ridge(self) -> float | None:
        """The intensity in FLOP per byte where the fastest memory roof meets the FP32 peak."""
        if self.peak_tflops is None or not self.memory:
            return None
        return self.peak_tflops * 1e3 / self.memory[0][1]


def known_roofs(frame: pd.DataFrame) -> RoofLines:
    """Return the roofs of the rows' GPU; of several GPUs in one frame, those of the first.

    Roofs in the rows depend on the mix of reads and writes and on the bytes moved; the fastest of each source is drawn.
    """
    from perfkit.errors import InputError
    from perfkit.profiles import load_gpu

    data = select.prepare(frame)
    memory: list[tuple[str, float]] = []
    used = data[data["roof_gb_s"].gt(0)]
    for source in dict.fromkeys(used["roof_source"].fillna("unnamed")):
        rows = used[used["roof_source"].fillna("unnamed").eq(source)]
        memory.append((f"{source} roof of these bytes", float(rows["roof_gb_s"].max())))
    peak = None
    key = next((value for value in data["gpu"] if value is not None), None)
    try:
        gpu = load_gpu(key) if key is not None else None
    except InputError:  # a GPU without a profile has only the roofs of its rows
        gpu = None
    if gpu is not None:
        peak = gpu.fp32_tflops
        memory.append(("datasheet bandwidth", float(gpu.bandwidth_gb_s)))
    return RoofLines(tuple(sorted(memory, key=lambda item: -item[1])), peak)
