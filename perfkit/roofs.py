"""Measure the roofs of the GPU that is here: ``python -m perfkit.roofs --out FILE.yaml [--quick]``.

Bandwidth of reads, writes, copies and updates in place over the bytes moved, from the ramp to saturation; that of
reading once and writing to 2, 4 and 8 places, as snapshots do, at large sizes; and the cost of a launch and of a
graph's node. Every point is cold (launches rotate through buffers whose sum is many times L2) and timed as nodes of one
CUDA graph; :func:`perfkit.roofline.measured_roofs` takes the node's own cost off again.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from perfkit import __version__, results
from perfkit.device import DeviceFacts, Monitor, gpu_lock, visible_gpu
from perfkit.errors import DeviceError, InputError, PerfkitError
from perfkit.kernels.stream import CONFIGS, ELEMENT_BYTES, STREAMS, Stream, launch_empty
from perfkit.measure import CudaClock, Series, Subject, capture, gpu_properties, interleave
from perfkit.method import Config
from perfkit.stats import Interval, Stopping

if TYPE_CHECKING:
    from perfkit.profiles import Gpu

MIB = 1 << 20
#: Bytes moved, reads and writes together.
SIZES = tuple(n * MIB for n in (1, 4, 16, 64, 256, 1024, 2048))
QUICK_SIZES = tuple(n * MIB for n in (1, 16, 256))
#: The same where one read goes with 2, 4 or 8 writes: for each a whole number of places, in no more memory than above.
#: Small ones are left out to save time: below these the model takes the shape of updates in place.
MIX_SIZES = tuple(n * MIB for n in (90, 270, 1080, 2160))
QUICK_MIX_SIZES = MIX_SIZES[1:2]
#: Bytes that a graph touches before it returns to a buffer, in units of L2.
COLD_L2 = 8
#: A graph's own start adds some 10 us, so a graph is at least this long: the error is under 0.5 %.
GRAPH_US = 4000.0
EMPTY_NODES = 2000
#: Launches outside a graph that are timed together.
LAUNCHES = 200
WARMUP_S = 0.3
RULE = Stopping(min_samples=10, max_samples=15, max_seconds=3.0)


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a roof.

    Attributes:
        kind: one of :data:`perfkit.kernels.stream.STREAMS`.
        moved: bytes, reads and writes together.
        time_us: of one launch of the fastest configuration, median and 95 % interval.
        config: that configuration.
        dropped: throttled samples of all configurations.
        clock_mhz: SM clock after the samples, median.
    """

    kind: str
    moved: int
    time_us: Interval
    config: Config
    dropped: int = 0
    clock_mhz: float | None = None

    @property
    def bandwidth_gb_s(self) -> Interval:
        """Bytes moved per time, 10^9 bytes per second."""
        rate = self.moved / 1e3
        return Interval(rate / self.time_us.value, rate / self.time_us.hi, rate / self.time_us.lo)


class Bench(Protocol):
    """What times streams; tests have one of their own."""

    def largest(self) -> int:
        """Return the most bytes of memory that a launch may touch."""
        ...

    def stream(self, stream: Stream, moved: int, configs: Sequence[Config]) -> dict[Config, Series]:
        """Return samples of one launch over ``moved`` bytes, in microseconds, for each configuration."""
        ...


def measure_points(
    bench: Bench,
    sizes: Sequence[int] = SIZES,
    mix_sizes: Sequence[int] = MIX_SIZES,
    progress: Callable[[Point], None] | None = None,
) -> list[Point]:
    """Measure every kind at every size that memory holds.

    Args:
        bench: what times.
        sizes: bytes moved, of kinds that write to one place at most.
        mix_sizes: of those that write to several.
        progress: called with each point.

    Raises:
        DeviceError: the GPU throttled during every sample of a point, or memory holds no size.
    """
    points = []
    plan = [(stream, moved) for moved in sizes for stream in STREAMS.values() if stream.places == 1]
    plan += [(stream, moved) for moved in mix_sizes for stream in STREAMS.values() if stream.places > 1]
    for stream, moved in plan:
        if stream.footprint(moved) <= bench.largest():
            point = best_point(stream.kind, moved, bench.stream(stream, moved, CONFIGS))
            points.append(point)
            if progress is not None:
                progress(point)
    if not {"read", "inplace"} <= {point.kind for point in points}:
        raise DeviceError(f"too little free GPU memory for a stream of {min(sizes) / MIB:.0f} MiB")
    return points


