"""How many requests fit beside the weights, and what happens past that: an engine runs the batch in waves.

Memory for requests is what is left of a GPU after weights and what an engine sets aside (activations, CUDA graphs, the
CUDA context), which it finds by running once and which is for the caller to state: 0 gives an upper bound. Past the
cap nothing fails; the batch runs in parts one after the other, and throughput stays that of a part.

Source: vLLM pull request 47576 (caps; waves).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfkit.errors import InputError
from perfkit.profiles.schema import Gpu, Model
from perfkit.roofline.engines import Engine, RequestMemory, find_engine
from perfkit.roofline.split import tp_sizes
from perfkit.roofline.weights import Weights, weight_bytes


@dataclass(frozen=True, slots=True)
class Budget:
    """One GPU's memory, in bytes.

    Attributes:
        memory: what the engine may use.
        weights: the model's, on this GPU.
        reserve: what the engine sets aside.
    """

    memory: int
    weights: Weights
    reserve: int = 0

    @property
    def requests(self) -> int:
        """Bytes left for requests."""
        return self.memory - self.weights.total - self.reserve


@dataclass(frozen=True, slots=True)
class Waves:
    """How a number of requests runs under a cap: in order of arrival, as many at once as fit.

    Attributes:
        concurrency: requests at once that are asked for.
        fits: the cap.
    """

    concurrency: int
    fits: int

    @property
    def count(self) -> int:
        """Waves; 1 where all run at once."""
        return int(n_waves(self.concurrency, self.fits))

    @property
    def runs(self) -> int:
        """Requests that run at once in a full wave."""
        return min(self.concurrency, self.fits)

    @property
    def saturated(self) -> bool:
        """Whether some wait, so that more concurrency gives no more throughput."""
        return self.concurrency > self.fits

    @property
    def spans(self) -> tuple[range, ...]:
        """Which requests run at once: their numbers, wave by wave."""
        return tuple(
            range(start, min(start + self.fits, self.concurrency)) for start in range(0, self.concurrency, self.fits)
        )

    @property
    def mean_running(self) -> float:
        """Requests that run at once on average over the waves; the last one may be small."""
        return self.concurrency / self.count


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many requests fit on a GPU, or on the GPUs that share a model.

    Attributes:
        budget: of one GPU.
        memory: one request's, on that GPU; of the same model, GPUs and drafter.
    """

    budget: Budget
    memory: RequestMemory

    @property
    def fits(self) -> int:
        """Requests that fit at once; 0 where not even one does."""
        return int(requests_that_fit(self.budget.requests, self.memory.total))

    def waves(self, concurrency: int) -> Waves:
        """Return how ``concurrency`` requests run.

        Raises:
            InputError: no request fits, or there is none.
        """
        if concurrency < 1:
            raise InputError("must be at least 1", field="concurrency", value=concurrency)
        if not self.fits:
            raise InputError(
                f"one request needs {self.memory.total / 1e6:.1f} MB, and {max(self.budget.requests, 0) / 1e6:.1f} MB "
                "are left for requests: shorten --context, or use more GPUs (--tp)", field="concurrency",
                value=concurrency,
            )  # fmt: skip
        return Waves(concurrency, self.fits)


def requests_that_fit(budget_bytes: Any, request_bytes: Any) -> Any:
    """Return how many requests fit into a budget, at least 0; arrays broadcast.

    Blocks of an engine are of one size and a request takes a whole number of them, so none is lost at the end.
    """
    fits = np.maximum(np.floor_divide(budget_bytes, request_bytes), 0)
    return int(fits) if np.ndim(fits) == 0 else fits.astype(np.int64)


def n_waves(concurrency: Any, fits: Any) -> Any:
    """Return in how many waves requests run under a cap of at least 1; arrays broadcast."""
    waves = -(-np.asarray(concurrency) // np.asarray(fits))
    return int(waves) if waves.ndim == 0 else waves


def usable_bytes(gpu: Gpu) -> int:
    """Return the memory that CUDA reports of a GPU, or the datasheet's where it is not known, in bytes."""
    return gpu.usable_mib * 2**20 if gpu.usable_mib is not None else round(gpu.mem_capacity_gb * 1e9)


def request_budget(
    model: Model,
    gpu: Gpu | None = None,
    *,
    memory_gb: float | None = None,
    engine: str | Engine = "vllm",
    utilization: float | None = None,
    reserve_gb: float = 0.0,
    tp: int = 1,
    drafter: bool = False,
    expert_dtype: str | None = None,
    dense_dtype: str | None = None,
) -> Budget:
    """Return what a GPU has for requests.

    Args:
        model: the whole model.
        gpu: the GPU; may be left out where ``memory_gb`` is given.
        memory_gb: memory of one GPU in 10^9 bytes, in place of the GPU's own.
        engine: whose share of the memory, where ``utilization`` does not say.
        utilization: share of the memory that the engine takes (vLLM's --gpu-memory-utilization), above 0, at most 1.
        reserve_gb: what it sets aside of that, in 10^9 bytes.
        tp: GPUs that share the model.
        drafter: whether the model's own draft layers are loaded.
        expert_dtype: format of the routed experts, in place of the model's.
        dense_dtype: format of the other weights, in place of the model's.

    Raises:
        InputError: no memory is given, a number is out of range, or the weights do not fit.
    """
    share = find_engine(engine).utilization if utilization is None else utilization
    if memory_gb is None and gpu is None:
        raise InputError("name a GPU, or its memory in GB", field="gpu")
    if memory_gb is not None and not 0 < memory_gb < float("inf"):
        raise InputError("must be above 0 GB", field="memory", value=memory_gb)
    if not 0 < share <= 1:
        raise InputError(
            "is a share of the GPU's memory", field="utilization", value=share, allowed="above 0, at most 1"
        )
    if not 0 <= reserve_gb < float("inf"):
        raise InputError("must be at least 0 GB", field="reserve", value=reserve_gb)
    usable = round(memory_gb * 1e9) if memory_gb is not None else usable_bytes(gpu) if gpu is not None else 0

    def budget(size: int) -> Budget:
        weights = weight_bytes(model, tp=size, drafter=drafter, expert_dtype=expert_dtype, dense_dtype=dense_dtype)
        return Budget(int(share * usable), weights, int(reserve_gb * 1e9))

    found = budget(tp)
    if found.requests > 0:
        return found
    enough = [size for size in tp_sizes(model) if size > tp and budget(size).requests > 0]
    advice = f"use --tp {enough[0]}, or" if enough else "use"
    aside = f" and {reserve_gb:g} GB set aside" if reserve_gb else ""
    raise InputError(
        f"the weights of {model.key}, {found.weights.total / 1e9:.1f} GB on each GPU,{aside} do not fit into "
        f"{found.memory / 1e9:.1f} GB: {advice} a smaller format of weights or a larger GPU",
        field="gpu" if memory_gb is None else "memory",
        value=gpu.key if memory_gb is None and gpu is not None else memory_gb,
    )
