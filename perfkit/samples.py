"""Small cases that run every kernel: odd shapes, every dtype, short and long windows, every launch configuration.

Shared by ``perfkit check`` and by sweeps that predict. The interpreter takes milliseconds a program, so a launch has at
most a dozen; its matrix product on bfloat16 inputs is wrong, so those are checked on a GPU only. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfkit.method import Case, Config, Method
from perfkit.shape import Shape

#: Option of a case that names the launch configuration to check.
CONFIG = "config"
#: Option of a case that says how many steps to check; only for verify.
STEPS = "steps"
#: A batch at which every method offers the configurations for large batches.
LARGE_BATCH = 4096


@dataclass(frozen=True, slots=True)
class Sample:
    """A point at which methods are checked, in ``every`` launch configuration or in one, which takes turns."""

    heads: int
    groups: int
    d_v: int
    d_k: int
    batch: int
    window: int
    input_dtype: str
    state_dtype: str
    every: bool = False


#: For the interpreter. A method without a window leaves out what differs in nothing but the window.
SAMPLES = (
    Sample(2, 1, 80, 16, 3, 3, "float16", "float32"),  # d_v not a power of two, one group
    Sample(4, 2, 16, 32, 3, 2, "float32", "float16"),  # several groups of several heads
    Sample(1, 1, 24, 16, 1, 17, "float16", "float32"),  # one program; a window above the matrix unit's shortest sum
    Sample(4, 1, 16, 16, 2, 5, "float32", "bfloat16"),  # four heads a group; a row beside a padded one
    Sample(3, 3, 16, 16, 3, 1, "float16", "float16"),  # every head its own group; every step flushes
    Sample(4, 1, 16, 128, 1, 2, "float16", "float32", every=True),  # a state row wider than some tiles
)
#: For a GPU: what the interpreter has, and BF16 inputs at the widths of real layers.
GPU_SAMPLES = (
    *(replace(sample, every=True) for sample in SAMPLES),
    Sample(16, 2, 64, 128, 5, 16, "bfloat16", "float32", every=True),
    Sample(12, 1, 80, 128, 3, 5, "bfloat16", "bfloat16", every=True),
    Sample(8, 8, 64, 128, 33, 8, "bfloat16", "float16", every=True),
    Sample(16, 2, 128, 64, 2, 33, "float16", "float32", every=True),
)


def small_case(case: Case) -> Case:
    """Return a small case that runs the same kernels: two heads of one group, a short window, three rows."""
    shape = case.shape
    heads = 2 if shape.heads_per_group > 1 else 1
    small = Shape(shape.family, heads, 1, min(shape.d_v, 80), min(shape.d_k, 32))
    window = max(4, case.draft_len) if case.window is not None else None
    inputs = "float16" if case.input_dtype == "bfloat16" else case.input_dtype
    return replace(case, shape=small, batch=3, window=window, input_dtype=inputs, n_layers=1, options=())


def with_config(case: Case, config: Config) -> Case:
    """Return the case with its launch configuration as an option, so that it has an id of its own."""
    return replace(case, options=(*case.options, (CONFIG, str(config))))


def _cases(method: Method, samples: Sequence[Sample]) -> list[Case]:
    found: list[Case] = []
    for turn, sample in enumerate(samples):
        shape = Shape(method.family, sample.heads, sample.groups, sample.d_v, sample.d_k)
        case = Case(shape, method.key, sample.batch, sample.window if method.windowed else None,
                    input_dtype=sample.input_dtype, state_dtype=sample.state_dtype)  # fmt: skip
        if method.supports(case) is not None:
            continue
        configs = list(method.configs(case))
        found += [with_config(case, item) for item in (configs if sample.every else [configs[turn % len(configs)]])]
    return list(dict.fromkeys(found))


def interpreter_cases(method: Method) -> list[Case]:
    """Return the cases of a decode method for the interpreter, about a second of work each; [] for verify methods."""
    return _cases(method, SAMPLES) if method.phase == "decode" else []


def gpu_cases(method: Method) -> list[Case]:
    """Return the cases of a decode method for a GPU: every sample, then one sample in every configuration there is."""
    if method.phase != "decode":
        return []
    found = _cases(method, GPU_SAMPLES)
    case = Case(Shape(method.family, 16, 2, 64, 128), method.key, 5, 8 if method.windowed else None)
    if method.supports(case) is None:
        found += [with_config(case, config) for config in all_configs(method, case)]
    return list(dict.fromkeys(found))


def all_configs(method: Method, case: Case) -> list[Config]:
    """Return the configurations that the method offers for the case at its own batch and at a large one."""
    return list(dict.fromkeys([*method.configs(case), *method.configs(replace(case, batch=LARGE_BATCH))]))


def compile_cases(method: Method, shape: Shape) -> list[Case]:
    """Return the cases whose default configurations are compiled for absent GPUs: a small and a large batch."""
    window, draft_len = (16 if method.windowed else None), (1 if method.phase == "decode" else 4)
    cases = [Case(shape, method.key, batch, window, draft_len) for batch in (1, 256)]
    return [case for case in cases if method.supports(case) is None]
