"""The whole step against published whole steps and serving throughput; nothing is fitted to the rows held here.

Inputs: shapes and formats of the models, datasheet rates, published kernel speedups, and two published bandwidths: 0.85
of 3.35 TB/s, as the H100's conventional kernel reaches (paper, E.2.1: 84 to 86 % of peak), and 5 times 1.07 GB in 831
us on a B300 (App. A). Both stand for weights, keys and values too. The engine's own time is the estimate that perfkit
ships (perfkit/paper/fit.py): 1.05 ms a step and 7.7 us a row, fitted to Nano's rows with an FP16 state or at B = 8, and
0.12 ms a draft pass, fitted to replay over standard decoding at B = 1 and 32: to none of the rows held here. What comes
out with no such time at all is held as well.

Whole steps ran one prompt of a dozen tokens B times for 1,000 steps (benchmarks/replayssm/e2e_decode_speedup.py of the
authors' fork), so rows route identically, and a request has 513 tokens on average.

Source: paper, Tables 6, 7, 9, Figs. 8, 10; vLLM pull requests 48018, 48792, 47576, 49887.
"""

from __future__ import annotations

from functools import cache

import pytest

from perfkit.profiles import load_gpu, load_model
from perfkit.roofline import (
    NO_OVERHEADS,
    OVERHEAD_ESTIMATES,
    Overheads,
    StepModel,
    WholeStep,
    request_memory,
    served_tokens_per_s,
    shipped_roofs,
    state_bytes_per_sequence,
    step_model,
)

VLLM = OVERHEAD_ESTIMATES["vllm"]
#: 10^9 bytes per second.
BANDWIDTH = {"h100": 0.85 * 3350, "b300": 5 * 1.073741824 / 831e-6}
CONTEXT = 513


@cache
def _model(key: str, overheads: Overheads = VLLM) -> tuple[StepModel, float]:
    """Return the model on the paper's GPU for it, and the time of a conventional layer for one request, in us."""
    model, gpu = load_model(key), "h100" if key.endswith("4b") else "b300"
    kv_dtype = "bfloat16" if gpu == "h100" else "float8_e4m3fn"  # what the checkpoints say
    step = step_model(model, load_gpu(gpu), read_gb_s=BANDWIDTH[gpu], kv_dtype=kv_dtype, overheads=overheads)
    return step, 2 * state_bytes_per_sequence(model) / model.n_ssm_layers / BANDWIDTH[gpu] / 1e3


def _conventional(
    key: str, batch: int, routing: str = "identical", overheads: Overheads = VLLM, kernel_share: float = 1.0
) -> WholeStep:
    """Return a conventional step; ``kernel_share``: of that bandwidth which the state-space kernel reaches."""
    step, layer = _model(key, overheads)
    return step.step(layer * batch / kernel_share, batch, context=CONTEXT, routing=routing)


# --- standard decoding

NANO = [(1, 0.73, 0.98), (32, 1.69, 1.16), (128, 1.78, 1.38), (256, 1.80, 1.47), (512, 1.80, 1.52)]


@pytest.mark.parametrize(("batch", "kernel", "published"), NANO)
def test_nano_on_h100(batch: int, kernel: float, published: float) -> None:
    """Within 4 %; it comes within 1.7. The kernel's speedup at 512 is not published: it "levels off" (E.2.1)."""
    # At B = 1 the conventional kernel reaches 21.6 % of peak.
    took = _conventional("nemotron-nano-4b", batch, kernel_share=0.216 / 0.85 if batch == 1 else 1.0)
    assert took.speedup(kernel) == pytest.approx(published, rel=0.04)
    assert took.speedup(kernel) == pytest.approx(published, rel=0.017)


def test_nano_by_the_published_arithmetic() -> None:
    """Conventional 14.85 ms, the kernel 1.80 times as fast 8.25, all else 5.1 of which 7.1 GB are weights: 1.495."""
    step, layer = _model("nemotron-nano-4b", Overheads(step_us=1300, row_us=5, source="that arithmetic"))
    took = step.step(layer * 256, 256)  # no keys and values there
    assert took.ssm == pytest.approx(14_850, rel=1e-3)
    assert took.with_kernel_speedup(1.80).ssm == pytest.approx(8250, rel=1e-3)
    assert step.weight_bytes_read(1) == pytest.approx(7.1e9, rel=0.005)
    assert took.rest == pytest.approx(5100, rel=0.01)
    assert took.speedup(1.80) == pytest.approx(1.495, abs=5e-4)