def best_point(kind: str, moved: int, series: Mapping[Config, Series]) -> Point:
    """Return the point of the fastest configuration; those without two quiet samples do not count."""
    quiet = {config: one for config, one in series.items() if len(one.times) >= 2}
    dropped = sum(len(one.throttled) for one in series.values())
    if not quiet:
        reasons = sorted({reason for one in series.values() for reason in one.reasons})
        raise DeviceError(
            f"the GPU throttled during all {dropped} samples of {kind} {moved / MIB:.0f} MiB ({', '.join(reasons)}): "
            "let it cool down, or raise its power limit"
        )
    config, found = min(quiet.items(), key=lambda item: item[1].interval().value)
    return Point(kind, moved, found.interval(), config, dropped, found.clock_mhz)


class GpuBench:
    """Streams over one pool of random FP32 data on the first visible GPU.

    Args:
        monitor: a started :class:`perfkit.device.Monitor`.
        largest: bytes of the pool if memory allows.

    Raises:
        DeviceError: torch sees no CUDA device.
    """

    def __init__(self, monitor: Monitor, largest: int) -> None:
        self.l2_bytes = int(gpu_properties().L2_cache_size)
        import torch

        self._torch, self._monitor, self._clock = torch, monitor, CudaClock()
        free, _ = torch.cuda.mem_get_info()
        # Twice what must be cold: copies of the largest footprint that is repeated are rounded up.
        wanted = max(largest, 2 * COLD_L2 * self.l2_bytes)
        size = min(wanted, int(free * 0.8)) // MIB * MIB
        generator = torch.Generator(device="cuda").manual_seed(0)
        self.pool = torch.empty(size // ELEMENT_BYTES, device="cuda").normal_(generator=generator)
        programs = self.pool.numel() // min(config["tile"] for config in CONFIGS) + 1
        self.sink = torch.zeros(programs, device="cuda")
        self._spin()

    def _spin(self) -> None:
        """Bring the clocks up before anything is timed."""
        end = time.monotonic() + WARMUP_S
        half = self.pool.numel() // 2
        while time.monotonic() < end:
            STREAMS["copy"].launch(self.pool[:half], self.pool[half : 2 * half], CONFIGS[0])
            self._torch.cuda.synchronize()

    def largest(self) -> int:
        """Return the bytes of the pool."""
        return self.pool.numel() * ELEMENT_BYTES

    def _buffers(self, stream: Stream, moved: int) -> list[tuple[Any, Any]]:
        """Return the buffers of successive launches: together at least COLD_L2 times L2, where memory allows."""
        n = stream.elements(moved)
        own, each = n * stream.places, n * stream.buffers
        count = max(1, min(self.pool.numel() // each, math.ceil(COLD_L2 * self.l2_bytes / (each * ELEMENT_BYTES))))
        parts = [self.pool[i * each : (i + 1) * each] for i in range(count)]
        return [(part[:own], part[own:] if each > own else self.sink) for part in parts]

    def stream(self, stream: Stream, moved: int, configs: Sequence[Config]) -> dict[Config, Series]:
        """Time launches as nodes of a graph that passes over all buffers, one graph a configuration, interleaved."""
        buffers = self._buffers(stream, moved)
        expected_us = 2.0 + moved / 4e6
        passes = math.ceil(GRAPH_US / (expected_us * len(buffers)))
        graphs: dict[Config, Any] = {}
        for config in configs:
            stream.launch(*buffers[0], config)  # compiled outside the capture

            def work(config: Config = config) -> None:
                for _ in range(passes):
                    for a, b in buffers:
                        stream.launch(a, b, config)

            graphs[config] = capture(work)
        nodes = passes * len(buffers)
        subjects = [Subject(str(config), graph.replay, _nothing, nodes) for config, graph in graphs.items()]
        found = interleave(subjects, RULE, self._clock, self._monitor)
        return {config: found[str(config)] for config in configs}

    def overheads(self) -> tuple[float, float]:
        """Return ``launch_us`` and ``graph_node_us``: an empty kernel launched from Python, and as a graph's node.

        A node's cost is the slope over the number of nodes, so that what a graph costs once is not in it.
        """
        launch_empty(self.sink)

        def run(count: int) -> None:
            for _ in range(count):
                launch_empty(self.sink)

        one, many = capture(lambda: run(1)), capture(lambda: run(EMPTY_NODES))
        subjects = [
            Subject("one", one.replay, _nothing, 1),
            Subject("many", many.replay, _nothing, 1),
            Subject("launch", lambda: run(LAUNCHES), _nothing, LAUNCHES),
        ]
        found = interleave(subjects, RULE, self._clock, self._monitor)
        if any(len(series.times) < 2 for series in found.values()):
            raise DeviceError("the GPU throttled while empty kernels were timed: let it cool down")
        slope = (found["many"].interval().value - found["one"].interval().value) / (EMPTY_NODES - 1)
        return found["launch"].interval().value, slope


def _nothing() -> None:
    return None


def document(
    gpu: str, facts: Mapping[str, Any], points: Sequence[Point], *, launch_us: float, graph_node_us: float,
    l2_bytes: int,
) -> str:  # fmt: skip
    """Return the roofs file: what :func:`perfkit.profiles.load_roofs` reads.

    Args:
        gpu: the profile's key.
        facts: ``uuid`` and ``driver`` of the GPU, ``torch`` and ``triton`` versions.
        points: at least those of kinds read and inplace.
        launch_us: cost of a launch outside a graph.
        graph_node_us: cost of a node of a graph.
        l2_bytes: what "cold" was measured by.
    """
    clocks = sorted(point.clock_mhz for point in points if point.clock_mhz is not None)
    dropped = sum(point.dropped for point in points)
    texts = {
        "gpu": gpu, "gpu_uuid": facts.get("uuid"), "driver": facts.get("driver"),
        "date": f"{datetime.now(UTC):%Y-%m-%d}", "torch": facts.get("torch"), "triton": facts.get("triton"),
        "source": f"perfkit {__version__}, python -m perfkit.roofs: Triton streams over random FP32 data; each point "
                  f"the fastest of {len(CONFIGS)} launch configurations, median of at least {RULE.min_samples} CUDA "
                  f"graphs of about {GRAPH_US / 1e3:.0f} ms or more, launches rotating through buffers of at least "
                  f"{COLD_L2} times L2 ({l2_bytes / MIB:.0f} MiB); 1rNw reads once and writes to N places; lo and hi a "
                  "95 % bootstrap interval; graph_node_us an empty kernel as one more node of a graph, launch_us an "
                  "empty Triton kernel launched from Python",
        "notes": f"{dropped} throttled samples dropped; "
                 + (f"SM clock {clocks[0]:.0f} to {clocks[-1]:.0f} MHz" if clocks else "SM clock unknown"),
    }  # fmt: skip
    lines = [f"{name}: {json.dumps(text, ensure_ascii=False)}" for name, text in texts.items() if text is not None]
    lines += [f"launch_us: {launch_us:.4g}", f"graph_node_us: {graph_node_us:.4g}", "points:"]
    kinds = list(STREAMS)
    for point in sorted(points, key=lambda point: (kinds.index(point.kind), point.moved)):
        rate = point.bandwidth_gb_s
        lines.append(
            f"  - {{kind: {point.kind}, bytes: {point.moved}, bandwidth_gb_s: {rate.value:.2f}, lo: {rate.lo:.2f}, "
            f"hi: {rate.hi:.2f}}}  # {point.config}"
        )
    return "\n".join(lines) + "\n"


def check_document(text: str, gpu: str) -> dict[str, Any]:
    """Return the roofs file as it will be read.

    Raises:
        InputError: it would be refused.
    """
    from perfkit.profiles import load_roofs
    from perfkit.roofline.roof import measured_roofs

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"{gpu}-roofs.yaml").write_text(text, encoding="utf-8")
        roofs = load_roofs(gpu, Path(folder))
    assert roofs is not None
    measured_roofs(gpu, roofs)
    return roofs


def known_gpu(facts: DeviceFacts) -> Gpu:
    """Return the profile of the GPU that is here.

    Raises:
        DeviceError: a MIG instance, whose share of bandwidth is not the GPU's, or a GPU without a profile.
    """
    from perfkit.profiles import find_gpu

    if facts.is_mig:
        raise DeviceError(f"{facts.name} is a MIG instance: its bandwidth is not the GPU's; measure on a whole GPU")
    gpu = find_gpu(facts.name, facts.memory_total_mib)
    if gpu is None:
        raise DeviceError(
            f"no profile for {facts.name} with {facts.memory_total_mib} MiB: add one to perfkit/profiles/gpus"
        )
    return gpu


def run(out: Path, *, quick: bool = False) -> Path:
    """Measure the first visible GPU and write its roofs; return the file.

    Args:
        out: a file, or a folder in which the file is ``<gpu key>-roofs.yaml``.
        quick: three sizes only, and one of streams to several places.

    Raises:
        DeviceError: no usable GPU, one without a profile, or one that throttles all the time.
        InputError: ``out`` cannot be written.
    """
    facts = visible_gpu()
    gpu = known_gpu(facts)
    path = out / f"{gpu.key}-roofs.yaml" if out.is_dir() else out
    if not path.parent.is_dir():
        raise InputError("no such folder", field="--out", value=str(path.parent))
    results.write_text(path, "")  # found out now, not after the measurement
    path.unlink()
    for process in facts.foreign():
        print(f"another process (pid {process.pid}) uses this GPU: roofs may come out low", file=sys.stderr)
    sizes, mix_sizes = (QUICK_SIZES, QUICK_MIX_SIZES) if quick else (SIZES, MIX_SIZES)
    with gpu_lock(facts.uuid), Monitor(facts.uuid) as monitor:
        bench = GpuBench(monitor, max(sizes))
        launch_us, graph_node_us = bench.overheads()
        print(f"launch {launch_us:.2f} us, node of a graph {graph_node_us:.2f} us", flush=True)
        points = measure_points(bench, sizes, mix_sizes, lambda point: print(_line(point), flush=True))
    versions = {name: results.version(name) for name in ("torch", "triton")}
    text = document(gpu.key, {**facts.to_dict(), **versions}, points, launch_us=launch_us,
                    graph_node_us=graph_node_us, l2_bytes=bench.l2_bytes)  # fmt: skip
    check_document(text, gpu.key)
    results.write_text(path, text)
    return path


def _line(point: Point) -> str:
    rate = point.bandwidth_gb_s
    return (f"{point.kind:<8} {point.moved / MIB:5.0f} MiB {point.time_us.value:9.2f} us {rate.value:7.0f} GB/s "
            f"[{rate.lo:.0f},{rate.hi:.0f}]  {point.config}")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m perfkit.roofs", description="Measure the roofs of this GPU.")
    parser.add_argument("--out", type=Path, required=True, help="file, or folder for <gpu key>-roofs.yaml")
    parser.add_argument("--quick", action="store_true", help="three sizes instead of seven, one of mixes")
    arguments = parser.parse_args(argv)
    started = time.monotonic()
    try:
        path = run(arguments.out, quick=arguments.quick)
    except PerfkitError as error:
        print(f"perfkit: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(f"{path} ({time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
