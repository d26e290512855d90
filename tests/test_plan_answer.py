"""What a plan says: capacity as published, the choice, what flips it, and that nothing is claimed inside the doubt."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.errors import InputError
from perfkit.plan import (
    Answer,
    Question,
    answer,
    break_even,
    breakdown,
    compare,
    differs,
    engine_settings,
    flips,
    front,
    make_question,
    on_gpus,
    parse_drafts,
    points,
    window_choice,
    within_limit,
)
from perfkit.plan.advice import advice
from perfkit.plan.cautions import LEFT_OUT, not_in_doubt, warnings
from perfkit.plan.comm import comm_us, link_gb_s
from perfkit.profiles import load_gpu, load_model
from perfkit.profiles.loader import GPUS
from perfkit.roofline import shipped_roofs
from perfkit.roofline.efficiency import known

RATES = ".88,.62,.40"


def ask(model: str = "nemotron-super", gpu: str = "h200-sxm", acceptance: str | None = None, **given: Any) -> Question:
    profile = load_gpu(gpu)
    given.setdefault("concurrency", 256)
    drafts = parse_drafts(acceptance, given.pop("lengths", ()))
    return make_question(load_model(model), profile, shipped_roofs(profile), drafts=drafts, **given)


@cache
def nano(**given: Any) -> Answer:
    return answer(ask("nemotron-nano", **given))


# --- capacity


@pytest.mark.parametrize(("model", "snapshots", "replay"), [("nemotron-super", 213, 694), ("qwen3.5-122b", 233, 702)])
def test_published_requests_on_one_b300(model: str, snapshots: int, replay: int) -> None:
    """All four within 1 % with 7 GB set aside, which no publication states. Source: vLLM pull request 47576."""
    table = compare(ask(model, "b300", "T", lengths=[4], context=2048, windows=(16,), reserve_gb=7.0))
    fits = {row.method: row.fits for row in table.rows()}
    assert fits["snapshot"] == pytest.approx(snapshots, rel=0.01)
    assert fits["replay"] == pytest.approx(replay, rel=0.01)


def test_past_the_cap_requests_wait() -> None:
    table = compare(ask(gpu="b300", acceptance="T", lengths=[4], context=2048, windows=(16,), reserve_gb=7.0))
    rows = {row.method: row for row in table.rows()}
    snapshot = rows["snapshot"]
    assert (snapshot.runs, snapshot.waves) == (213, 2)
    # In waves the last one is small and reads all weights for few.
    assert snapshot.together_tokens_per_s < snapshot.tokens_per_s
    assert (rows["replay"].runs, rows["replay"].waves) == (256, 1)
    assert rows["replay"].together_tokens_per_s == pytest.approx(rows["replay"].tokens_per_s)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 60_000), st.integers(1, 60_000), st.sampled_from(["vllm", "bytes"]))
def test_longer_requests_fit_fewer_and_take_longer(one: int, other: int, engine: str) -> None:
    short, long = sorted((one, other))
    rows = [compare(ask("nemotron-nano", context=context, engine=engine, windows=(16,), methods=("replay",))).rows()
            for context in (short, long)]  # fmt: skip
    for a, b in zip(*(sorted(each, key=lambda row: row.method) for each in rows), strict=True):
        assert a.method == b.method
        assert a.fits >= b.fits
        if a.runs == b.runs:
            assert a.step_ms <= b.step_ms
            assert a.tokens_per_s >= b.tokens_per_s


# --- rows


def test_rows_add_up() -> None:
    for row in compare(ask(acceptance=RATES)).all_rows():
        assert sum(row.terms.values()) == pytest.approx(row.step_ms)
        assert row.tokens_per_s == pytest.approx(row.runs * row.accepted / row.step_ms * 1e3)
        assert row.token_ms == pytest.approx(row.step_ms / row.accepted)
        assert row.step_lo_ms <= row.step_ms <= row.step_hi_ms
        assert row.tokens_lo <= row.tokens_per_s * (1 + 1e-12) and row.tokens_per_s <= row.tokens_hi * (1 + 1e-12)
        assert row.p99_ms >= row.step_ms
        assert row.runs == min(256, row.fits)
        assert row.window is None or row.window >= row.draft_len


def test_a_step_by_hand() -> None:
    """Super on an H200, B = 256, T = 4, 8,192 tokens: every term but the kernels', from the model's sizes alone."""
    asked = ask(acceptance=RATES, lengths=(4,), windows=(16,), methods=("replay",), memory_gb=300.0)
    (row,) = compare(asked).rows()
    assert (row.runs, row.accepted) == (256, pytest.approx(2.9))
    # Bytes a second that an H200 reads; FLOPs a second, FP8 of the datasheet, BF16 as measured; there is no FP4 unit.
    beta, fp8, bf16 = 4600.93e9, 1978.9e12, 671.091e12
    experts, head = 40 * 512 * 2 * 1024 * 2688, 131072 * 4096  # latent width 1,024, two matrices; 22 of 512 are picked
    dense = 120_668_707_840 - experts - 2 * head
    assert row.terms["weights"] == pytest.approx(1e3 * (
        1024 * 2 * dense / fp8 + 1024 * 22 / 512 * 2 * experts / bf16 + 1024 * 2 * head / bf16
    ))  # fmt: skip  # more than the bytes of all experts take
    kv = 256 * 8192 * 8 * 2 * 2 * 128 / beta  # FP8; 8 layers of 2 heads of 128, keys and values
    assert row.terms["kv"] == pytest.approx(1e3 * kv)
    # One attention layer, in BF16: queries and outputs, keys and values; shared expert; router; latent in and out; two
    # states into one.
    mtp = 4096 * (32 * 128 * 2 + 2 * 2 * 128 + 2 * 5376 + 512 + 2 * 1024 + 2 * 4096)
    drafting = 256 * 2 * mtp / bf16 + experts / 40 * 2 * (1 - (490 / 512) ** 256) / beta + 256 * 2 * head / bf16
    assert row.terms["draft"] == pytest.approx(3 * (1e3 * (drafting + kv / 8) + 0.12), rel=1e-4)  # but for norms
    assert (row.terms["rows"], row.terms["fixed"]) == (pytest.approx(7.7e-3 * 1024), 1.05)
    rest = sum(row.terms[name] for name in ("weights", "kv", "draft", "rows", "fixed"))
    assert row.tokens_per_s == pytest.approx(256 * 2.9 / (40 * row.layer_us + 1e3 * rest) * 1e6)


def test_acceptance_is_of_positions_and_shorter_drafts_use_the_first() -> None:
    table = compare(ask(acceptance=RATES))
    assert {row.draft_len: row.accepted for row in table.rows()} == pytest.approx({1: 1, 2: 1.88, 3: 2.5, 4: 2.9})


def test_windows_are_those_of_the_engine_and_of_memory() -> None:
    """vLLM rounds its ring up to a power of two; the plain sum takes any window, and names none below T."""
    paged = {row.window for row in compare(ask(acceptance=RATES)).all_rows() if row.window}
    assert paged == {2, 4, 8, 16, 32, 64}
    plain = {row.window for row in compare(ask(acceptance=RATES, engine="bytes")).all_rows() if row.draft_len == 4}
    assert plain == {None, *range(4, 65)}


def test_the_best_of_a_block_is_its_fastest_window_or_as_fast() -> None:
    table = compare(ask("nemotron-nano", engine="bytes"))
    best = next(row for row in table.rows() if row.method == "replay")
    every = [row for row in table.all_rows() if row.method == "replay"]
    assert best.tokens_per_s >= 0.998 * max(row.tokens_per_s for row in every)
    assert all(row.tokens_per_s < 0.998 * max(row.tokens_per_s for row in every)
               for row in every if (row.window or 0) < (best.window or 0))  # fmt: skip


def test_of_windows_that_are_as_good_most_requests_fit_the_chosen_one() -> None:
    """Of one request of Nano's no window is faster by 0.2 %; in pages of vLLM more fit with L = 16 than with 8."""
    table = compare(ask("nemotron-nano", concurrency=1, methods=("replay",)))
    best = next(row for row in table.rows() if row.method == "replay")
    every = [row for row in table.all_rows() if row.method == "replay"]
    good = [row for row in every if row.tokens_per_s >= 0.998 * max(one.tokens_per_s for one in every)]
    assert len(good) > 1 and best.fits == max(row.fits for row in good)
    assert best.window == min(row.window or 0 for row in good if row.fits == best.fits) == 16
    named = compare(ask("nemotron-nano", concurrency=1, methods=("replay",), windows=(64, 16, 8, 16)))
    (block,) = (block for block in named.blocks if block.method.key == "replay")
    assert block.windows.tolist() == [8, 16, 64] and block.row(1).window == 16


