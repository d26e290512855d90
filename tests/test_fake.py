"""The simulated GPU: its statistics against truth, and its planted faults in a real worker process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from perfkit import fake, results
from perfkit.errors import InputError
from perfkit.method import Case
from perfkit.shape import Shape
from perfkit.stats import by_round, ratio_interval

SHAPE = Shape("mamba2", n_v_heads=128, n_k_heads=8, d_v=64, d_k=128)
CONVENTIONAL = Case(SHAPE, "conventional", 64)
REPLAY = Case(SHAPE, "replay", 64, window=16)
#: Methods that no registry has, so that the simple formula applies.
PLAIN = Case(SHAPE, "plain-in-place", 64)
BUFFERED = Case(SHAPE, "plain-buffered", 64, window=16)
STATE_BYTES = 64 * 128 * 64 * 128 * 4


def run(cases, **settings) -> list[dict]:
    events: list[dict] = []
    request = {"op": "group", "group_id": "g", "cases": [case.to_dict() for case in cases], "settings": settings}
    fake.run_group(request, events.append)
    json.dumps(events, allow_nan=False)
    return events


def by_case(events) -> dict[str, dict]:
    found = [event for event in events if event["event"] == "result"]
    assert len({event["case_id"] for event in found}) == len(found)
    return {event["case_id"]: event for event in found}


def test_truth_of_the_simple_formula_is_bytes_over_roof_plus_launch():
    quiet = {"fake": {"roof_gb_s": 4000.0, "launch_us": 2.0}}
    assert fake.true_time_us(PLAIN, quiet) == pytest.approx(2 * STATE_BYTES / 4e6 + 2)  # 134.2 + 2 us
    truth = fake.truth(BUFFERED, quiet)
    assert truth.time_us == pytest.approx(STATE_BYTES * (1 + 1 / 16) / 4e6 + 2)
    assert truth.nonflush_us == pytest.approx(STATE_BYTES / 4e6 + 2)
    assert truth.flush_us == pytest.approx(2 * STATE_BYTES / 4e6 + 2)
    slower = {"fake": {"roof_gb_s": 2000.0, "launch_us": 0.0}}
    assert fake.true_time_us(PLAIN, slower) == pytest.approx(2 * STATE_BYTES / 2e6)


def test_truth_of_a_known_method_uses_the_bytes_that_it_declares():
    pytest.importorskip("triton")
    truth = fake.truth(CONVENTIONAL, {})
    assert truth.time_us > 2 * STATE_BYTES / 4e6 + 2  # the state, and inputs and outputs besides
    assert truth.time_us < 1.05 * (2 * STATE_BYTES / 4e6 + 2)
    replay = fake.truth(REPLAY, {})
    assert replay.nonflush_us < replay.time_us < replay.flush_us
    assert replay.time_us == pytest.approx((15 * replay.nonflush_us + replay.flush_us) / 16)


def test_verify_cases_have_a_truth():
    case = Case(SHAPE, "plain-buffered", 4, window=16, draft_len=4, acceptance="T")
    # From h = 4: 4, 8, 12 and the step at 16 > 16 - 4 flushes: one flush in floor(12/4) + 1 = 4 steps.
    state = STATE_BYTES / 16
    assert fake.true_time_us(case, {}) == pytest.approx(state * (1 + 1 / 4) / 4e6 + 2)


def test_group_has_one_result_a_case_phases_for_each_and_an_end():
    events = run([PLAIN, BUFFERED])
    assert events[-1] == {"event": "done", "group_id": "g"}
    assert list(by_case(events)) == [PLAIN.id, BUFFERED.id]
    for case in (PLAIN, BUFFERED):
        phases = [event["phase"] for event in events if event["event"] == "phase" and event["case_id"] == case.id]
        assert phases[0] == "check" and phases[-1] == "time"
    result = by_case(events)[BUFFERED.id]
    assert (result["status"], result["reason"]) == ("ok", None)
    row = results.make_row(BUFFERED, status="ok", source="measured", **result["row"])  # every column is known
    assert (row["checked"], row["launches"], row["l2_state"], row["stop_reason"]) == ("no", 1.0, "cold", "converged")
    assert row["n_samples"] == len(result["samples"]["time_us"]) >= 10
    assert row["time_us_lo"] < row["time_us"] < row["time_us_hi"] < row["time_p99_us"]


def test_the_tail_of_single_steps_shows_flushes_that_happen_together():
    together = Case(SHAPE, "plain-buffered", 64, window=16, draft_len=4, acceptance="T")
    spread, random = replace(together, flush_phase="staggered"), replace(together, acceptance="mean:3")
    for case in (BUFFERED, together, spread, random):
        result, truth = by_case(run([case], fake={"noise": 0.001}))[case.id], fake.truth(case, {})
        row = result["row"]
        assert len(result["samples"]["step_us"]) == row["steps_per_sample"] == 64
        tail = truth.time_us if case in (spread, random) else truth.flush_us
        assert row["time_p99_us"] == pytest.approx(tail, rel=0.01)
        assert (row["time_flush_us"] is None) == (case in (spread, random))
    assert fake.truth(together, {}).flush_us > 1.5 * fake.truth(together, {}).nonflush_us


def test_same_seed_same_samples():
    assert run([PLAIN, BUFFERED], seed=3) == run([PLAIN, BUFFERED], seed=3)
    other = by_case(run([PLAIN], seed=4))[PLAIN.id]["samples"]
    assert other != by_case(run([PLAIN], seed=3))[PLAIN.id]["samples"]


def test_intervals_cover_the_true_time():
    truth, hits, n = fake.true_time_us(PLAIN, {}), 0, 120
    for seed in range(n):
        row = by_case(run([PLAIN], seed=seed, fake={"noise": 0.012}))[PLAIN.id]["row"]
        assert row["stop_reason"] == "converged"
        assert (row["time_us_hi"] - row["time_us_lo"]) / 2 <= 0.005 * row["time_us"]
        hits += row["time_us_lo"] <= truth <= row["time_us_hi"]
    assert 0.86 <= hits / n <= 0.995


def test_speedup_of_interleaved_rounds_covers_the_true_one():
    cases = by_case(run([PLAIN, BUFFERED], min_samples=60))
    base, new = (by_round(cases[case.id]["samples"]["round"], cases[case.id]["samples"]["time_us"], 100)
                 for case in (PLAIN, BUFFERED))  # fmt: skip
    ratio = ratio_interval(base, new)
    assert fake.true_time_us(PLAIN, {}) / fake.true_time_us(BUFFERED, {}) in ratio
    assert ratio.half_width < 0.01


def test_throttled_samples_are_dropped_and_counted():
    option = {"throttle_period_s": 0.2, "throttle_s": 0.05, "throttle_slowdown": 1.5, "noise": 0.005}
    result = by_case(run([PLAIN], min_samples=60, fake=option))[PLAIN.id]
    row, truth = result["row"], fake.true_time_us(PLAIN, {})
    assert row["n_throttled"] == len(result["samples"]["throttled_us"]) > 10
    assert row["throttle_reasons"] == "power cap"
    assert row["time_us"] == pytest.approx(truth, rel=0.005)
    assert min(result["samples"]["throttled_us"]) > 1.4 * truth
    assert max(result["samples"]["time_us"]) < 1.1 * truth
    kept_and_dropped = row["n_samples"] + row["n_throttled"]
    assert result["samples"]["round"][-1] < kept_and_dropped  # rounds of dropped samples stay empty


def test_limits_are_named():
    noisy = {"noise": 0.5}
    row = by_case(run([PLAIN], max_samples=30, fake=noisy))[PLAIN.id]["row"]
    assert (row["stop_reason"], row["n_samples"]) == ("max_samples", 30)
    row = by_case(run([PLAIN], max_case_s=0.1, fake=noisy))[PLAIN.id]["row"]
    assert row["stop_reason"] == "max_time"
    assert row["n_samples"] == pytest.approx(0.1 / (64 * fake.true_time_us(PLAIN, {}) * 1e-6), rel=0.6)


@pytest.mark.parametrize("key", [BUFFERED.id, BUFFERED.method])
@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("oom", "oom", "planted: out of memory"),
        ("oom@time", "oom", "planted: out of memory"),
        ("error", "error", "RuntimeError: planted"),
        ("incorrect", "incorrect", "planted: relative error 1.0 above 0.01"),
        ("nan", "error", "planted: a time is not a number"),
        ("throttle", "throttled", "60 of 60 samples dropped: power cap"),
    ],
)
def test_planted_faults_end_their_case_and_no_other(fault, status, reason, key):
    found = by_case(run([PLAIN, BUFFERED], max_samples=30, faults={key: fault}))
    bad = found[BUFFERED.id]
    assert (bad["status"], bad["reason"], bad["row"].get("time_us")) == (status, reason, None)
    assert found[PLAIN.id]["status"] == "ok"
    row = results.make_row(BUFFERED, status=status, reason=reason, source="measured", **bad["row"])
    if status == "throttled":
        assert (row["n_samples"], row["n_throttled"]) == (0, 60)
    if status == "incorrect":
        assert row["rel_error"] == 1.0


def test_raised_exception_leaves_the_handler():
    with pytest.raises(RuntimeError, match="planted"):
        run([PLAIN], faults={PLAIN.id: "raise"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fake": {"roof": 1}}, "fake.roof: unknown setting .allowed: launch_us"),
        ({"faults": {PLAIN.id: "explode"}}, "faults: 'explode': unknown fault"),
        ({"faults": {PLAIN.id: "crash@lunch"}}, "faults: 'crash@lunch': unknown fault"),
        ({"faults": {PLAIN.id: "nan@check"}}, "faults: 'nan@check': unknown fault"),
        ({"min_samples": 1}, "min_samples: 1: must be at least 2"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        run([PLAIN], **settings)


def test_a_planted_slowdown_changes_the_true_times_of_its_case_alone():
    slow = {"slowdown": {"plain-buffered": 1.04}}
    before, after = fake.truth(BUFFERED, {}), fake.truth(BUFFERED, slow)
    for name in ("time_us", "nonflush_us", "flush_us"):
        assert getattr(after, name) == pytest.approx(1.04 * getattr(before, name))
    assert fake.truth(PLAIN, slow) == fake.truth(PLAIN, {})
    quiet = {"fake": {"noise": 0.0}, "slowdown": {BUFFERED.id: 1.04}}
    assert by_case(run([BUFFERED], **quiet))[BUFFERED.id]["row"]["time_us"] == pytest.approx(after.time_us)


def test_runs_of_the_same_code_differ_by_what_their_samples_do_not_show():
    quiet = {"noise": 0.0, "run_noise": 0.01}
    times = []
    for seed in range(40):
        found = by_case(run([PLAIN, BUFFERED], seed=seed, fake=quiet))
        times.append([found[case.id]["row"]["time_us"] for case in (PLAIN, BUFFERED)])
        assert len(set(found[PLAIN.id]["samples"]["time_us"])) == 1
    logs = np.log(np.asarray(times) / [fake.true_time_us(case, {}) for case in (PLAIN, BUFFERED)])
    assert logs.std(axis=0) == pytest.approx([0.01, 0.01], rel=0.4)
    assert abs(np.corrcoef(logs.T)[0, 1]) < 0.5  # each case has its own


@pytest.mark.parametrize("value", [0, -1.0, True, "4 %"])
def test_a_slowdown_is_a_factor(value):
    with pytest.raises(InputError, match=r"slowdown: replay: .*must be a number above 0"):
        fake.parse_settings(json.dumps({"slowdown": {"replay": value}}), {})


def test_time_is_the_median_of_the_samples():
    result = by_case(run([PLAIN], min_samples=30))[PLAIN.id]
    assert np.median(result["samples"]["time_us"]) == result["row"]["time_us"]


def worker(cases, timeout: float = 30, **settings) -> tuple[int, list[dict]]:
    """Run one group in a real worker, then quit; return its exit status and its events."""
    request = {"op": "group", "group_id": "g", "cases": [case.to_dict() for case in cases], "settings": settings}
    child = subprocess.Popen([sys.executable, "-m", "perfkit.worker", "--mode", "fake"], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    events = []
    try:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(json.dumps(request) + "\n" + json.dumps({"op": "quit"}) + "\n")
        child.stdin.flush()
        for line in child.stdout:
            events.append(json.loads(line))
            if "hang" in str(settings.get("faults")) and events[-1].get("phase") == "time":
                break
        else:
            child.wait(timeout)
        if child.poll() is None:
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.3)
    finally:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            stream.close()
    return child.returncode, events


def test_worker_runs_a_group_without_torch():
    status, events = worker([PLAIN, BUFFERED])
    assert status == 0
    assert events[0]["event"] == "ready"
    assert (events[0]["info"]["name"], events[0]["info"]["uuid"]) == (fake.NAME, fake.UUID)
    assert {event["status"] for event in by_case(events).values()} == {"ok"}
    code = "import sys, perfkit.fake; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(("fault", "expected"), [("crash", -9), ("exit", 139), ("hang", -9)])
def test_worker_dies_or_hangs_where_planted(fault, expected):
    status, events = worker([PLAIN, BUFFERED], faults={BUFFERED.id: fault})
    last = events[-1]
    if fault == "hang":
        assert (last["event"], last["phase"]) == ("phase", "time")
    else:
        assert (status, last["event"], last["case_id"], last["phase"]) == (expected, "phase", BUFFERED.id, "time")
    assert by_case(events) == {}
