"""Roofs: the least time in which a GPU moves some bytes, given how many of them are reads and how many writes.

Reads alone run faster than reads with writes in place (H200: 4.66 against 4.19 TB/s), and so do writes alone (4.66), so
a roof is not one number. Measured curves give it: the time of moving N bytes of which a share w is writes, for some w.
Reads alone (w = 0) and reading and writing in place (1/2) are always there. Between neighbouring shares the time of N
bytes is linear in w. Up to as many writes as reads, where nothing between (1/5, 1/3) was measured, that is: the reads
run at the read roof, the writes at the effective rate that the in-place curve implies, 1 / (2 / in_place - 1 / read).

Past half, as of snapshots, writes to several places for each read are slower than both ends (H200: 3.83 TB/s with eight
writes to a read), so their shares, 2/3, 4/5 and 8/9, have curves of their own where they were measured. Where they were
not, what is written more than read runs at the write roof; where that was not either, at the roof of the largest share.

Small transfers do not reach a plateau: the curves are times, not bandwidths, and keep their intercept. Below its
smallest size a mix has the shape of the in-place curve.

A file may also hold what L2 gives to the SMs, over the size of what is read there, and rates of matrix products. Which
file, if any, is the user's own (:func:`perfkit.profiles.find_roofs`), one that ships, or none: then the datasheet's
bandwidth stands in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import InputError
from perfkit.roofline.curve import Curve

#: Share of the datasheet's bandwidth that streams of 2.1 GB reach on an H200 SXM (4.8 TB/s): reads 0.959 to 0.978, in
#: place 0.873 to 0.880, by GPU and run. What ships is within 1.5 % of these: a test holds them together.
READ_EFFICIENCY = 0.972
INPLACE_EFFICIENCY = 0.876
#: What a small transfer takes beyond its node and bytes / roof: trips to memory and back (690 cycles on a GH200:
#: 0.35 us, github.com/markdewing/AI_kernels, latency/README.md), the start and the drain of a kernel. Measured with
#: reads of 1 MiB on one H200 SXM (profiles/measured/h200-sxm-roofs.yaml), as is the next.
RAMP_US = 1.3
#: An empty kernel inside a CUDA graph.
GRAPH_NODE_US = 0.5
#: A launch outside a graph. Stated, not measured; no prediction here uses it.
LAUNCH_US = 4.0
#: Kinds that read several places for one write, or write to several for one read, with their share of writes.
MIXES = MappingProxyType({"4r1w": 1 / 5, "2r1w": 1 / 3, "1r2w": 2 / 3, "1r4w": 4 / 5, "1r8w": 8 / 9})
KINDS = ("read", "write", "inplace", "copy", *MIXES)


class GpuLike(Protocol):
    """What this module reads of ``perfkit.profiles.Gpu``."""

    @property
    def key(self) -> str:
        """Short name."""

    @property
    def bandwidth_gb_s(self) -> float | None:
        """The datasheet's memory bandwidth, 10^9 bytes per second."""


