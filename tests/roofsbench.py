"""A bench of roofs whose true figures are known, for tests; as a program, a worker that measures on it."""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from perfkit.kernels import l2
from perfkit.kernels.stream import CONFIGS, Stream
from perfkit.measure import Series
from perfkit.method import Config
from perfkit.roofs import Costs, Rate
from perfkit.stats import Interval

RATES = {"read": 4500.0, "4r1w": 4300.0, "2r1w": 4100.0, "inplace": 3900.0, "copy": 4000.0, "write": 4300.0,
         "1r2w": 4000.0, "1r4w": 3950.0, "1r8w": 3850.0}  # fmt: skip
L2_GB_S = 7000.0
TFLOPS = {"bf16": 700.0, "tf32": 350.0, "fp32": 50.0}
NODE_US, LAUNCH_US, GRAPH_US = 1.5, 6.04321, 11.4
FACTS = {"name": "NVIDIA H200", "memory_total_mib": 143771, "driver": "580.159", "sm_clock_max_mhz": 1980,
         "memory_clock_max_mhz": 3201, "power_limit_w": 700.0, "torch": "2.11.0", "triton": "3.6.0"}  # fmt: skip


class FakeBench:
    """node + bytes / rate for the second configuration, 20 % more for the others, 0.1 % noise.

    ``off`` is a factor of the rates of kind ``of``, of every kind without one; ``throttled`` configurations throttle.
    """

    l2_bytes = 60 << 20

    def __init__(
        self, memory: int = 1 << 34, throttled: Sequence[Config] = (), off: float = 1.0, of: str | None = None
    ) -> None:
        self.memory, self.throttled, self.off, self.of = memory, throttled, off, of

    def _rate(self, kind: str, rate: float) -> float:
        return rate * (self.off if self.of in (None, kind) else 1.0)

    def largest(self) -> int:
        return self.memory

    def _series(self, time_us: float, best: Config, configs: Sequence[Config]) -> dict[Config, Series]:
        rng = np.random.default_rng(int(time_us * 1000))
        found = {}
        for config in configs:
            time = time_us * (1.0 if config == best else 1.2)
            samples = list(time * np.exp(0.001 * rng.standard_normal(10)))
            if config in self.throttled:
                found[config] = Series(throttled=samples, reasons={"power cap"}, clocks=[1200])
            else:
                found[config] = Series(times=samples, rounds=list(range(10)), clocks=[1965] * 10)
        return found

    def stream(self, stream: Stream, moved: int, configs: Sequence[Config]) -> dict[Config, Series]:
        time_us = NODE_US + moved / self._rate(stream.kind, RATES[stream.kind]) / 1e3
        return self._series(time_us, CONFIGS[1], configs)

    def l2_read(self, held: int, configs: Sequence[Config]) -> dict[Config, Series]:
        assert held % (l2.CONFIGS[-1]["tile"] * 4) == 0
        return self._series(held / self._rate("l2", L2_GB_S) / 1e3, l2.CONFIGS[2], configs)

    def kinds_of_products(self) -> Sequence[str]:
        return tuple(TFLOPS)

    def product(self, kind: str, seconds: float) -> Rate:
        rate = self._rate(kind, TFLOPS[kind])
        return Rate(kind, 8192, Interval(rate, rate * 0.999, rate * 1.001), 1650.0, 699.5, float(kind == "bf16"))

    def costs(self) -> Costs:
        return Costs(LAUNCH_US, NODE_US, GRAPH_US)


def run_group(request: dict[str, Any], emit: Any) -> None:
    """Measure on the bench that the environment describes, or fail as it says."""
    fault = os.environ.get("FAULT")
    with open(os.environ["RUNS"], "a+") as file:
        file.seek(0)
        runs = len(file.readlines())
        file.write(f"{os.getpid()} {request['settings']['gpu']} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
    if fault:
        emit({"event": "figure", "name": "before", "text": "the fault", "total": 1})
    if fault == "refuse":
        emit({"event": "failed", "reason": "too little free GPU memory for a stream of 1 MiB"})
        return
    if fault == "die":
        print("CUDA error: unspecified launch failure", file=sys.stderr, flush=True)
        os._exit(7)
    if fault == "hang":
        time.sleep(600)
    if fault == "nothing":
        return
    from perfkit.roofs.handler import answer
    from perfkit.roofs.points import FULL, QUICK

    bench = FakeBench(off=float(os.environ.get("OFF", 1)) if runs else 1.0, of=os.environ.get("OF"))
    answer(bench, QUICK if request["settings"]["quick"] else FULL, request["settings"], emit)


if __name__ == "__main__":
    from perfkit import worker

    if os.environ.get("FAULT") == "unready":
        sys.exit("torch sees no CUDA device")
    worker.run("roofs", lambda: types.SimpleNamespace(run_group=run_group))