def test_tensor_parallelism_splits_layers_and_adds_all_reduces() -> None:
    one, two = (compare(ask("qwen3.5-122b", "b300", tp=tp, methods=("replay",))).rows()[0] for tp in (1, 2))
    assert one.terms["comm"] == 0 < two.terms["comm"]
    assert two.terms["ssm"] < 0.6 * one.terms["ssm"]
    assert two.request_bytes < 0.7 * one.request_bytes


@pytest.mark.parametrize(
    ("gpu", "gb_s"),
    [("a100-80-sxm", 300), ("a100-40-sxm", 300), ("h100-sxm", 450), ("h200-sxm", 450), ("gh200", 450), ("b200", 900),
     ("b300", 900), ("a100-80-pcie", 32), ("h100-pcie", 64), ("h100-nvl", 64), ("a10g", 32), ("l4", 32), ("l40s", 32),
     ("rtx-4090", 32), ("rtx-5090", 64)],
)  # fmt: skip
def test_links_in_one_direction(gpu: str, gb_s: float) -> None:
    """Half of what NVIDIA states of both directions: NVLink 3 600, 4 900, 5 1,800; PCIe 4.0 x16 64, 5.0 x16 128."""
    assert link_gb_s(load_gpu(gpu)) == gb_s


def test_an_all_reduce_by_hand() -> None:
    """Super on two B300: 88 layers, each 8 us and 2 (n - 1) / n = 1 times 256 rows of 4,096 BF16 over 900 GB/s."""
    super_, gpu = load_model("nemotron-super"), load_gpu("b300")
    assert comm_us(super_, gpu, 256, 2) == pytest.approx(88 * (8 + 256 * 4096 * 2 / 900e3))
    assert comm_us(super_, gpu, 256, 1) == 0