@dataclass(frozen=True, slots=True)
class Roofs:
    """The roofs of one GPU.

    Attributes:
        gpu: its key.
        read: time of pure reads over bytes.
        inplace: time of reading and writing in place over bytes, both directions counted.
        write: time of pure writes over bytes; None if it is not known, and the largest known share stands in.
        mixes: (share of writes, time over bytes moved) of other mixes, of ascending share.
        source: measured on this kind of GPU, or from its datasheet.
        graph_node_us: cost of one small kernel inside a CUDA graph.
        launch_us: cost of one launch outside a graph.
        l2: (bytes of a working set in L2, bandwidth of reading it in GB/s), of ascending size; () if not measured.
        tflops: (kind of matrix product, its rate in 10^12 FLOPs per second): bf16, tf32, fp32; () if not measured.
        origin: whose measurement: the user's own (here), one that ships, or of a file that was named; or datasheet.
        date: of the measurement.
        file: where it stands.
    """

    gpu: str
    read: Curve
    inplace: Curve
    source: Literal["measured", "datasheet"]
    graph_node_us: float = GRAPH_NODE_US
    launch_us: float = LAUNCH_US
    write: Curve | None = None
    mixes: tuple[tuple[float, Curve], ...] = ()
    l2: tuple[tuple[float, float], ...] = ()
    tflops: tuple[tuple[str, float], ...] = ()
    origin: Literal["here", "shipped", "file", "datasheet"] = "datasheet"
    date: str | None = None
    file: str | None = None

    @property
    def described(self) -> str:
        """Which roofs these are, for people: ``measured here 2026-11-30``."""
        texts = {"here": "measured here", "shipped": "shipped, measured", "datasheet": "datasheet, uncalibrated"}
        text = texts.get(self.origin) or f"{self.file or 'a file'}, measured"
        return f"{text} {self.date}" if self.date and self.calibrated else text

    def provenance(self) -> dict[str, str | None]:
        """Return which roofs these are, for manifests and JSON; without a path, which may name the user."""
        return {"source": self.source, "origin": self.origin, "date": self.date, "text": self.described}

    @property
    def calibrated(self) -> bool:
        """Whether the curves were measured."""
        return self.source == "measured"

    @property
    def read_gb_s(self) -> float:
        """Bandwidth of a large read."""
        return self.read.plateau_gb_s

    @property
    def inplace_gb_s(self) -> float:
        """Bandwidth of large reads and writes in place, both directions counted."""
        return self.inplace.plateau_gb_s

    @property
    def write_gb_s(self) -> float:
        """Effective bandwidth of the writes of a step that writes no more than it reads."""
        return 1.0 / (2.0 / self.inplace_gb_s - 1.0 / self.read_gb_s)

    def time_us(self, bytes_read: Any, bytes_write: Any) -> Any:
        """Return the least time of moving these bytes; arrays broadcast."""
        moved = np.asarray(bytes_read, dtype=np.float64) + bytes_write
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.asarray(bytes_write, dtype=np.float64) / moved
        share = np.where(moved > 0, share, 0.0)
        knots = sorted([(0.0, self.read), (0.5, self.inplace), *self.mixes], key=lambda knot: knot[0])
        if self.write is not None:
            knots.append((1.0, self.write))
        at = [knot for knot, _ in knots]
        time = np.zeros_like(moved)
        for index, (_, curve) in enumerate(knots):
            # 1 at its own share, falling to 0 at its neighbours; the last stands for all shares past it too.
            weight = np.interp(share, at, np.eye(len(at))[index])
            if np.any(weight):
                time = time + weight * curve.time_us(moved)
        return _scalar(time)

    def bandwidth_gb_s(self, bytes_read: Any, bytes_write: Any) -> Any:
        """Return the roof for this mix and size, 10^9 bytes per second; NaN for no bytes."""
        moved = np.asarray(bytes_read, dtype=np.float64) + bytes_write
        with np.errstate(invalid="ignore", divide="ignore"):
            return _scalar(moved / self.time_us(bytes_read, bytes_write) / 1e3)

    def l2_gb_s(self, held: Any) -> Any:
        """Return the bandwidth of L2 for a working set of ``held`` bytes; None where it was not measured.

        Between measured sizes it is linear, beyond them that of the nearest.
        """
        if not self.l2:
            return None
        sizes, rates = zip(*self.l2, strict=True)
        return _scalar(np.interp(np.asarray(held, dtype=np.float64), sizes, rates))

    def rate(self, kind: str) -> float | None:
        """Return a measured rate of matrix products, 10^12 FLOPs per second; None where it was not measured."""
        return dict(self.tflops).get(kind)


def roofs_for(gpu: GpuLike, measured: Mapping[str, Any] | None = None) -> Roofs:
    """Return a GPU's roofs: the user's own if they were measured, else those that ship, else from its datasheet.

    Args:
        gpu: its key and datasheet bandwidth are read.
        measured: the content of a roofs file; looked up by the GPU's key when left out.

    Raises:
        InputError: the file is malformed, or the GPU has neither a file nor a datasheet bandwidth.
    """
    if measured is None:
        from perfkit.profiles import find_roofs

        measured = find_roofs(gpu.key)
    return measured_roofs(gpu.key, measured) if measured is not None else _stated_roofs(gpu)