@pytest.mark.parametrize(("batch", "kernel", "published"), NANO[1:])
def test_nano_without_an_engines_time_gains_up_to_seven_percent_too_much(
    batch: int, kernel: float, published: float
) -> None:
    speedup = _conventional("nemotron-nano-4b", batch, overheads=NO_OVERHEADS).speedup(kernel)
    assert published * 1.03 < speedup < published * 1.075


@pytest.mark.parametrize(
    ("batch", "kernel", "published", "computed"),
    [(32, 1.20, 1.06, 1.064), (128, 1.46, 1.24, 1.253), (256, 1.53, 1.42, 1.343)],
)
def test_super_on_b300(batch: int, kernel: float, published: float, computed: float) -> None:
    """Within 10 % (-5.5 % at 256), with or without an engine's time, which lands at 1.44."""
    speedup = _conventional("nemotron-super", batch).speedup(kernel)
    assert speedup == pytest.approx(computed, abs=1e-3)
    assert speedup == pytest.approx(published, rel=0.10)
    bare = _conventional("nemotron-super", batch, overheads=NO_OVERHEADS).speedup(kernel)
    assert bare == pytest.approx(published, rel=0.10)


def test_super_outside_its_kernels() -> None:
    """Published for B = 128: about 4.2 ms, against 11.4 for reading every expert. One prompt reads 22 of 512."""
    assert _conventional("nemotron-super", 128).rest == pytest.approx(4200, rel=0.15)  # 3.6
    assert _conventional("nemotron-super", 128, "independent").rest > 11_400


def test_super_at_512_is_out_of_reach() -> None:
    """Published 1.72 with a dagger: the power cap throttles the conventional kernel in the model and replay not.

    No step gains more than its kernel, 1.53 at 256, so one phi for both methods cannot land it: 1.37, 20 % below. A phi
    of 1.32 for the conventional kernel alone would; nobody published one.
    """
    took = _conventional("nemotron-super", 512)
    assert took.speedup(1.53) == pytest.approx(1.372, abs=1e-3)
    assert took.speedup(1.53) / 1.72 - 1 == pytest.approx(-0.20, abs=0.005)
    step, layer = _model("nemotron-super")
    slowed = step.step(layer * 512, 512, context=CONTEXT, routing="identical", slowdown=1.32)
    assert slowed.us / took.with_kernel_speedup(1.53).us == pytest.approx(1.72, abs=0.01)


def test_super_at_1_takes_the_isolated_kernels_too_seriously() -> None:
    """9.3 % of peak and a kernel 0.41 times as fast would cost 17 % of a step; published are 4 %.

    Most likely a lone kernel of some 10 us holds launch and ramp, which overlap with its neighbours' in a graph. At the
    bandwidth of large batches the model is 2 % off.
    """
    took = _conventional("nemotron-super", 1, kernel_share=0.093 * 8000 / BANDWIDTH["b300"])
    assert took.speedup(0.41) / 0.96 - 1 == pytest.approx(-0.136, abs=0.005)
    assert _conventional("nemotron-super", 1).speedup(0.41) == pytest.approx(0.96, rel=0.02)


@pytest.mark.parametrize(("batch", "published"), [(128, 1.21), (256, 1.27), (512, 1.30)])
def test_qwen_4b_on_h100(batch: int, published: float) -> None:
    """Its kernel's speedup is not published: for all of 1.46 to 1.80, the range of the four models, within 10 %."""
    took = _conventional("qwen3.5-4b", batch)
    assert took.speedup(1.46) < published < took.speedup(1.80)
    for kernel in (1.46, 1.80):
        assert took.speedup(kernel) == pytest.approx(published, rel=0.10)


@pytest.mark.parametrize(
    ("batch", "published", "computed", "distinct"),
    [(128, 1.16, 1.229, 1.106), (256, 1.20, 1.280, 1.162), (512, 1.22, 1.306, 1.219)],
)
def test_qwen_122b_on_b300(batch: int, published: float, computed: float, distinct: float) -> None:
    """Within 10 %, 6 to 8 % too much, for the least speedup of a kernel at 256, 1.46; 10 % for 1.49, that at 512.

    Distinct prompts would come within 5 %: either the step has 4 to 11 ms that this lacks (the estimate of an engine's
    time is of a dense model: no routing, no grouped products), or the rows do not all pick the same experts.
    """
    took = _conventional("qwen3.5-122b", batch)
    assert took.speedup(1.46) == pytest.approx(computed, abs=1e-3)
    for kernel in (1.46, 1.49):
        assert took.speedup(kernel) == pytest.approx(published, rel=0.10)
    apart = _conventional("qwen3.5-122b", batch, "independent")
    assert apart.speedup(1.46) == pytest.approx(distinct, abs=1e-3)
    assert apart.speedup(1.46) == pytest.approx(published, rel=0.05)