# --- the answer


def test_where_replay_pays_it_is_chosen_with_its_reason() -> None:
    """Nano on the GPU that its kernels were timed on, B = 256: within the doubt of the kernels."""
    found = nano()
    assert (found.verdict, found.best.method, found.best.draft_len) == ("change", "replay", 1)
    assert found.gain is not None and found.baseline is not None
    assert 1 < found.gain.lo < found.gain.value < found.gain.hi
    # No whole step gains more than its kernels (paper: 1.80 for this model on an H100, 1.47 whole).
    assert 1.2 < found.gain.value < found.baseline.layer_us / found.best.layer_us
    text = advice(found)
    assert text.startswith("Run replay decode at L = ")
    assert f"{found.best.terms['ssm']:.1f} of {found.best.step_ms:.1f} ms" in text


def test_small_batches_change_nothing() -> None:
    found = nano(concurrency=1)
    assert found.verdict == "no change"
    assert found.chosen.method == "conventional"
    assert advice(found).startswith("Change nothing: conventional decode")


def test_a_state_of_16_bits_takes_half_of_the_gain() -> None:
    """Published whole steps on an H100, B = 256: 1.47 with FP32, 1.26 with FP16 (vLLM pull request 48018)."""
    wide, narrow = nano(), nano(state_dtypes=("float16",))
    assert wide.gain is not None and narrow.gain is not None
    assert narrow.gain.value - 1 < 0.75 * (wide.gain.value - 1)


def test_lower_acceptance_means_shorter_drafts() -> None:
    chosen = [answer(ask(gpu="b300", acceptance=rates)).best.draft_len
              for rates in (".95,.93,.90", ".9,.7,.1", ".8,.05,.01", ".01,.01,.01")]  # fmt: skip
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[0] == 4 and chosen[-1] == 1


def test_flips_are_found_by_asking_again() -> None:
    found = answer(ask(gpu="b300", acceptance=RATES))
    asked = found.table.question
    kinds = [flip.what for flip in flips(found)]
    assert "acceptance" in kinds and "batch" in kinds
    for flip in flips(found):
        assert differs(found, flip.answer)
        if flip.what == "acceptance":
            assert flip.position is not None
            kept = answer(asked.but(drafts=asked.drafts.with_rate(flip.position, flip.value)))
            lost = answer(asked.but(drafts=asked.drafts.with_rate(flip.position, flip.value - 0.01)))
            assert not differs(found, kept) and differs(found, lost)
        if flip.what == "batch" and flip.side == "below":
            assert differs(found, flip.answer)
            assert flip.answer.table.question.concurrency == flip.value - 1


