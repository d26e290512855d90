"""What each figure of evidence draws: the rows' own numbers, kinds of evidence apart, and a title that follows them."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from perfkit.reports import figures, select
from perfkit.reports.figures.base import AREA_PX
from perfkit.reports.figures.point_labels import WIDTHS, Point, clusters
from perfkit.reports.figures.verify_bands import in_steps
from tests.figuredata import raw, recorded, title, traces

FEW = ("conventional", "snapshot", "replay", "stree")


def verify(methods: tuple[str, ...] = FEW) -> pd.DataFrame:
    """The run of verify steps at T = 2 … 8, with its conventional decode step."""
    data = recorded()
    chains = data["draft_len"].lt(10) & data["tree"].isna()
    run = data[data["phase"].eq("verify") & chains]
    some = data["method"].isin(methods) & data["batch"].eq(256)
    return raw(data[data["gpu_uuid"].isin(run["gpu_uuid"]) & chains & some])


def decode() -> pd.DataFrame:
    data = recorded()
    return raw(data[data["phase"].eq("decode")].drop_duplicates("case_id"))


def test_verify_bands_draw_times_over_the_decode_step_of_the_run() -> None:
    data = verify()
    figure = figures.verify_bands(data)
    unit = data.query("phase == 'decode' and method == 'conventional'").set_index("gpu_uuid")["time_us"]
    mine = data.query("method == 'stree'")
    (trace,) = traces(figure, method="stree", source="recorded")
    expected = mine["time_us"] / mine["gpu_uuid"].map(unit.groupby(level=0).first())
    assert sorted(trace.y) == pytest.approx(sorted(expected))
    band = next(t for t in figure.data if t.name == "band" and t.legendgroup.startswith("stree recorded"))
    assert (min(band.y), max(band.y)) == pytest.approx((min(expected), max(expected)))
    assert trace.marker.symbol.endswith("-open") and "commit" in trace.hovertext[0]
    (filled,) = traces(figures.verify_bands(data.assign(source="measured")), method="stree", source="measured")
    assert filled.marker.symbol == "triangle-left" and "commit" not in filled.hovertext[0]


def test_verify_bands_without_the_decode_step_read_what_was_saved() -> None:
    data = verify().query("phase == 'verify'")
    steps = in_steps(select.prepare(data))
    assert steps["steps"].tolist() == pytest.approx(data["conventional_steps"].tolist())
    assert np.all(steps["steps_lo"] <= steps["steps"]) and np.all(steps["steps"] <= steps["steps_hi"])


def test_verify_bands_say_what_is_cheapest_at_each_length() -> None:
    data = verify()
    assert title(figures.verify_bands(data)).startswith("Replay at L = 16 was the cheapest at every T (2, 4, 6 and 8)")
    slow = data["method"].eq("replay") & data["draft_len"].eq(8)
    changed = data.assign(time_us=data["time_us"].where(~slow, 20 * data["time_us"]))
    assert "at T = 2, 4 and 6 and stree was the cheapest at T = 8" in title(figures.verify_bands(changed))


def test_verify_bands_predict_lines_and_never_mix_a_bound_with_a_fit() -> None:
    data = verify().assign(source="predicted")
    fitted = data.assign(predicted_lo=data["predicted_us"] * 0.9, predicted_hi=data["predicted_us"] * 1.1)
    lines = traces(figures.verify_bands(fitted), source="predicted")
    assert len(lines) == 3 and all(line.mode == "lines" for line in lines)
    bounds = fitted.assign(
        predicted_lo=fitted["predicted_us"].where(fitted["phase"].eq("verify"), fitted["predicted_lo"])
    )
    assert figures.verify_bands(bounds).data == ()


def counted(**factors: float) -> pd.DataFrame:
    """Cases of T = 4, a = 3 with counters beside them: the exact count times a factor by method."""
    data = verify().query("draft_len == 4 and acceptance == '3'").assign(source="measured")
    factor = data["method"].map(factors).fillna(1.0)
    reads, writes = data["bytes_read_model"] * factor, data["bytes_write_model"] - 1e6
    return data.assign(bytes_read_dram=reads, bytes_write_dram=writes)


def test_traffic_bars_draw_three_counts_and_name_what_counters_contradict() -> None:
    data = counted(stree=1.05)
    figure = figures.traffic_bars(data)
    for kind in ("paper", "model", "dram"):
        (bars,) = traces(figure, count=kind)
        own = data.set_index("method")
        total = (own[f"bytes_read_{kind}"] + own[f"bytes_write_{kind}"]) / 1e9
        assert list(bars.x) == pytest.approx([total[method] for method in bars.meta["methods"]])
    assert title(figure) == (
        "DRAM counters contradict the exact count of stree (+5.0%) at B = 256, T = 4, a = 3; 1 of 3 cases"
    )
    # What a kernel leaves dirty in L2 is not in DRAM yet: writes a megabyte short contradict nothing.
    assert "agree within 1 % with the exact count of 3 cases" in title(figures.traffic_bars(counted(stree=1.005)))


def test_traffic_bars_keep_recorded_counters_hollow_and_go_without() -> None:
    hollow = traces(figures.traffic_bars(counted().assign(source="recorded")), count="dram")[0]
    solid = traces(figures.traffic_bars(counted()), count="dram")[0]
    assert set(hollow.marker.color) == {"#ffffff"} and "#0072b2" in solid.marker.color
    without = figures.traffic_bars(decode())
    assert [t.meta["count"] for t in without.data] == ["paper", "model"]
    assert "Replay L = 16 moves the least, 1.19 GB" in title(without) and "no DRAM counters" in title(without)
    assert "perfkit profile --model" in without.layout.meta["caption"]
    more = decode().assign(bytes_read_model=lambda rows: rows["bytes_read_model"] * 2)
    assert title(figures.traffic_bars(more)) != title(without)


def tails() -> pd.DataFrame:
    aligned = pd.DataFrame({
        "method": ["conventional", "replay"], "window": [None, 16], "time_us": [500.0, 300.0], "batch": 256,
        "time_us_lo": [499.0, 299.0], "time_us_hi": [501.0, 301.0], "time_p99_us": [505.0, 540.0],
        "time_nonflush_us": [None, 280.0], "time_flush_us": [None, 545.0], "flush_phase": "aligned",
        "case_id": ["a", "b"], "source": "measured", "phase": "decode", "draft_len": 1,
    })  # fmt: skip
    staggered = aligned.assign(flush_phase="staggered", time_p99_us=[504.0, 306.0], case_id=["c", "d"])
    return pd.concat([aligned, staggered.assign(time_flush_us=None, time_nonflush_us=None)], ignore_index=True)


def test_tail_latency_draws_mean_and_99th_percentile_of_both_phases() -> None:
    figure = figures.tail_latency(tails())
    (mean,) = traces(figure, source="measured", method="replay")
    assert list(mean.x) == [300.0, 300.0]
    assert list(mean.y) == ["replay L = 16<br>aligned", "replay L = 16<br>staggered"]
    assert list(mean.error_x.array) == pytest.approx([1.0, 1.0]) and mean.error_y.array is None
    assert [list(t.x) for t in traces(figure, tail="replay")] == [[280.0, 540.0], [300.0, 306.0]]
    assert title(figure) == (
        "The 99th percentile of replay L = 16 exceeds its mean by 80 % with aligned flushes and 2 % with staggered "
        "flushes at B = 256, that of conventional by 1 % (measured)"
    )
    assert "exceeds its mean by 80 % at B = 256" in title(figures.tail_latency(tails().drop(columns="flush_phase")))
    worse = tails().replace({"time_p99_us": {306.0: 330.0}})
    assert "10 % with staggered" in title(figures.tail_latency(worse))


def test_tail_latency_says_which_phase_is_missing_and_drops_what_is_no_percentile_of_steps() -> None:
    data = tails().query("flush_phase == 'aligned'")
    caption = figures.tail_latency(data).layout.meta["caption"]
    assert "Staggered flushes were not run: perfkit sweep --model KEY --flush-phase staggered" in caption
    wrong = figures.tail_latency(data.assign(time_p99_us=[505.0, 301.0]))
    assert not traces(wrong, method="replay") and "1 row left out" in wrong.layout.meta["caption"]


def precisions() -> pd.DataFrame:
    plain = (
        tails().query("flush_phase == 'aligned'").assign(state_dtype="float32", read_dtype="float32", rel_error=1e-9)
    )
    times = {name: plain[name] * 0.5 for name in ("time_us", "time_us_lo", "time_us_hi")}
    half = plain.assign(state_dtype="float16", read_dtype="float16", case_id=["e", "f"], rel_error=1e-3, **times)
    reads = plain.iloc[1:].assign(read_dtype="float8_e4m3fn", case_id=["g"], time_us=120.0, rel_error=None)
    return pd.concat([plain, half, reads], ignore_index=True)


def test_precision_draws_speed_over_fp32_and_errors_below() -> None:
    figure = figures.precision(precisions())
    (trace,) = [t for t in traces(figure, source="measured", method="replay") if t.yaxis != "y2"]
    assert list(trace.y) == pytest.approx([1.0, 2.0, 2.5])
    assert list(figure.layout.xaxis.ticktext) == ["FP32 state", "FP16 state", "FP32 state<br>FP8 reads"]
    errors = [t for t in figure.data if t.yaxis == "y2" and t.name.startswith("replay")]
    assert [list(t.y) for t in errors] == [[1e-9, 1e-3]]
    assert title(figure).startswith("FP16 state is 2.00× FP32's speed")
    assert "FP32 state with FP8 reads is 2.50× FP32's speed (replay at L = 16)" in title(figure)
    slower = precisions().replace({"time_us": {120.0: 200.0}})
    assert "FP8 reads is 1.50×" in title(figures.precision(slower))
    assert all(t.yaxis != "y2" for t in figures.precision(precisions().drop(columns="rel_error")).data)


def test_precision_compares_within_one_run_and_kind() -> None:
    data = precisions()
    data.loc[data["state_dtype"].eq("float16"), "source"] = "recorded"
    kinds = figures.precision(data).layout.xaxis.ticktext
    assert kinds == ("FP32 state", "FP32 state<br>FP8 reads")
    alone = figures.precision(data.query("state_dtype == 'float32' and read_dtype == 'float32'"))
    assert alone.data == () and alone.layout.meta["add"].endswith("--state-dtype fp32,fp16")


def predicted(**changes: object) -> pd.DataFrame:
    data = pd.DataFrame({
        "method": "replay", "window": 16, "batch": [1, 2, 4, 8], "time_us": [10.0, 20.0, 40.0, 80.0],
        "predicted_us": [11.0, 20.0, 38.0, 90.0], "predicted_lo": [9.0, 18.0, 34.0, 85.0],
        "predicted_hi": [13.0, 22.0, 42.0, 95.0], "source": "measured",
    })  # fmt: skip
    return data.assign(**changes)


def test_model_error_draws_predictions_over_times_and_counts_the_intervals_that_hold() -> None:
    figure = figures.model_error(predicted())
    (trace,) = traces(figure, source="measured", method="replay")[:1]
    assert list(trace.x) == [10.0, 20.0, 40.0, 80.0] and list(trace.y) == [11.0, 20.0, 38.0, 90.0]
    residuals = next(t for t in figure.data if t.yaxis == "y2" and t.name == "replay error, measured")
    assert list(residuals.y) == pytest.approx([0.1, 0.0, -0.05, 0.125])
    assert title(figure) == (
        "Predictions are off by 7.5 % in the median, 12 % at the 95th percentile; 3 of 4 measured times inside the "
        "stated 95 % interval"
    )
    assert "4 of 4 measured times" in title(figures.model_error(predicted(predicted_lo=1.0)))


def test_model_error_keeps_kinds_and_bounds_apart() -> None:
    both = pd.concat([predicted(), predicted(source="recorded", time_us=[10.0, 20.0, 38.0, 90.0])], ignore_index=True)
    figure = figures.model_error(both)
    assert len(traces(figure, source="measured")) and len(traces(figure, source="recorded"))
    assert "3 of 4 measured times" in title(figure) and "4 of 4 recorded times" in title(figure)
    assert not re.search(r"of 8", title(figure))
    bounds = figures.model_error(predicted(predicted_lo=predicted()["predicted_us"], predicted_hi=400.0))
    assert title(bounds) == "Bounds from bytes are 5 % above 4 measured times in the median"
    assert all(t.opacity < 1 for t in traces(bounds, source="measured"))


def test_paper_table_draws_ours_over_published_and_misses_first() -> None:
    data = verify()
    figure = figures.paper_table(data)
    assert title(figure).startswith("No number of the paper is comparable;")
    assert "GPU h200-sxm, not b300" in figure.layout.meta["caption"]
    lines = traces(figure, comparable=False)
    assert lines and all(t.marker.symbol.endswith("-open") for t in lines)
    (cost,) = [t for t in lines if t.y[0] == "stree cost<br>B=256 T=8"]
    here = data.query("draft_len == 8 and acceptance in ('1', '7', 'T')").set_index(["acceptance", "method"])["time_us"]
    ours = here.xs("stree", level=1) / here.xs("snapshot", level=1)
    assert min(cost.x) == pytest.approx(ours.min() / 1.0, rel=0.02)
    same = data.assign(source="measured", gpu="b300", implementation="vLLM", time_default_us=1.0)
    comparable = figures.paper_table(same)
    assert traces(comparable, comparable=True)[0].marker.symbol == "diamond"
    assert re.match(r"\d+ of \d+ comparable numbers of the paper missed by more than 5 %", title(comparable))
    other = same.assign(conventional_steps=same["conventional_steps"] * 9)
    assert title(figures.paper_table(other)) != title(comparable)


def test_paper_table_of_another_model_is_empty() -> None:
    figure = figures.paper_table(verify().assign(model="my-model"))
    assert figure.data == () and figure.layout.meta["add"] is None
    failed = figures.paper_table(verify().assign(status="oom"))
    assert failed.data == () and failed.layout.meta["add"].startswith("perfkit sweep --model nemotron-3-super")


def test_roofline_names_stay_apart_and_stand_for_every_case() -> None:
    figure = figures.roofline(decode())
    names = [a for a in figure.layout.annotations if a.name == "point-label"]
    assert {a.text for a in names} >= {"L = 8–32, B = 1", "conventional, B = 1"}
    (x0, x1), (y0, y1) = figure.layout.xaxis.range, figure.layout.yaxis.range
    for width in WIDTHS:
        boxes = []
        for a in names:
            right, up = (a.ax, -a.ay) if a.showarrow else (a.xshift, a.yshift)
            left = (a.x - x0) / (x1 - x0) * width + right - (6 * len(a.text) if a.xanchor == "right" else 0)
            boxes.append((left, (a.y - y0) / (y1 - y0) * AREA_PX + up, left + 6 * len(a.text)))
        pairs = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i]]
        assert not [1 for a, b in pairs if a[0] < b[2] and b[0] < a[2] and abs(a[1] - b[1]) < 12]


def test_clusters_hold_every_point_once() -> None:
    points = [Point(1.0, y, "replay", 8.0, y, "") for y in (1.0, 1.01, 9.0)] + [Point(1.0, 1.0, "stree", None, 1.0, "")]
    found = clusters(points, lambda x, y: (100 * x, 100 * y))
    assert sorted(len(cluster) for cluster in found) == [1, 1, 2]
    assert sorted(map(str, (point for cluster in found for point in cluster))) == sorted(map(str, points))
