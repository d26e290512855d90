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
    draft_len: int = 1
    tree: str | None = None
    steps: int | None = None  # of a check, where the default is too few


#: Steps of the samples that are checked at length: enough to draw every acceptance at every draft count.
LONG = 42
#: Steps of the samples that run in every configuration.
SHORT = 9
#: For the interpreter. A method without a window leaves out what differs in nothing but the window.
SAMPLES = (
    Sample(2, 1, 80, 16, 3, 3, "float16", "float32"),  # d_v not a power of two, one group
    Sample(4, 2, 16, 32, 3, 2, "float32", "float16"),  # several groups of several heads
    Sample(1, 1, 24, 16, 1, 17, "float16", "float32"),  # one program; a window above the matrix unit's shortest sum
    Sample(4, 1, 16, 16, 2, 5, "float32", "bfloat16"),  # four heads a group; a row beside a padded one
    Sample(3, 3, 16, 16, 3, 1, "float16", "float16"),  # every head its own group; every step flushes
    Sample(4, 1, 32, 128, 1, 2, "float16", "float32", every=True),  # a state row wider than some tiles
)
#: For a GPU: what the interpreter has, and BF16 inputs at the widths of real layers.
GPU_SAMPLES = (
    *(replace(sample, every=True) for sample in SAMPLES),
    Sample(16, 2, 64, 128, 5, 16, "bfloat16", "float32", every=True),
    Sample(12, 1, 80, 128, 3, 5, "bfloat16", "bfloat16", every=True),
    Sample(8, 8, 64, 128, 33, 8, "bfloat16", "float16", every=True),
    Sample(16, 2, 128, 64, 2, 33, "float16", "float32", every=True),
)


#: Verify steps for the interpreter. A window of depth + 1 or + 2 puts h + depth at L and one beyond; trees come last.
VERIFY_SAMPLES = (
    Sample(2, 1, 16, 16, 2, 5, "float16", "float32", draft_len=4, steps=LONG),
    Sample(1, 1, 16, 16, 3, 2, "float32", "float32", draft_len=2),  # T = L: every step flushes
    Sample(2, 1, 80, 16, 2, 4, "float16", "float32", draft_len=3),
    Sample(4, 2, 16, 32, 2, 6, "float32", "float16", draft_len=3),
    Sample(1, 1, 24, 16, 1, 18, "float16", "float32", draft_len=16),
    Sample(4, 1, 16, 16, 2, 7, "float32", "bfloat16", draft_len=5),
    Sample(3, 3, 16, 16, 2, 8, "float16", "float16", draft_len=8),
    Sample(2, 2, 16, 16, 2, 20, "float32", "float32", draft_len=7),  # several steps between flushes
    Sample(4, 1, 32, 128, 1, 4, "float16", "float32", every=True, draft_len=3, steps=SHORT),
    Sample(2, 1, 16, 16, 2, 5, "float16", "float32", draft_len=6, tree="0,0,1,1,2", steps=LONG),
    Sample(2, 2, 16, 16, 2, 2, "float16", "float16", draft_len=4, tree="0,0,0"),
    Sample(2, 1, 16, 16, 2, 6, "float32", "bfloat16", draft_len=8, tree="0,1,0,3,3,1,2"),
)
#: The same for a GPU, where compiling takes longest: every configuration at the widths of real layers only.
GPU_VERIFY_SAMPLES = (
    *(replace(sample, every=False) for sample in VERIFY_SAMPLES),
    Sample(16, 2, 64, 128, 5, 16, "bfloat16", "float32", every=True, draft_len=4),
    Sample(12, 1, 80, 128, 3, 8, "bfloat16", "bfloat16", draft_len=7),
    Sample(8, 8, 64, 128, 33, 16, "bfloat16", "float16", draft_len=8),
    Sample(16, 2, 128, 64, 2, 33, "float16", "float32", draft_len=16),
    Sample(16, 2, 64, 128, 3, 32, "bfloat16", "float32", draft_len=16),
    Sample(16, 2, 64, 128, 5, 16, "bfloat16", "float32", every=True, draft_len=8, tree="0,0,1,1,2,2,3"),
    Sample(16, 2, 64, 128, 3, 6, "bfloat16", "float16", draft_len=6, tree="0,0,1,1,2"),
)
#: Drafts of the cases that are compiled and of those that run in every configuration there is.
DRAFT_LEN, WINDOW, TREE = 4, 16, "0,0,1"