def test_a_limit_is_kept_or_nothing_is_claimed() -> None:
    free = nano()
    assert nano(sla_ms=free.best.p99_ms * 1.001).best == free.best
    tight = nano(sla_ms=free.best.p99_ms * 0.5)
    assert tight.verdict == "over the limit"
    assert advice(tight).startswith("Nothing keeps a p99 step within")
    point = within_limit(tight.table.question)
    assert point is not None
    assert point.batch < 256 and point.p99_ms <= free.best.p99_ms * 0.5
    assert within_limit(tight.table.question.but(sla_ms=1e-3)) is None
    by_token = nano(sla_ms=free.best.token_ms * 1.001, sla_on="token")
    assert by_token.verdict == "change"


def test_what_keeps_the_limit_is_run_though_what_breaks_it_gives_more() -> None:
    """Replay decode alone keeps a step within 22 ms; snapshots at T = 3 give more tokens/s in steps of 46."""
    found = answer(ask(gpu="b300", acceptance=RATES, sla_ms=22.0))
    assert found.baseline is not None and found.gain is not None
    assert found.gain.value < 1 and not found.baseline.within_sla
    assert (found.verdict, found.chosen.key) == ("change", ("replay", 1))
    assert found.chosen.within_sla and found.choice is found.first
    assert advice(found).startswith(
        "Run replay decode at L = 16: it keeps a p99 step within 22 ms, and the best without"
    )
    for limit in (5.0, 20.0, 22.0, 26.5, 40.0, 60.0):
        other = answer(ask(gpu="b300", acceptance=RATES, sla_ms=limit))
        assert other.chosen.within_sla == any(choice.within_sla for choice in other.table.choices)


def test_unmeasured_kernels_are_no_proof() -> None:
    """Bounds are marked, and their gains count only where the doubt about both sides is cleared."""
    found = answer(ask(gpu="b300", acceptance=RATES))
    for row in found.table.rows():
        assert row.basis in ("fitted", "carried", "lent", "bound")
    if found.verdict == "change":
        assert found.gain is not None and found.gain.lo > 1
    text = " ".join(warnings(found))
    assert "uncalibrated" in text and "b300" in text
    assert "4.7 times" in LEFT_OUT


def test_whose_kernels() -> None:
    """Published kernels of vLLM and ReplaySSM: another time of the same bytes, the first that is known."""
    ours, theirs = (
        compare(ask(gpu="b300", acceptance=RATES, impls=impls)) for impls in (("ours",), ("vllm", "replayssm"))
    )
    for one, other in zip(*(sorted(table.rows(), key=lambda row: row.key) for table in (ours, theirs)), strict=True):
        assert one.impl == "ours" and other.impl == ("replayssm" if other.method == "replay" else "vllm")
        assert one.layer_us != other.layer_us
        assert one.window != other.window or one.request_bytes == other.request_bytes
    assert {row.basis for row in ours.rows()} == {"carried"}
    snapshot = next(row for row in theirs.rows() if row.method == "snapshot")
    assert snapshot.basis == "fitted"  # published of a B300
    with pytest.raises(InputError, match="nothing is known of such kernels"):
        compare(ask(impls=("nobody",)))


def test_others_kernels_without_a_time_are_not_for_our_sweep_to_time() -> None:
    found = answer(ask(impls=("vllm",)))
    assert (found.verdict, found.best.basis, found.best.method) == ("unproven", "bound", "replay")
    text = advice(found)
    assert "no time is published of vllm's kernels of replay at T = 1" in text and "perfkit sweep" not in text
    assert "--impl vllm,ours takes ours there" in text
    assert {row.impl for row in compare(ask(impls=("vllm", "ours"))).rows()} == {"vllm", "ours"}
    assert any("no time is known of vllm's kernels of mamba2 replay decode" in line for line in warnings(found))


def test_batches_beyond_those_timed_are_named_once() -> None:
    """Verify kernels were timed at B = 256 alone; here four rows of two methods run fewer, each another number."""
    found = answer(ask("qwen3.5-27b", acceptance=".9,.8", concurrency=1000))
    ran = sorted(row.runs for row in found.table.rows() if row.draft_len > 1)
    lines = [line for line in warnings(found) if line.startswith("extrapolated")]
    assert lines == [f"extrapolated: replay verify, snapshot verify were timed at batch 256 alone, not at {ran[0]} to "
                     f"{ran[-1]}"]  # fmt: skip


