"""Bytes, roofs, predictions and speedups of rows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from perfkit import cases, derive, registry, results
from perfkit.derive import ratio
from perfkit.method import Case, Point
from perfkit.profiles import load_gpu
from perfkit.profiles.loader import GPUS
from perfkit.roofline import roofs_for
from perfkit.roofline.roof import datasheet_roofs
from perfkit.shape import Shape

SUPER = Shape("mamba2", 128, 8, 64, 128)
GPU = SimpleNamespace(
    key="h200", bandwidth_gb_s=4800.0, fp32_tflops=67.0, bf16_tflops=989.4, l2_mb=50.0, boost_clock_mhz=1980.0
)
ROOFS = datasheet_roofs("h200", 4800.0)
STATE = 128 * 64 * 128 * 4  # bytes of one sequence's state in one layer


def group(batch: int = 256, windows: str = "16", **flags) -> cases.Group:
    (found,) = cases.build_groups(SUPER, cases.parse_spec(batch=str(batch), window=windows, **flags))
    return found


def row(case: Case, time_us: float | None, source: str = "measured", status: str = "ok") -> dict:
    return results.make_row(case, model="m", gpu="h200", gpu_uuid="GPU-1", source=source, status=status,
                            time_us=time_us, reason=None if status == "ok" else "why")  # fmt: skip


def finished(point: cases.Group, *times: float | None, **kind) -> list[dict]:
    rows = [row(case, time, **kind) for case, time in zip(point.cases, times, strict=True)]
    return derive.derive(rows, {case.id: case for case in point.cases}, GPU, ROOFS)


def test_every_derived_column_is_a_column():
    for out in finished(group(), 559.0, 302.0):
        assert results.check_row(out)["predicted_us"] > 0


def test_conventional_reads_and_writes_its_state_once():
    conventional, _ = finished(group(), 559.0, 302.0)
    assert conventional["bytes_read_paper"] == conventional["bytes_write_paper"] == 256 * STATE
    assert 256 * STATE < conventional["bytes_read_model"] < 1.02 * 256 * STATE
    assert 256 * STATE < conventional["bytes_write_model"] < 1.02 * 256 * STATE


def test_papers_ratio_at_sixteen():
    _, replay = finished(group(), 559.0, 302.0)
    ratio = (replay["bytes_read_paper"] + replay["bytes_write_paper"]) / (2 * 256 * STATE)
    assert ratio == pytest.approx(0.5812, abs=5e-5)  # paper, App. C.3


def test_exact_bytes_are_the_mean_over_the_cycle():
    point = group()
    case = point.cases[1]
    method = registry.get_method("mamba2", "replay", "decode")
    steps = [method.step(SUPER, Point.of(case), h, h == 15) for h in range(16)]
    _, replay = finished(point, 559.0, 302.0)
    assert replay["bytes_read_model"] == pytest.approx(np.mean([float(s.bytes_read) for s in steps]), rel=1e-12)
    assert replay["bytes_write_model"] == pytest.approx(np.mean([float(s.bytes_write) for s in steps]), rel=1e-12)
    assert replay["bytes_write_model"] < 0.1 * 256 * STATE  # one state write in sixteen steps


def test_times_become_rates():
    conventional, replay = finished(group(), 559.0, 302.0)
    assert replay["speedup"] == pytest.approx(559 / 302)
    assert conventional["speedup"] == 1.0
    assert replay["baseline"] == conventional["baseline"] == conventional["case_id"]
    assert replay["conventional_steps"] == pytest.approx(302 / 559)
    assert replay["tokens_per_s"] == pytest.approx(256 / 302e-6)
    moved = replay["bytes_read_model"] + replay["bytes_write_model"]
    assert replay["bandwidth_gb_s"] == pytest.approx(moved / 302 / 1e3)
    assert replay["prediction_error"] == pytest.approx(replay["predicted_us"] / 302 - 1)
    assert conventional["memory_per_request"] == STATE < replay["memory_per_request"] < 1.1 * STATE
    assert replay["roof_fraction"] == pytest.approx(replay["useful_bytes"] / replay["roof_gb_s"] / 1e3 / 302)
    assert 0.7 < replay["roof_fraction"] < 1.1
    assert replay["predicted_lo"] < replay["predicted_us"] < replay["predicted_hi"]


def test_a_method_gains_no_share_of_the_roof_by_declaring_more_bytes(monkeypatch: pytest.MonkeyPatch):
    point = group()
    honest = finished(point, 559.0, 302.0)[1]
    method = registry.get_method("mamba2", "replay", "decode")
    control = registry.get_method("mamba2", "conventional", "decode")

    def wasteful(self, shape, at, h, flush):
        step = control.step(shape, at, h, flush)
        return type(step)(step.bytes_read * 5, step.bytes_write * 4, step.flops)

    monkeypatch.setattr(type(method), "step", wasteful)
    conventional, replay = finished(point, 559.0, 302.0)
    assert replay["bytes_read_model"] == pytest.approx(5 * conventional["bytes_read_model"])
    assert replay["useful_bytes"] == conventional["useful_bytes"]
    assert replay["roof_fraction"] == pytest.approx(conventional["roof_fraction"] * 559 / 302)
    assert honest["useful_bytes"] < conventional["useful_bytes"]


def test_a_byte_model_that_raises_does_not_lose_the_time(monkeypatch: pytest.MonkeyPatch):
    def broken(self, *args):
        raise ZeroDivisionError("mine")

    monkeypatch.setattr(type(registry.get_method("mamba2", "replay", "decode")), "step", broken)
    _, replay = finished(group(), 559.0, 302.0)
    assert replay["time_us"] == 302.0
    assert replay["speedup"] == pytest.approx(559 / 302)
    assert replay["reason"] == "byte model: ZeroDivisionError: mine"
    assert replay["predicted_us"] is None


def test_a_failed_control_gives_no_speedup_and_a_failed_case_none():
    point = group()
    rows = [row(point.cases[0], None, status="oom"), row(point.cases[1], 302.0)]
    out = derive.derive(rows, {case.id: case for case in point.cases}, GPU, ROOFS)
    assert [item["speedup"] for item in out] == [None, None]
    assert out[1]["baseline"] == point.cases[0].id
    assert out[0]["tokens_per_s"] is None
    assert out[0]["predicted_us"] > 0


def test_sources_are_compared_apart():
    point = group()
    table = {case.id: case for case in point.cases}
    rows = [row(point.cases[0], 500.0, "predicted"), row(point.cases[1], 250.0, "predicted"),
            row(point.cases[0], 559.0, "recorded"), row(point.cases[1], 302.0, "recorded")]  # fmt: skip
    out = derive.derive(rows, table, GPU, ROOFS)
    assert [round(item["speedup"], 3) for item in out] == [1.0, 2.0, 1.0, 1.851]
    assert out[1]["prediction_error"] is None
    assert out[1]["roof_fraction"] is None
    assert out[3]["prediction_error"] is not None


def test_what_was_recorded_stays():
    point = group()
    old = row(point.cases[1], 302.0, "recorded") | {"predicted_us": 1.0, "roof_gb_s": 2.0, "speedup": 1.5}
    (out,) = derive.derive([old], {point.cases[1].id: point.cases[1]}, GPU, ROOFS)
    assert (out["predicted_us"], out["roof_gb_s"], out["speedup"]) == (1.0, 2.0, 1.5)
    assert out["bytes_read_model"] > 0


def test_self_check_compares_with_a():
    point = group(self_check=True)
    a, b, replay = finished(point, 500.0, 505.0, 250.0)
    assert json.loads(a["options"]) == {"alias": "A"}
    assert b["speedup"] == pytest.approx(500 / 505)
    assert replay["speedup"] == 2.0
    assert replay["baseline"] == a["case_id"]


def test_a_gpu_without_profile_has_bytes_and_no_roof():
    point = group()
    rows = [row(case, 300.0) for case in point.cases]
    out = derive.derive(rows, {case.id: case for case in point.cases}, None, None)
    assert out[1]["bytes_read_model"] > 0
    assert (out[1]["roof_gb_s"], out[1]["predicted_us"], out[1]["roof_fraction"]) == (None, None, None)
    assert out[1]["speedup"] == 1.0


def test_staggered_rows_cost_the_mean_step():
    aligned = group().cases[1]
    staggered = group(flush_phase="staggered").cases[1]
    one, other = (derive.model_case(case, GPU, ROOFS) for case in (aligned, staggered))
    assert one.step == other.step
    assert not derive.in_step(staggered)
    assert other.time.us == pytest.approx(one.time.us, rel=0.1)


def test_window_cost_is_the_models_time():
    case = group().cases[1]
    cost = derive.window_cost(case, GPU, ROOFS)
    assert cost(np.array([8, 16, 32]))[1] == pytest.approx(derive.model_case(case, GPU, ROOFS).time.us, rel=1e-12)


def test_a_bound_is_not_compared_with_a_time():
    control = {"source": "predicted", "status": "ok", "time_us": 500.0, "predicted_us": 500.0, "predicted_lo": 450.0}
    bound = {"source": "predicted", "status": "ok", "time_us": 480.0, "predicted_us": 480.0, "predicted_lo": 480.0}
    assert ratio(control, bound) is None
    assert ratio(bound, bound | {"time_us": 240.0, "predicted_us": 240.0, "predicted_lo": 240.0}) == 2.0
    assert ratio(control, control | {"time_us": 250.0}) == 2.0
    assert ratio({"status": "ok", "time_us": 3.0}, {"status": "ok", "time_us": 2.0}) == 1.5  # measured


def test_a_bound_is_known_where_the_roof_is_doubted_too():
    from perfkit.method import Step
    from perfkit.profiles import load_gpu
    from perfkit.roofline import efficiency_for, predict, roofs_for

    step = Step(1e9, 1e9, 1e9)
    known = efficiency_for("mamba2", "conventional", "decode")
    for key in ("h200", "b200"):
        gpu = load_gpu(key)
        for efficiency in (None, known):
            time = predict(gpu, roofs_for(gpu), step, efficiency=efficiency)
            assert derive.bound_interval(time.us, time.lo, time.hi) == (efficiency is None), key


def test_a_gpu_of_ones_own_profile_has_kernels_carried_over(tmp_path: Path) -> None:
    text = (GPUS / "b300.yaml").read_text(encoding="utf-8").replace("key: b300", "key: own")
    text = re.sub(r"aliases: .*|nvml_names: .*", lambda found: found[0].split(":")[0] + ": []", text)
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    case = Case(SUPER, "replay", 256, window=16)
    times = [derive.model_case(case, gpu, roofs_for(gpu)).time
             for gpu in (load_gpu(str(tmp_path / "own.yaml")), load_gpu("b300"))]  # fmt: skip
    assert times[0] is not None and times[1] is not None
    assert (times[0].us, times[0].hi) == pytest.approx((times[1].us, times[1].hi))
