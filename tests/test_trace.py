"""The trace of a sweep: the documented format, lanes that nest, every case with its status, the same file on resume."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from test_bench import CONVENTIONAL
from test_runner import group, runner

from perfkit import ranges
from perfkit.cli import app
from perfkit.errors import InputError
from perfkit.method import Case
from perfkit.ranges import Span, case_name, listened, listening, mark
from perfkit.results import read_manifest
from perfkit.shape import Shape
from perfkit.trace import CASES, LAUNCHES, PHASES, WAITS, Trace
from tests.quickgroup import events_of, quick_device
from tests.sweephelp import FAKE, journal

#: Trace Event Format: what every event has, and what metadata events are called.
COMPLETE = {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}
METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name",
            "thread_sort_index": "sort_index"}  # fmt: skip


def load(path: Path) -> list[dict[str, Any]]:
    """Return the complete events of a file, after a look at everything that the format asks for."""
    document = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    events = document["traceEvents"]
    named: dict[tuple[str, int, int], Any] = {}
    for event in events:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and isinstance(event["args"], dict)
        if event["ph"] == "M":
            value = event["args"][METADATA[event["name"]]]
            key = (event["name"], event["pid"], event["tid"])
            assert isinstance(value, int if "sort" in event["name"] else str) and key not in named
            named[key] = value
        else:
            assert set(event) == COMPLETE and event["name"]
            assert event["ts"] >= 0 and event["dur"] >= 0
    spans = [event for event in events if event["ph"] == "X"]
    for event in spans:
        assert ("process_name", event["pid"], 0) in named and ("thread_name", event["pid"], event["tid"]) in named
    assert len({value for (name, _, _), value in named.items() if name == "process_sort_index"}) == len(
        {pid for _, pid, _ in named}
    )
    for lane in {(event["pid"], event["tid"]) for event in spans}:
        nests([event for event in spans if (event["pid"], event["tid"]) == lane])
    return spans


def nests(events: list[dict[str, Any]]) -> None:
    """Of two complete events of one lane one holds the other, or they do not meet; else a viewer drops one."""
    open_until: list[float] = []
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        end = event["ts"] + event["dur"]
        while open_until and open_until[-1] <= event["ts"] + 0.002:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 0.002, f"{event['name']} overlaps another"
        open_until.append(end)


def lane(events: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    return [event for event in events if event["tid"] == number]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def use(**settings: Any) -> None:
        monkeypatch.setenv("PERFKIT_FAKE", json.dumps(FAKE | settings))

    monkeypatch.setenv("PERFKIT_WORKER_MODE", "fake")
    monkeypatch.setattr("perfkit.cli.sweep_run._report", lambda run_dir: None)
    monkeypatch.chdir(tmp_path)
    use()
    return use


POINTS = ("--model", "nemotron-super", "--batch", "1,4", "--window", "8")


def test_a_sweep_with_a_crash_reads_by_itself_and_goes_on_where_it_is_resumed(fake: Any, capsys: Any) -> None:
    fake(faults={"replay": "crash"})
    assert app.run(["sweep", *POINTS, "--trace", "--out", "run"]) == 3
    assert "trace run/trace.json in ui.perfetto.dev" in capsys.readouterr()[0]
    assert read_manifest("run")["trace"] is True
    spans = load(Path("run/trace.json"))
    parent = spans[0]["pid"]
    assert spans[0]["name"] == "plan"

    cases = [event for event in spans if event["tid"] >= CASES]
    kept = {event["args"]["case_id"]: event["args"]["status"] for event in cases if event["args"]["kept"]}
    assert kept == {record["case_id"]: record["status"] for record in journal(Path("run"))}
    assert {event["args"]["method"] for event in cases} == {"conventional", "replay"}
    crashed = [event["args"] for event in cases if event["args"]["status"] == "crashed"]
    assert [(args["reason"], args["phase"]) for args in crashed] == [("SIGKILL", "time")] * 2
    assert all(event["args"]["time_us"] > 0 for event in cases if event["args"]["status"] == "ok")

    waits = [event["name"] for event in lane(spans, WAITS) if event["pid"] == parent]
    assert waits.count("wait/worker") == 3  # the first, and one for each crash
    groups = [event for event in lane(spans, PHASES) if event["name"].startswith("group/") and event["pid"] == parent]
    assert [len(event["args"].get("again_without", ())) for event in groups] == [0, 1, 0, 1]
    workers = {event["pid"] for event in spans} - {parent}
    assert len(workers) == 3
    checks = [event for event in lane(spans, PHASES) if event["name"] == "check/conventional/decode/B4-T1"]
    assert len(checks) == 2 and {event["pid"] for event in checks} < workers
    assert {"results", "report"} <= {event["name"] for event in lane(spans, PHASES)}

    fake()
    before = Path("run/trace.json").read_bytes()
    assert app.run(["sweep", "--resume", "run"]) == 3  # the faults are the manifest's
    assert before[:-80] != Path("run/trace.json").read_bytes()[: len(before) - 80]
    again = load(Path("run/trace.json"))
    assert again[: len(spans)] == spans
    assert min(event["ts"] for event in again[len(spans) :]) > max(event["ts"] + event["dur"] for event in spans)
    assert len({event["pid"] for event in again}) > len(workers) + 1


def test_a_run_that_is_stopped_leaves_its_trace(fake: Any) -> None:
    assert app.run(["sweep", *POINTS, "--trace", "--max-time", "0.01", "--out", "run"]) == 124
    spans = load(Path("run/trace.json"))
    assert [event["name"] for event in spans[:2]] == ["plan", "wait/worker"]
    assert not [event for event in spans if event["tid"] >= CASES]


def test_without_trace_there_is_none_and_the_hash_is_the_same(fake: Any) -> None:
    args = ("--model", "nemotron-super", "--batch", "1", "--method", "conventional")
    assert app.run(["sweep", *args, "--out", "plain"]) == 0
    assert not Path("plain/trace.json").exists()
    assert app.run(["sweep", *args, "--trace", "--out", "traced"]) == 0
    assert read_manifest("plain")["hash"] == read_manifest("traced")["hash"]
    assert app.run(["sweep", "--resume", "plain", "--trace"]) == 2


def test_a_trace_that_cannot_be_kept_costs_a_note_and_nothing_else(fake: Any, tmp_path: Path, capsys: Any) -> None:
    args = ("--model", "nemotron-super", "--batch", "1", "--method", "conventional", "--trace", "--out", "run")
    assert app.run(["sweep", *args]) == 0
    (tmp_path / "run" / "trace.json").write_text('{"traceEvents": 3}')
    assert app.run(["sweep", "--resume", "run"]) == 0
    assert "no trace: run/trace.json: is not a trace of this run; move it away" in capsys.readouterr()[1]


def test_a_worker_tells_phases_samples_and_the_launches_of_one_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case, device, trace = CONVENTIONAL, quick_device(monkeypatch), Trace()
    events = events_of(device, tmp_path, case, trace=True)
    for event in events:
        if event["event"] == "span":
            trace.worker(7, Span(event["name"], event["start_ns"], event["end_ns"], event["args"]))
    trace.save(tmp_path / "trace.json")
    spans = load(tmp_path / "trace.json")
    (launch,) = lane(spans, LAUNCHES)
    assert launch["name"] == "launch/_conventional_decode_kernel"
    assert launch["args"]["grid"] == [1] and launch["args"]["D_V"] == 16 and launch["args"]["num_warps"] > 0
    name = case_name(case)
    counts = {one: sum(event["name"] == one for event in spans) for one in {event["name"] for event in spans}}
    assert counts == {
        "group/g": 1, f"case/{name}": 2, f"tune/{name}": 1, f"check/{name}": 1, f"capture/{name}": 1,
        "warm-up": 1, f"warm-up/{name}": 1, f"warm-up/{name}-again": 1,
        "timing": 1, f"sample/{name}": 2, f"sample/{name}-again": 2, f"confirm/{name}": 1,
        f"beside/{name}": 1, "launch/_conventional_decode_kernel": 1,
    }  # fmt: skip
    assert not [event for event in events_of(device, tmp_path, case) if event["event"] == "span"]


def test_good_results_that_come_again_are_told_apart(tmp_path: Path) -> None:
    trace, point = Trace(), group("ok", "crash", "ok")
    run = runner(tmp_path)
    run._trace = trace
    with run:
        run.run_group(point)
    trace.save(tmp_path / "trace.json")
    cases = [event for event in load(tmp_path / "trace.json") if event["tid"] >= CASES]
    assert [(event["tid"] - CASES, event["args"]["status"], event["args"]["kept"]) for event in cases] == [
        (0, "ok", False), (1, "crashed", True), (0, "ok", True), (2, "ok", True)]  # fmt: skip
    assert [event["name"] for event in cases[:2]] == ["B1 L1 conventional", "B1 L2 conventional"]


def test_process_ids_that_come_again_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for _ in range(3):
        trace, now = Trace(), time.monotonic_ns()
        trace.parent(Span("plan", now, now + 20))
        trace.worker(9, Span("group/x", now, now + 20, {"bad": float("nan"), "where": Path("x")}))
        trace.save(path)
    spans = load(path)
    assert len(spans) == len({event["pid"] for event in spans}) == 6
    assert spans[1]["args"] == {"bad": None, "where": "x"}


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"traceEvents": []}', '{"traceEvents": [1], "otherData": {"epoch_ns": 1}}']
)
def test_another_file_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(InputError):
        Trace().save(path)
    assert path.read_text() == text


def test_ranges_are_nvtx_too_and_end_where_something_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Nvtx:
        def annotate(self, message: str, domain: str) -> Any:
            seen.append((message, domain))
            return torch.no_grad()

    monkeypatch.setattr(ranges, "_nvtx", lambda: Nvtx())
    spans: list[Span] = []
    assert not listened()
    with listening(spans.append):
        assert listened()
        with mark("timing"), pytest.raises(ValueError), mark("sample/x", n=3):
            raise ValueError
    with mark("plan"):
        pass
    assert seen == [("timing", "perfkit"), ("sample/x", "perfkit"), ("plan", "perfkit")]
    assert [(span.name, dict(span.args)) for span in spans] == [("sample/x", {"n": 3}), ("timing", {})]
    inner, outer = spans
    assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns


def test_without_the_nvtx_package_it_says_so_once(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    ranges._nvtx.cache_clear()
    monkeypatch.setitem(sys.modules, "nvtx", None)
    try:
        for _ in range(2):
            with mark("plan"):
                pass
    finally:
        ranges._nvtx.cache_clear()
    assert [record.message for record in caplog.records] == [
        "nvtx is not installed: ranges are not marked (pip install nvtx)"
    ]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "replay/decode/B256-L16-T1"),
        ({"method": "conventional", "window": None}, "conventional/decode/B256-T1"),
        ({"draft_len": 4, "acceptance": "T"}, "replay/verify/B256-L16-T4-aT"),
        ({"draft_len": 3, "tree": "0,0", "acceptance": "1"}, "replay/verify/B256-L16-tree3-a1"),
        ({"method": "/home/me/mine.py:METHOD"}, "mine.py:METHOD/decode/B256-L16-T1"),
        ({"flush_phase": "staggered", "state_dtype": "float16", "options": (("alias", "A"),)},
         "replay/decode/B256-L16-T1-staggered-float16-A"),
    ],
)  # fmt: skip
def test_names_of_cases(changes: dict[str, Any], name: str) -> None:
    given = {"method": "replay", "batch": 256, "window": 16} | changes
    assert case_name(Case(Shape("mamba2", 4, 1, 16, 16), **given)) == name


def test_every_range_of_the_package_is_of_the_scheme(root: Path) -> None:
    """The first word of each range is one that :mod:`perfkit.ranges` lists."""
    known = set(re.findall(r"``([a-z-]+)[/`]", str(ranges.__doc__)))
    used: set[str] = set()
    for file in (root / "perfkit").rglob("*.py"):
        if file.name != "ranges.py":
            used |= set(re.findall(r"\bmark\(f?\"([a-z-]+)", file.read_text()))
    assert {"plan", "wait", "group", "case", "tune", "check", "capture", "warm-up", "timing", "sample"} <= used
    assert used <= known


def test_lanes_that_overlap_are_caught() -> None:
    events = [{"name": name, "ts": ts, "dur": dur} for name, ts, dur in (("a", 0, 10), ("b", 2, 3), ("c", 5, 5))]
    nests(events)
    with pytest.raises(AssertionError, match="c overlaps"):
        nests([*events[:2], {"name": "c", "ts": 4, "dur": 5}])