def small_case(case: Case) -> Case:
    """Return a small case that runs the same kernels: two heads of one group, a short window, three rows."""
    shape = case.shape
    heads = 2 if shape.heads_per_group > 1 else 1
    small = Shape(shape.family, heads, 1, min(shape.d_v, 80), min(shape.d_k, 32))
    window = None
    if case.window is not None:  # of a verify step one in which some steps flush and some do not
        window = max(4, case.depth + 2 if case.phase == "verify" else 0)
    inputs = "float16" if case.input_dtype == "bfloat16" else case.input_dtype
    return replace(case, shape=small, batch=3, window=window, input_dtype=inputs, n_layers=1, options=())


def with_config(case: Case, config: Config) -> Case:
    """Return the case with its launch configuration as an option, so that it has an id of its own."""
    return replace(case, options=(*case.options, (CONFIG, str(config))))


def layer_shape(family: str, heads: int, groups: int, d_v: int, d_k: int) -> Shape:
    """Return the shape of a layer whose value heads share ``groups`` key heads, where the family lets them share."""
    return Shape(family, heads, heads if family == "kda" else groups, d_v, d_k)


def _cases(method: Method, samples: Sequence[Sample], *, interpreted: bool = False) -> list[Case]:
    found: list[Case] = []
    for turn, sample in enumerate(samples):
        # Where heads share nothing, more than two of them are more of the same.
        heads = min(sample.heads, 2) if interpreted and method.family == "kda" else sample.heads
        shape = layer_shape(method.family, heads, sample.groups, sample.d_v, sample.d_k)
        case = Case(shape, method.key, sample.batch, sample.window if method.windowed else None, sample.draft_len,
                    tree=sample.tree, input_dtype=sample.input_dtype, state_dtype=sample.state_dtype,
                    options=() if sample.steps is None else ((STEPS, sample.steps),))  # fmt: skip
        if (sample.tree is not None and not method.trees) or method.supports(case) is not None:
            continue
        configs = list(method.configs(case))
        if sample.every:
            chosen = tiles(all_configs(method, case)) if interpreted else configs
        elif sample.steps is not None and interpreted:
            chosen = [max(configs, key=_rows)]  # what takes long is spread over as few programs as may be
        else:
            chosen = [configs[turn % len(configs)]]
        found += [with_config(case, item) for item in chosen]
    return list(dict.fromkeys(found))


def _rows(config: Config) -> int:
    """Return how many rows of a head a program holds at once; 0 where that is not what its tile is."""
    return dict(config.values).get("rows", 0)


def tiles(configs: Sequence[Config]) -> list[Config]:
    """Return one configuration of each set of tiles: the interpreter knows neither warps, stages nor registers."""

    def tile(config: Config) -> tuple[tuple[str, int], ...]:
        return tuple(pair for pair in config.values if not pair[0].endswith(("warps", "stages", "maxnreg")))

    return list({tile(config): config for config in reversed(configs)}.values())[::-1]


def interpreter_cases(method: Method) -> list[Case]:
    """Return the cases of a method for the interpreter, one to three seconds of work each."""
    return _cases(method, SAMPLES if method.phase == "decode" else VERIFY_SAMPLES, interpreted=True)


def gpu_cases(method: Method) -> list[Case]:
    """Return the cases of a method for a GPU: every sample, then one sample in every configuration there is."""
    decode = method.phase == "decode"
    found = _cases(method, GPU_SAMPLES if decode else GPU_VERIFY_SAMPLES)
    window = (8 if decode else WINDOW) if method.windowed else None
    case = Case(layer_shape(method.family, 16, 2, 64, 128), method.key, 5, window, 1 if decode else DRAFT_LEN)
    if method.supports(case) is None:
        found += [with_config(case, config) for config in all_configs(method, case)]
    return list(dict.fromkeys(found))


def all_configs(method: Method, case: Case) -> list[Config]:
    """Return the configurations that the method offers for the case at its own batch and at a large one."""
    return list(dict.fromkeys([*method.configs(case), *method.configs(replace(case, batch=LARGE_BATCH))]))


def compile_cases(method: Method, shape: Shape) -> list[Case]:
    """Return the cases whose default configurations are compiled for absent GPUs: a small and a large batch, a tree."""
    window, draft_len = (WINDOW if method.windowed else None), (1 if method.phase == "decode" else DRAFT_LEN)
    cases = [Case(shape, method.key, batch, window, draft_len) for batch in (1, 256)]
    if method.trees and draft_len > 1:
        cases.append(Case(shape, method.key, 256, window, draft_len, tree=TREE))
    return [case for case in cases if method.supports(case) is None]
