"""Figures: every kind of evidence has its look, axes have units, labels stay apart, and odd frames do no harm."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pandas as pd
import plotly.graph_objects as go
import pytest

from perfkit.reports import figures, theme
from perfkit.reports.figures.base import AREA_PX, LABEL_PX, spread
from perfkit.reports.roofs import known_roofs
from tests.reportdata import frame, rows

ALL = (figures.batch_time, figures.batch_speedup, figures.batch_roof, figures.window_sweep, figures.roofline)
KINDS = ("measured", "predicted", "mixed", "failed", "empty", "one", "sections", "hostile")


@pytest.mark.parametrize("build", ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_of_every_frame(build, kind: str) -> None:
    figure = build(frame(kind))
    assert isinstance(figure, go.Figure)
    words = figure.layout.meta
    assert words["title"] and words["caption"].startswith("How to read it")
    text = figure.to_json()
    assert not re.search(r"\bnan\b|\bNaN\b|\bNone\b|<NA>", text, re.IGNORECASE)
    if figure.data:
        assert figure.layout.xaxis.title.text and figure.layout.yaxis.title.text
    else:
        assert len(figure.layout.annotations) == 1  # says why it is empty


def traces(figure: go.Figure, source: str) -> list:
    return [t for t in figure.data if isinstance(t.meta, dict) and t.meta.get("source") == source]


def test_measured_is_filled_recorded_is_hollow_predicted_is_a_line() -> None:
    figure = figures.batch_time(frame("mixed"))
    measured, recorded, predicted = (traces(figure, s) for s in ("measured", "recorded", "predicted"))
    assert measured and recorded and predicted
    assert all("markers" in t.mode and not t.marker.symbol.endswith("-open") for t in measured)
    assert all("markers" in t.mode and t.marker.symbol.endswith("-open") for t in recorded)
    assert all(t.mode == "lines" for t in predicted)
    assert all(t.error_y.array is not None for t in measured + recorded)
    assert any(t.fill == "toself" for t in figure.data)
    for source, group in (("measured", measured), ("recorded", recorded), ("predicted", predicted)):
        assert all(t.name.endswith(f", {source}") for t in group)


def test_intervals_are_the_rows_own() -> None:
    data = frame().query("status == 'ok'")
    trace = next(t for t in traces(figures.batch_time(data), "measured") if t.name.startswith("conventional"))
    own = data[data["method"].eq("conventional")].sort_values("batch")
    assert list(trace.y) == own["time_us"].tolist()
    assert list(trace.error_y.array) == pytest.approx((own["time_us_hi"] - own["time_us"]).tolist())
    assert list(trace.error_y.arrayminus) == pytest.approx((own["time_us"] - own["time_us_lo"]).tolist())


@pytest.mark.parametrize("build", [figures.batch_time, figures.batch_speedup, figures.batch_roof])
def test_batch_axis_has_powers_of_two(build) -> None:
    axis = build(frame()).layout.xaxis
    assert axis.type == "log" and list(axis.tickvals) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


def test_speedup_has_a_line_at_one() -> None:
    figure = figures.batch_speedup(frame())
    assert any(shape.y0 == shape.y1 == 1 for shape in figure.layout.shapes)
    assert {t.meta["method"] for t in figure.data if isinstance(t.meta, dict)} == {"replay"}


def test_roofs_reach_past_the_points_on_both_sides() -> None:
    data = frame()
    figure = figures.roofline(data)
    points = [x for source in ("measured", "predicted") for t in traces(figure, source) for x in t.x]
    roofs = [t for t in figure.data if isinstance(t.meta, dict) and "roof" in t.meta]
    assert {t.meta["roof"] for t in roofs} == {
        "measured roof of these bytes", "measured reads alone", "datasheet bandwidth", "FP32 peak",
    }  # fmt: skip
    assert min(x for t in roofs for x in t.x) < min(points) / 2
    assert max(x for t in roofs for x in t.x) > 2 * max(points)
    # The roof is data: a faster one in the rows moves the line.
    faster = known_roofs(data.assign(roof_gb_s=data["roof_gb_s"] * 2)).memory[0]
    assert faster == ("measured roof of these bytes", pytest.approx(2 * data["roof_gb_s"].max()))


def test_roofline_values() -> None:
    row = rows(batches=(256,), windows=())[0] | {"flops_model": 1e9, "time_us": 500.0, "intensity": 0.5}
    trace = traces(figures.roofline(pd.DataFrame([row])), "measured")[0]
    assert list(trace.x) == [0.5] and list(trace.y) == pytest.approx([2.0])  # 1e9 FLOP in 500 µs: 2 TFLOP/s


def test_window_sweep_marks_the_three_optima() -> None:
    figure = figures.window_sweep(frame())
    labels = [a.text for a in figure.layout.annotations if a.name == "mark-label"]
    assert labels == ["measured optimum, L = 16", "byte model, L = 32", "Eq. 16, L* = 12.9"]
    assert [round(shape.x0, 2) for shape in figure.layout.shapes] == [16, 32, 12.92]


def test_end_labels_do_not_overlap() -> None:
    figure = figures.batch_speedup(frame())
    low, high = figure.layout.yaxis.range
    heights = sorted(
        (a.y - low) / (high - low) * AREA_PX + a.yshift for a in figure.layout.annotations if a.name == "end-label"
    )
    assert len(heights) == 3
    assert min(b - a for a, b in pairwise(heights)) >= LABEL_PX - 1e-6


def test_spread_moves_as_little_as_needed() -> None:
    assert spread([0, 100], 10) == [0, 100]
    assert spread([50, 50], 10) == [45, 55]
    moved = spread([0, 1, 2, 100], 10)
    assert moved[3] == 100 and [b - a for a, b in pairwise(moved[:3])] == [10, 10]


def test_a_method_keeps_its_colour_and_marker() -> None:
    looks = set()
    for build in ALL:
        for trace in build(frame("mixed")).data:
            if isinstance(trace.meta, dict) and trace.meta.get("method") == "replay":
                looks.add(trace.line.color)
                if trace.meta["source"] == "measured":
                    looks.add(trace.marker.symbol)
    assert looks == {"#0072b2", "circle"}
    assert theme.method_style("my_kernel") == theme.method_style("my_kernel")


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_contrast_with_both_backgrounds_and_markers_differ() -> None:
    styles = list(theme.METHOD_STYLES.values())
    for colours, background in (
        ([s.light for s in styles], theme.BACKGROUND[0]),
        ([s.dark for s in styles], theme.BACKGROUND[1]),
    ):
        for colour in colours:
            a, b = sorted((_luminance(colour), _luminance(background)))
            assert (b + 0.05) / (a + 0.05) >= 3, (colour, background)
        assert len(set(colours)) == len(colours)
    assert len({s.marker for s in styles}) == len(styles)


def test_every_colour_of_a_figure_has_a_dark_twin() -> None:
    twins = theme.dark_twins()
    for build in ALL:
        used = set(re.findall(r'"(#[0-9a-fA-F]{6}|rgba\([^)]*\))"', build(frame("mixed")).to_json()))
        assert used - set(twins) - {"rgba(0,0,0,0)"} == set()


def test_many_windows_draw_best_smallest_and_largest() -> None:
    figure = figures.batch_speedup(frame("predicted"))
    names = [t.name for t in traces(figure, "predicted")]
    assert len(names) == 3 and names[0].startswith("replay L = 4,") and names[-1].startswith("replay L = 64,")


def test_hostile_names_are_escaped() -> None:
    for build in ALL:
        figure = build(frame("hostile"))
        assert "<script" not in figure.to_json() and "<b onmouseover" not in (figure.layout.title.text or "")
        assert all("<b onmouseover" not in (t.name or "") for t in figure.data)


def test_log_axis_ticks_lie_on_the_axis() -> None:
    axis = figures.batch_time(frame()).layout.yaxis
    low, high = axis.range
    assert all(low <= math.log10(tick) <= high for tick in axis.tickvals) and len(axis.tickvals) >= 4


def test_a_figure_without_data_names_a_command_that_adds_it() -> None:
    for name, build in figures.FIGURES:
        drawn = build(frame())
        assert (drawn.layout.meta["add"] is None) == bool(drawn.data) or name == "paper-table", name
        lacking = build(frame("empty").assign(status=[]))
        assert (lacking.data == () and name == "paper-table") or lacking.layout.meta["add"].startswith("perfkit "), name
    hostile = figures.window_sweep(frame("hostile").query("window != 16 and window != 8 and method != 'replay'"))
    assert hostile.layout.meta["add"] == "perfkit sweep --model '<script>alert(1)</script>' --window 8,16,32"


def test_a_command_keeps_the_kind_of_step() -> None:
    verify = pd.DataFrame(rows("measured", windows=(), phase="verify", draft_len=4))
    assert figures.window_sweep(verify).layout.meta["add"].endswith(" --draft 4 --window 8,16,32")
    trees = verify.assign(tree="0,0,1")
    assert figures.window_sweep(trees).layout.meta["add"].endswith(" --tree 0,0,1 --window 8,16,32")