def test_drafts_without_draft_layers_cost_what_the_engine_takes() -> None:
    estimate, none = (answer(ask("codestral-mamba", acceptance=".8", overheads=name)) for name in ("vllm", "none"))
    assert estimate.best.terms["draft"] == pytest.approx(0.12) and none.best.terms["draft"] == 0
    assert any("taken to cost 120 us each" in line for line in warnings(estimate))
    assert any("taken to cost nothing" in line for line in warnings(none))
    for found in (estimate, none):
        assert "taken to reach their roofs" in not_in_doubt(found)


def test_families_that_were_never_timed_borrow_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [one for one in known() if one.family != "gdn"]
    monkeypatch.setattr("perfkit.roofline.efficiency.known", lambda *_, **__: others)
    found = answer(ask("qwen3.5-122b", acceptance=RATES))
    lent = {row.method for row in found.table.rows() if row.basis == "lent"}
    assert lent
    assert any(line.startswith("kernels of gdn") and "never timed: predicted by those of" in line
               for line in warnings(found))  # fmt: skip


@pytest.mark.parametrize(("batch", "published"), [(1, 0.98), (32, 1.16), (128, 1.38), (256, 1.47), (512, 1.52)])
@pytest.mark.parametrize("impls", [("vllm", "replayssm"), ("ours",)])
def test_published_whole_steps_of_nano(impls: tuple[str, ...], batch: int, published: float) -> None:
    """Replay at L = 16 over conventional decode on an H100, by the authors' kernels and by ours: within 4 %.

    Prompts of a dozen tokens, 1,000 steps: 513 tokens on average. Source: vLLM pull request 48018.
    """
    asked = ask("nemotron-nano", "h100", concurrency=batch, context=513, windows=(16,), impls=impls)
    tokens = {row.method: row.tokens_per_s for row in compare(asked).rows()}
    assert tokens["replay"] / tokens["conventional"] == pytest.approx(published, rel=0.04)


# --- the window, break-even, breakdown, front, GPUs, settings


def test_the_window_and_what_another_costs() -> None:
    found = nano(engine="bytes")
    chosen = window_choice(found, found.best)
    assert chosen is not None
    assert chosen.star == pytest.approx(13.9, abs=0.1)  # paper, Eq. 16
    assert 0 <= chosen.off_best <= 0.002
    assert chosen.half is not None and chosen.double is not None
    assert chosen.half.cost > -0.002 and chosen.double.cost > -0.002
    assert chosen.double.fits < chosen.fits < chosen.half.fits
    assert found.baseline is not None and window_choice(found, found.baseline) is None


def test_break_even() -> None:
    found = nano()
    even = break_even(found, found.best)
    assert even is not None and even.batch is not None and even.surely is not None
    assert (even.against, even.draft_len) == ("conventional", 1)
    assert 1 < even.batch <= even.surely < 64
    assert even.at_best is not None and even.at_best <= even.batch
    assert found.baseline is not None and break_even(found, found.baseline) is None


def test_break_even_is_sure_where_the_answer_is() -> None:
    """Loans of another family: neither asks that both kernels be off as far as they may at once."""
    found = answer(ask("qwen3.5-4b", "rtx-4090"))
    assert found.gain is not None and found.verdict == "change"
    even = break_even(found, found.best)
    assert even is not None and even.surely is not None and even.surely <= found.best.runs
    # From there on, and not one request before, state-space layers alone are faster beyond the doubt.
    for batch, sure in ((even.surely, True), (even.surely - 1, False)):
        blocks = {block.method.key: block.layer for block in found.table.blocks}
        at = int(np.flatnonzero(np.asarray(blocks["replay"].windows) == even.window)[0])
        mine, theirs = blocks["replay"].times(batch), blocks["conventional"].times(batch)
        doubt = math.hypot(math.log(mine.kernel_hi[at] / mine.us[at]), math.log(theirs.us[0] / theirs.kernel_lo[0]))
        assert (math.log(theirs.us[0] / mine.us[at]) > doubt) is sure


def test_attention_overtakes_near_a_hundred_thousand_tokens() -> None:
    """Fig. 1: Super on a B300 at B = 256, near 100K measured, 81,920 by bytes."""
    terms = breakdown(answer(ask(gpu="b300")))
    assert terms is not None and terms.crossover is not None
    assert 80_000 < terms.crossover < 110_000
    short, long = terms.steps[1024], terms.steps[262_144]
    assert short["ssm"] == long["ssm"] > short["kv"]
    assert long["kv"] == pytest.approx(256 * short["kv"])
    assert long["kv"] > long["ssm"]