def shipped_roofs(gpu: GpuLike) -> Roofs:
    """Return the roofs that everybody has: those that ship, else from the datasheet; the user's own are left aside.

    Raises:
        InputError: as :func:`roofs_for`.
    """
    from perfkit.profiles import load_roofs

    measured = load_roofs(gpu.key)
    if measured is None:
        return _stated_roofs(gpu)
    return measured_roofs(gpu.key, {**measured, "origin": "shipped"})


def _stated_roofs(gpu: GpuLike) -> Roofs:
    if gpu.bandwidth_gb_s is None:
        raise InputError("its bandwidth is neither measured nor known", field="gpu", value=gpu.key)
    return datasheet_roofs(gpu.key, gpu.bandwidth_gb_s)


def datasheet_roofs(key: str, bandwidth_gb_s: float) -> Roofs:
    """Return uncalibrated roofs: the datasheet's bandwidth times what an H200 reaches of its own."""
    return Roofs(
        gpu=key,
        read=Curve.affine(READ_EFFICIENCY * bandwidth_gb_s, RAMP_US),
        inplace=Curve.affine(INPLACE_EFFICIENCY * bandwidth_gb_s, RAMP_US),
        source="datasheet",
    )


def measured_roofs(key: str, data: Mapping[str, Any]) -> Roofs:
    """Return roofs from a file's content, as :func:`perfkit.profiles.read_roofs` gives it.

    ``bytes`` counts both directions; points are cold and timed as nodes of a graph. Where several launch
    configurations were timed at one size, the fastest is the roof. Points of kind write and of MIXES, L2 and rates may
    be missing. ``origin`` and ``file`` say which file it is.

    Raises:
        InputError: no points of reads, or none of reads with writes; a kind that is unknown; a number not above 0.
    """
    file = str(data.get("file") or f"{key}-roofs.yaml")
    node_us = _positive(_given(data, "graph_node_us", GRAPH_NODE_US), "graph_node_us", file)
    best: dict[str, dict[float, float]] = {}
    for index, point in enumerate(data.get("points") or ()):
        field = f"points[{index}]"
        if not isinstance(point, Mapping) or point.get("kind") not in KINDS:
            kind = point.get("kind") if isinstance(point, Mapping) else point
            raise InputError("not a kind of transfer", file=file, field=f"{field}.kind", value=kind, allowed=KINDS)
        size = _positive(point.get("bytes"), f"{field}.bytes", file)
        bandwidth = _positive(point.get("bandwidth_gb_s"), f"{field}.bandwidth_gb_s", file)
        sizes = best.setdefault(point["kind"], {})
        sizes[size] = max(bandwidth, sizes.get(size, 0.0))
    inplace = best.get("inplace") or best.get("copy")
    if not best.get("read") or not inplace:
        raise InputError("needs points of kind read, and of inplace or copy", file=file, field="points")
    in_place = Curve.measured(list(inplace.items()), node_us)
    mixes = {share: best[kind] for kind, share in MIXES.items() if kind in best}
    return Roofs(
        gpu=key,
        read=Curve.measured(list(best["read"].items()), node_us),
        inplace=in_place,
        source="measured",
        graph_node_us=node_us,
        launch_us=_positive(_given(data, "launch_us", LAUNCH_US), "launch_us", file),
        write=Curve.measured(list(best["write"].items()), node_us) if best.get("write") else None,
        mixes=tuple((share, Curve.measured(list(mix.items()), node_us, in_place)) for share, mix in mixes.items()),
        l2=tuple(sorted((float(point["bytes"]), float(point["bandwidth_gb_s"])) for point in data.get("l2") or ())),
        tflops=tuple((rate["kind"], float(rate["tflops"])) for rate in data.get("rates") or ()),
        origin=data.get("origin") or "file",
        date=data.get("date"),
        file=str(data["file"]) if data.get("file") else None,
    )


def _given(data: Mapping[str, Any], field: str, default: float) -> Any:
    """Return a field, or the default where the file has none."""
    return default if data.get(field) is None else data[field]


def _positive(value: Any, field: str, file: str) -> float:
    """Return a positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InputError("must be a number above 0", file=file, field=field, value=value)
    return float(value)


def _scalar(values: NDArray[np.float64]) -> Any:
    """Return a float for zero dimensions, else the array."""
    return float(values) if np.ndim(values) == 0 else values