@pytest.mark.parametrize(
    ("batch", "published", "deviation"), [(128, 1.16, 0.124), (256, 1.20, 0.135), (512, 1.22, 0.134)]
)
def test_qwen_122b_without_an_engines_time_is_off(batch: int, published: float, deviation: float) -> None:
    speedup = _conventional("qwen3.5-122b", batch, overheads=NO_OVERHEADS).speedup(1.46)
    assert speedup / published - 1 == pytest.approx(deviation, abs=0.002)


def test_attention_overtakes_near_100_thousand_tokens() -> None:
    """Fig. 1: measured near 100K, 81,920 by bytes. Reads alone run faster than reads with writes: 98K at the roofs."""
    model, gpu = load_model("nemotron-super"), load_gpu("b300")
    step = step_model(model, gpu, roofs=shipped_roofs(gpu))
    _, layer = _model("nemotron-super")
    assert step.crossover_tokens(layer * 256, 256) == pytest.approx(100_000, rel=0.05)


# --- serving Qwen-122B on a B300: replay over snapshots, distinct prompts, 256 tokens each, prefill included

SERVED = [(2, 256, 1.36), (2, 512, 1.73), (4, 256, 1.79), (4, 512, 2.10)]
#: Tokens per second at B = 512.
STANDARD, SNAPSHOTS, REPLAY_T4 = 10_398, {2: 9223, 4: 9395}, 19_707
#: Verify kernels over a conventional decode step: snapshots at T = 2 and 8 (Fig. 10; they write T states and so are
#: linear in T between), replay's band from all rejected to all accepted for T up to 4.
SNAPSHOT_2, SNAPSHOT_8, REPLAY = 2.09, 6.40, (0.83, 0.95)
#: Throughput of replay over standard decoding at a batch that is not held here, which has the acceptance in it.
OVER_STANDARD = {1: {2: 1.37, 4: 1.97}, 32: {2: 1.44, 4: 2.08}}
TOKENS = 256
#: A question of some hundred tokens and half an answer. Keys and values are under 1 % of these steps.
SERVED_CONTEXT = 230


def _snapshot_kernel(draft_len: int) -> float:
    return SNAPSHOT_2 + (SNAPSHOT_8 - SNAPSHOT_2) * (draft_len - 2) / 6


def _cap(draft_len: int) -> int:
    """Return how many requests fit with snapshots: published 233 at T = 4, and by its budget at another T."""
    totals = {t: request_memory(load_model("qwen3.5-122b"), "snapshot", context=2048, draft_len=t).total
              for t in (4, draft_len)}  # fmt: skip
    return 233 * totals[4] // totals[draft_len]


def _served(kernel: float, batch: int, draft_len: int, *, fits: int = 702, accepted: float = 1.0,
            request_us: float = 0.0, context: int = SERVED_CONTEXT) -> float:  # fmt: skip
    """Return tokens per second with a kernel that takes ``kernel`` conventional decode steps."""
    step, layer = _model("qwen3.5-122b")
    served: float = served_tokens_per_s(
        lambda running: step.step(kernel * layer * running, running, draft_len=draft_len, context=context).us,
        batch, fits, accepted=accepted, tokens=TOKENS, request_us=request_us,
    )  # fmt: skip
    return served


def _request_us() -> float:
    """Return what a request takes besides its steps: what the step lacks of standard decoding's throughput, 3.8 ms."""
    return (1e6 / STANDARD - 1e6 / _served(1.0, 512, 1)) * TOKENS


def _accepted(draft_len: int, batch: int) -> float:
    """Return the tokens a step commits, from replay's gain over standard decoding at another batch."""
    extra = _request_us()
    standard = 1e6 / _served(1.0, batch, 1, request_us=extra)
    step = 1e6 / _served(sum(REPLAY) / 2, batch, draft_len)
    return step / (standard / OVER_STANDARD[batch][draft_len] - extra / TOKENS)


def test_caps() -> None:
    assert (_cap(4), _cap(2)) == (233, 437)


