"""The last lines of a sweep of verify steps: a line a point, a table of methods, what is compared with what."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit import cases, derive, lastlines, registry, results, summary
from perfkit.profiles import load_gpu
from perfkit.roofline import roofs_for
from perfkit.shape import Shape
from perfkit.verify_table import verify_table
from tests.test_derive_verify import FusedRecovery, Replay, Snapshot

SUPER = Shape("mamba2", 128, 8, 64, 128)
H200 = load_gpu("h200")
ROOFS = roofs_for(H200)
FACTS = {"key": "h200-sxm", "name": "NVIDIA H200", "uuid": "GPU-1a2b3c4d-0000", "driver": "580.159"}
#: Microseconds at B = 256 by T and acceptance: snapshot, fused_recovery, replay.
TIMES = {"T2 a1": (812, 1010, 341), "T2 aT": (813, 980, 360), "T4 a1": (1380, 1150, 338), "T4 a3": (1381, 1290, 380),
         "T4 aT": (1379, 1130, 400)}  # fmt: skip


@pytest.fixture(autouse=True)
def stubs(monkeypatch: pytest.MonkeyPatch):
    known = [*registry.methods("mamba2", "decode"), Snapshot(), FusedRecovery(), Replay()]
    monkeypatch.setattr(registry, "_all_methods", lambda: tuple(known))
    fits = derive.efficiency_for

    def fitted(family: str, method: str, phase: str, *args: Any) -> Any:
        return fits(family, method, phase, *args) if phase == "decode" else None

    # Stand-ins have the names of kernels that were timed, and nothing else of them.
    monkeypatch.setattr(derive, "efficiency_for", fitted)
    monkeypatch.setattr("perfkit.roofline.efficiency_for", fitted)


def made(source: str = "measured", spec: dict | None = None, scale: float = 1.0, **columns) -> tuple[list[dict], dict]:
    axes = cases.parse_spec(**({"batch": "256", "window": "16", "draft": "2,4"} | (spec or {})))
    groups = cases.build_groups(SUPER, axes)
    table = {case.id: case for group in groups for case in group.cases}
    rows = []
    for case in table.values():
        words = " ".join(cases.draft_words(case.draft_len, case.acceptance, case.tree))
        time = 531.0 if not words else float(TIMES[words][("snapshot", "fused_recovery", "replay").index(case.method)])
        time = (time + (case.window or 16) - 16) * case.batch / 256 * scale
        more = {"time_us": time, "time_us_lo": time * 0.998, "time_us_hi": time * 1.002, "n_throttled": 0} | columns
        rows.append(results.make_row(case, model="m", gpu="h200-sxm", source=source, status="ok", **more))
    return derive.derive(rows, table, H200, ROOFS), table


def text(rows: list[dict], table: dict) -> list[str]:
    return lastlines.lines(summary.summarize(rows, table, H200, ROOFS), FACTS, ROOFS, tuned=True)


def test_the_lines_of_a_verify_sweep():
    lines = text(*made())
    assert [line.split(" us ")[0] for line in lines[:5]] == [
        "B256 T2 a1 L16 replay   341", "B256 T2 aT L16 replay   360", "B256 T4 a1 L16 replay   338",
        "B256 T4 a3 L16 replay   380", "B256 T4 aT L16 replay   400"]  # fmt: skip
    assert "[337,339]  4.08x " in lines[2] and lines[2].endswith("0.64 conventional steps")
    assert lines[5:9] == [
        "measured us, B=256  T2 a1  T2 aT  T4 a1  T4 a3  T4 aT",
        "snapshot              812    813   1380   1381   1379",
        "fused_recovery       1010    980   1150   1290   1130",
        "replay                341    360    338    380    400",
    ]
    assert lines[9].split()[:5] == ["best", "L", "exact", "model", lines[9].split()[4]]
    assert lines[10].startswith("best L Eq. 16        12.8   18.2   12.7     22   25.4")
    assert lines[11] == "16/16 ok; 0 samples throttled; A/A floor unknown"
    assert lines[13] == "control   tuned snapshot 812 us at B=256 T2 a1; one conventional step 531 us"
    assert not any(line.startswith(("best L    ", "break-even")) for line in lines)


def test_the_shipped_preset_stays_short():
    rows, table = made(spec={"draft": "2,4", "preset": "verify", "batch": None, "window": None})
    assert len(text(rows, table)) <= 17


def test_windows_that_were_run_and_those_of_the_model():
    rows, table = made(spec={"window": "8,16,32"})
    found = verify_table(rows, table, H200, ROOFS)
    assert found is not None
    assert found["times"]["replay"] == [333, 352, 330, 372, 392]  # the stand-in is fastest at its smallest window
    assert found["windows"]["run"] == [8] * 5
    assert found["windows"]["eq16"][3] == pytest.approx(21.97, abs=0.01)
    # The stand-in's bytes: sqrt(2 a (100,000 / 100 - T)) is 45 at a = 1 and 89 at a = 4.
    assert all(30 < window <= 128 for window in found["windows"]["model"])
    assert any(line.startswith("best L measured         8      8") for line in text(rows, table))


def test_a_bound_is_never_the_best_of_times():
    rows, table = made("predicted", checked="interpreter")
    group = [row for row in rows if row["draft_len"] == 4 and row["acceptance"] == "T"]
    for row in group:  # a fit of fused recovery alone
        fitted = row["method"] == "fused_recovery"
        row |= {"predicted_us": row["time_us"], "predicted_lo": row["time_us"] * (0.95 if fitted else 1)}
    (best,) = summary.best_rows(group)
    assert best["method"] == "fused_recovery"
    assert "a bound" not in lastlines.result_line(best) and "a bound" in lastlines.result_line(group[2])
    found = verify_table(group, table, H200, ROOFS)
    assert found is not None and found["bounds"] == {"snapshot": True, "fused_recovery": False, "replay": True}
    assert lastlines.table_lines(found)[1].split()[:3] == ["snapshot", "(bound)", "~1379"]


def test_recorded_rows_take_the_place_of_predicted_ones():
    predicted, table = made("predicted", scale=0.9)
    recorded, _ = made("recorded")
    lines = text(predicted + recorded, table)
    assert lines[0] == "recorded:" and lines[3].startswith("B256 T4 a1 L16 replay   338 us")
    assert lines[6].startswith("recorded us, B=256  T2 a1")
    assert "control   tuned snapshot ~731 us at B=256 T2 a1; recorded 812 us" in lines
    only = [row for row in recorded if row["phase"] == "decode"]
    lines = text(predicted + only, table)
    assert lines[0].startswith("B256 T2 a1 L16 replay  ~307 us") and "recorded 531" not in " ".join(lines)
    assert "recorded:" not in lines  # it is the unit, not a result
    assert "RECORDED  1 shipped row of this model and GPU stands beside them" in lines


def test_break_even_names_its_point():
    rows, table = made(spec={"batch": "1,256", "draft": "4", "accepted": "T"})
    for row in rows:
        if row["batch"] == 1 and row["method"] != "snapshot":
            row |= {"speedup": 0.5}
    assert text(rows, table)[-1].startswith("break-even batch ") and text(rows, table)[-1].endswith(" at T4 aT")


def test_decode_beside_verify_keeps_its_lines():
    rows, table = made(spec={"draft": "2", "accepted": "T"})
    decode = cases.build_groups(SUPER, cases.parse_spec(batch="256", window="8,16"))
    more = {case.id: case for case in decode[0].cases}
    both = [row for row in rows if row["phase"] == "verify"] + [
        results.make_row(case, model="m", gpu="h200-sxm", source="measured", status="ok", time_us=time)
        for case, time in zip(more.values(), (531.0, 308.0, 291.0), strict=True)]  # fmt: skip
    lines = text(derive.derive(both, table | more, H200, ROOFS), table | more)
    assert [line.split(" us")[0].split()[-1] for line in lines[:2]] == ["360", "291"]
    assert any(line.startswith("measured us, B=256  T2 aT") for line in lines)


def test_trees_of_as_many_nodes_are_told_apart():
    rows, table = made(spec={"draft": "4", "accepted": "T"})
    names = []
    for tree in ("0,0,0", "0,1,1", None):
        names.append(next(row for row in rows if row["method"] == "snapshot") | {"tree": tree, "group_id": str(tree)})
    found = verify_table(names, table, None, None)
    assert found is not None and found["points"] == ["T4 aT", "tree4#1 aT", "tree4#2 aT"]


def test_bounds_are_not_counted_among_the_models_errors():
    rows, table = made(spec={"draft": "4", "accepted": "T"})
    found = summary.model_errors(rows)
    assert found is not None and (found["n"], found["n_bounds"]) == (1, 3)  # conventional has a fit
    assert found["worst_case"] == rows[0]["case_id"]
    line = next(line for line in text(rows, table) if line.startswith("model"))
    assert "; without a fit the bound from bytes, in the median " in line
    alone = summary.model_errors(rows[1:])
    assert alone is not None and (alone["n"], alone["median"]) == (0, None)
    lines = lastlines.lines(summary.summarize(rows[1:], table, H200, ROOFS), FACTS, ROOFS)
    assert any(line.startswith("model     without a fit the bound") for line in lines)
    assert summary.model_errors([row | {"prediction_error": None} for row in rows]) is None