def test_the_front_is_not_dominated() -> None:
    asked = ask("nemotron-nano", state_dtypes=("float32", "float16"))
    every = points(asked)
    best = front(every)
    assert 2 < len(best) < len(every)
    for point in best:
        assert not any(other.tokens_per_s > point.tokens_per_s and other.user_tokens_per_s > point.user_tokens_per_s
                       for other in every)  # fmt: skip
    speeds = [point.user_tokens_per_s for point in best]
    assert speeds == sorted(speeds, reverse=True)


def test_other_gpus() -> None:
    found = {one.gpu.key: one for one in on_gpus(ask(gpu="b300"), ["b300", "h200", "h200-sxm", "l4"])}
    assert list(found) == ["b300", "h200-sxm", "l4"]
    assert found["l4"].answer is None and "do not fit" in (found["l4"].reason or "")
    faster, slower = found["b300"].answer, found["h200-sxm"].answer
    assert faster is not None and slower is not None
    assert faster.best.tokens_per_s > slower.best.tokens_per_s


def test_a_gpu_that_does_not_ship(tmp_path: Path) -> None:
    """An H200 of twice the bandwidth: our kernels and others' are carried over, and it stands beside others."""
    text = (
        (GPUS / "h200-sxm.yaml").read_text().replace("key: h200-sxm", "key: own").replace("value: 4800", "value: 9600")
    )
    text = re.sub(r"aliases: .*|nvml_names: .*", lambda found: found[0].split(":")[0] + ": []", text)
    (tmp_path / "own.yaml").write_text(text)
    own, h200 = load_gpu(str(tmp_path / "own.yaml")), load_gpu("h200-sxm")
    for impls in (("ours",), ("vllm", "replayssm")):
        asked = ask("nemotron-nano", impls=impls).but(gpu=own, roofs=shipped_roofs(own))
        for row in compare(asked).rows():
            assert row.basis == "carried"
        layers = {block.method.key: block.layer for block in compare(asked).blocks}
        here = {block.method.key: block.layer for block in compare(ask("nemotron-nano", impls=impls)).blocks}
        for key, one in layers.items():
            assert one.efficiency is not None and here[key].efficiency is not None
            # What is not memory's stays as long where bytes take half the time.
            assert one.efficiency.efficiency < here[key].efficiency.efficiency
    found = on_gpus(asked, ["own", str(tmp_path / "own.yaml"), "h200"])
    assert [one.gpu for one in found] == [own, h200]
    assert all(one.answer is not None for one in found)


def test_settings_of_an_engine() -> None:
    asked = ask(gpu="b300", acceptance=RATES, windows=(16,))
    row = next(row for row in compare(asked).rows() if (row.method, row.draft_len) == ("replay", 4))
    assert engine_settings(asked, row) == {
        "max_num_seqs": 256, "max_model_len": 8192, "gpu_memory_utilization": 0.9, "tensor_parallel_size": 1,
        "mamba_ssm_cache_dtype": "float32", "num_speculative_tokens": 3, "replay_buffer_length": 16,
        "kv_cache_dtype": "fp8",
    }  # fmt: skip
    for model, kv_dtype in (("nemotron-super", "bfloat16"), ("codestral-mamba", "float8_e4m3fn")):
        other = ask(model, kv_dtype=kv_dtype)
        assert "kv_cache_dtype" not in engine_settings(other, compare(other).rows()[0])


# --- drafts


def test_mean_acceptance_is_of_the_longest_draft() -> None:
    drafts = parse_drafts("mean:3", [1, 2, 4])
    assert drafts.accepted(4) == pytest.approx(3)
    assert drafts.rates[1] == pytest.approx(drafts.rates[0] ** 2)
    assert parse_drafts("p:.88,.62,.40") == parse_drafts(RATES)
    assert parse_drafts(RATES).lengths == (1, 2, 3, 4)
    assert parse_drafts(RATES).with_rate(2, 0.3).rates == (0.88, 0.3, 0.3)


@pytest.mark.parametrize(
    ("acceptance", "lengths", "complaint"),
    [(".5,.9", (), "must not rise"), ("1.5", (), "between 0 and 1"), ("x", (), "not an acceptance"),
     (None, (4,), "needs an acceptance"), (".9", (4,), "there are 1 rates"), ("mean:3", (), "needs --draft"),
     ("mean:9", (4,), "out of range"), (None, (17,), "more positions")],
)  # fmt: skip
def test_drafts_that_are_none(acceptance: str | None, lengths: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse_drafts(acceptance, lengths)
