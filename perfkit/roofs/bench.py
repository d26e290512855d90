"""The GPU as a bench of roofs: streams over a pool of random data, reads in L2, matrix products, empty kernels.

Streams are cold: launches rotate through buffers whose sum is many times L2. Everything but products is timed as nodes
of one CUDA graph; :func:`perfkit.roofline.roof.measured_roofs` takes the node's own cost off again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from perfkit.device import Monitor
from perfkit.errors import DeviceError
from perfkit.kernels import l2
from perfkit.kernels.stream import CONFIGS, ELEMENT_BYTES, STREAMS, Stream, empty_launch
from perfkit.measure import CudaClock, Series, Subject, capture, gpu_properties, interleave
from perfkit.method import Config
from perfkit.roofs.points import MIB, Costs, Rate
from perfkit.roofs.products import PRODUCTS, SIZE, measure_product
from perfkit.stats import Stopping
from perfkit.tuning import compile_launches

#: Bytes that a graph touches before it returns to a buffer, in units of L2.
COLD_L2 = 8
#: A graph's own start adds some 10 us, so a graph is at least this long: the error is under 0.5 %.
GRAPH_US = 4000.0
#: Bytes a microsecond of the fastest memory there is (B300: 8 TB/s); on a slower one graphs are longer.
FASTEST = 8e6
#: Bytes that one launch reads in L2, over and over: 0.1 to 1 ms, beside which its start and drain are nothing.
L2_BYTES = 1 << 30
EMPTY_NODES = 2000
#: Launches outside a graph that are timed together.
LAUNCHES = 200
WARMUP_S = 0.3
RULE = Stopping(min_samples=10, max_samples=15, max_seconds=3.0)
#: Times of reads in L2 scatter by a few percent, those of memory by less than one.
L2_RULE = Stopping(min_samples=40, max_samples=60, max_seconds=6.0)


class GpuBench:
    """The first visible GPU, with one pool of random FP32 data.

    Args:
        monitor: a started :class:`perfkit.device.Monitor`.
        largest: bytes of the pool if memory allows.
        device: where tensors lie; tests have none but "cpu".

    Raises:
        DeviceError: torch sees no CUDA device.
    """

    def __init__(self, monitor: Monitor, largest: int, device: str = "cuda") -> None:
        import torch

        properties = gpu_properties()
        self.l2_bytes, self._sms = int(properties.L2_cache_size), int(properties.multi_processor_count)
        self._torch, self._monitor, self._clock, self._device = torch, monitor, CudaClock(), device
        free, _ = torch.cuda.mem_get_info()
        # Twice what must be cold: copies of the largest footprint that is repeated are rounded up.
        wanted = max(largest, 2 * COLD_L2 * self.l2_bytes)
        size = min(wanted, int(free * 0.8)) // MIB * MIB
        generator = torch.Generator(device=device).manual_seed(0)
        self.pool = torch.empty(size // ELEMENT_BYTES, device=device).normal_(generator=generator)
        programs = self.pool.numel() // min(config["tile"] for config in CONFIGS) + 1
        self.sink = torch.zeros(programs, device=device)
        self._compile()
        self._spin()

    def _compile(self) -> None:
        """Compile all streams at once, in threads: one after the other they would take most of a run."""
        n = 16 * max(config["tile"] for config in CONFIGS)  # as divisible as what is timed
        compile_launches([
            one.launch(self.pool[: one.places * n], self.pool[:n] if one.buffers > one.places else self.sink, config)
            for one in STREAMS.values() for config in CONFIGS
        ])  # fmt: skip

    def _spin(self) -> None:
        """Bring the clocks up before anything is timed."""
        end = time.monotonic() + WARMUP_S
        half = self.pool.numel() // 2
        while time.monotonic() < end:
            STREAMS["copy"].launch(self.pool[:half], self.pool[half : 2 * half], CONFIGS[0])()
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
        least_us = 2.0 + moved / FASTEST
        passes = math.ceil(GRAPH_US / (least_us * len(buffers)))
        nodes = passes * len(buffers)

        def work(config: Config) -> None:
            for _ in range(passes):
                for a, b in buffers:
                    stream.launch(a, b, config)()

        return self._time(work, dict.fromkeys(configs, nodes), lambda config: stream.launch(*buffers[0], config)())

    def l2_read(self, held: int, configs: Sequence[Config]) -> dict[Config, Series]:
        """Time reads of the first ``held`` bytes of the pool, which no launch between them drives out of L2.

        Of the configurations those in which each program has a part of the working set to itself.
        """
        a = self.pool[: held // ELEMENT_BYTES]
        nodes = math.ceil(GRAPH_US / (L2_BYTES / FASTEST))
        reads = {
            config: l2.reads_of(held, L2_BYTES, self._sms, config) for config in l2.apart(held, self._sms, configs)
        }

        def launch(config: Config) -> None:
            l2.launch(a, self.sink, reads[config], self._sms, config)()

        def work(config: Config) -> None:
            for _ in range(nodes):
                launch(config)

        units = {config: nodes * l2.passes_of(held, count, self._sms, config) for config, count in reads.items()}
        return self._time(work, units, launch, L2_RULE)

    def _time(
        self,
        work: Callable[[Config], None],
        units: Mapping[Config, int],
        once: Callable[[Config], object],
        rule: Stopping = RULE,
    ) -> dict[Config, Series]:
        """Time a graph of ``work``, which is ``units``, for each configuration, interleaved; ``once`` compiles one."""
        subjects = []
        for config, count in units.items():
            once(config)  # outside the capture
            graph = capture(partial(work, config))
            subjects.append(Subject(str(config), graph.replay, _nothing, count))
        found = interleave(subjects, rule, self._clock, self._monitor)
        return {config: found[str(config)] for config in units}

    def kinds_of_products(self) -> Sequence[str]:
        """Return all kinds."""
        return tuple(PRODUCTS)

    def product(self, kind: str, seconds: float) -> Rate:
        """Return the sustained rate of one kind of matrix product."""
        return measure_product(PRODUCTS[kind], SIZE, seconds, self._clock, self._monitor, self._device)

    def costs(self) -> Costs:
        """Return what an empty kernel costs: launched from Python, as one more node of a graph, as a graph alone.

        A node's cost is the slope over the number of nodes, so that what a graph costs once is not in it.

        Raises:
            DeviceError: the GPU throttled.
        """
        empty = empty_launch(self.sink)
        empty()

        def run(count: int) -> None:
            for _ in range(count):
                empty()

        one, many = capture(lambda: run(1)), capture(lambda: run(EMPTY_NODES))
        subjects = [
            Subject("one", one.replay, _nothing, 1),
            Subject("many", many.replay, _nothing, 1),
            Subject("launch", lambda: run(LAUNCHES), _nothing, LAUNCHES),
        ]
        found = interleave(subjects, RULE, self._clock, self._monitor)
        if any(len(series.times) < 2 for series in found.values()):
            raise DeviceError("the GPU throttled while empty kernels were timed: let it cool down")
        one_us, many_us, launch_us = (found[name].interval().value for name in ("one", "many", "launch"))
        return Costs(launch_us, (many_us - one_us) / (EMPTY_NODES - 1), one_us)


def _nothing() -> None:
    return None