def test_what_standard_decoding_and_other_batches_say() -> None:
    """3.8 ms a request beside its steps; 1.7 to 1.9 tokens a step at T = 2, 3.4 to 3.5 at T = 4."""
    assert _served(1.0, 512, 1) == pytest.approx(12_279, rel=1e-3)
    assert _request_us() == pytest.approx(3772, rel=1e-3)
    assert [_accepted(2, batch) for batch in (1, 32)] == pytest.approx([1.69, 1.91], abs=0.01)
    assert [_accepted(4, batch) for batch in (1, 32)] == pytest.approx([3.35, 3.53], abs=0.02)


@pytest.mark.parametrize("reference", [1, 32])
@pytest.mark.parametrize("replay", REPLAY)
@pytest.mark.parametrize(("draft_len", "batch", "published"), SERVED)
def test_replay_over_snapshots_in_serving(
    draft_len: int, batch: int, published: float, replay: float, reference: int
) -> None:
    """Within 12 %, -5 to +10: steps in waves, and what a request costs once, as standard decoding has it."""
    given = {"accepted": _accepted(draft_len, reference), "request_us": _request_us()}
    snapshots = _served(_snapshot_kernel(draft_len), batch, draft_len, fits=_cap(draft_len), **given)
    assert _served(replay, batch, draft_len, **given) / snapshots == pytest.approx(published, rel=0.12)


@pytest.mark.parametrize("reference", [1, 32])
def test_tokens_per_second_in_serving(reference: int) -> None:
    """Absolute throughput at B = 512, none of which went in, within 12 %."""
    extra = _request_us()
    for draft_len, published in SNAPSHOTS.items():
        kernel, accepted = _snapshot_kernel(draft_len), _accepted(draft_len, reference)
        served = _served(kernel, 512, draft_len, fits=_cap(draft_len), accepted=accepted, request_us=extra)
        assert served == pytest.approx(published, rel=0.12)
    for kernel in REPLAY:
        served = _served(kernel, 512, 4, accepted=_accepted(4, reference), request_us=extra)
        assert served == pytest.approx(REPLAY_T4, rel=0.12)


@pytest.mark.parametrize(
    ("draft_len", "batch", "published", "low", "high"),
    [(2, 256, 1.36, 0.069, 0.123), (2, 512, 1.73, 0.061, 0.129), (4, 256, 1.79, 0.206, 0.253),
     (4, 512, 2.10, 0.154, 0.209)],
)  # fmt: skip
def test_decode_steps_alone_gain_more_than_serving(
    draft_len: int, batch: int, published: float, low: float, high: float
) -> None:
    """Steps only, prefill left out: T = 2 is 6 to 13 % high, T = 4 15 to 25 %.

    That is no error of the step but another quantity: the published time has prefill in it, the same for both methods.
    """
    snapshots = _served(_snapshot_kernel(draft_len), batch, draft_len, fits=_cap(draft_len))
    gains = [_served(kernel, batch, draft_len) / snapshots / published - 1 for kernel in REPLAY]
    assert gains == pytest.approx([high, low], abs=0.006)


@pytest.mark.parametrize(("draft_len", "batch", "published"), SERVED)
def test_snapshots_by_bytes_and_steps_alone_land_by_two_errors(draft_len: int, batch: int, published: float) -> None:
    """(1 + T) / 2 decode steps by bytes, prefill left out: within 12 %, but the published kernel takes 1.4 times that.

    A kernel that is too fast and a prefill that is missing cancel. With what a request costs once, it is 4 to 18 % low.
    """
    kernel = (1 + draft_len) / 2
    assert _snapshot_kernel(draft_len) / kernel > 1.39
    for replay in REPLAY:
        snapshots = _served(kernel, batch, draft_len, fits=_cap(draft_len))
        assert _served(replay, batch, draft_len) / snapshots == pytest.approx(published, rel=0.12)


def test_without_waves_snapshots_would_lose_less() -> None:
    """At 512 requests with T = 4 the cap alone costs snapshots a factor of 1.23: three waves read all weights."""
    kernel = _snapshot_kernel(4)
    assert _served(kernel, 512, 4, fits=512) / _served(kernel, 512, 4, fits=233) == pytest.approx(1.231, abs=0.002)


def test_context_matters_little_here() -> None:
    given = {"accepted": _accepted(4, 32), "request_us": _request_us()}
    long = _served(0.95, 512, 4, context=512, **given)
    assert long == pytest.approx(_served(0.95, 512, 4, context=128, **given), rel=0.01)
