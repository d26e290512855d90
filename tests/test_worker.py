"""The worker process: its stream of events, its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfkit import worker
from perfkit.child import Child, worker_env
from perfkit.method import Case
from perfkit.shape import Shape

STUB = Path(__file__).with_name("stub_worker.py")
SHAPE = Shape("mamba2", 4, 1, 16, 16)


def case(do: str = "ok", batch: int = 1, window: int | None = None) -> Case:
    return Case(shape=SHAPE, method="conventional", batch=batch, window=window, options=(("do", do),))


@pytest.fixture
def child(tmp_path: Path):
    child = Child([sys.executable, str(STUB)], worker_env("fake"))
    child.wait_ready(60)
    yield child
    child.kill()


def ask(child: Child, request: dict) -> list[dict]:
    child.send(request)
    events = []
    while not events or events[-1]["event"] not in ("done", "error"):
        event = child.next_event(30)
        assert event is not None
        events.append(event)
    return events


def group(tmp_path: Path, *cases: Case) -> dict:
    return {"op": "group", "group_id": "g", "cases": [item.to_dict() for item in cases],
            "settings": {"dir": str(tmp_path)}}  # fmt: skip


def test_ready_names_the_process(child: Child):
    assert child.info["mode"] == "fake"
    assert child.info["pid"] == child.pid
    assert child.info["triton"]


def test_one_result_per_case_then_done(child: Child, tmp_path: Path):
    first, second = case(batch=1), case(batch=2)
    events = ask(child, group(tmp_path, first, second))
    assert [e["event"] for e in events] == ["phase", "result", "phase", "result", "done"]
    assert [e["case_id"] for e in events if e["event"] == "result"] == [first.id, second.id]
    assert events[-1] == {"event": "done", "group_id": "g", "fatal": False}


def test_prints_do_not_reach_the_stream(child: Child, tmp_path: Path):
    events = ask(child, group(tmp_path, case("print")))
    assert [e["event"] for e in events] == ["phase", "result", "done"]


@pytest.mark.parametrize(
    ("do", "status", "reason"),
    [("oom", "oom", "MemoryError: needs 190 GB, 138 GB free"), ("error", "error", "ValueError: two lines")],
)
def test_exceptions_become_results_of_the_case_in_flight(child: Child, tmp_path: Path, do, status, reason):
    bad = case(do, batch=3)
    events = ask(child, group(tmp_path, case(), bad, case(batch=9)))
    results = {e["case_id"]: e for e in events if e["event"] == "result"}
    assert (results[bad.id]["status"], results[bad.id]["reason"]) == (status, reason)
    assert case(batch=9).id not in results
    assert events[-1]["fatal"] is False
    assert ask(child, group(tmp_path, case(batch=9)))[-2]["status"] == "ok"  # it goes on


def test_nothing_follows_a_poisoned_context(child: Child, tmp_path: Path):
    bad = case("poison")
    events = ask(child, group(tmp_path, bad, case(batch=9)))
    assert [e["event"] for e in events] == ["phase", "result", "done"]
    assert events[-1]["fatal"] is True


@pytest.mark.parametrize(
    "request_",
    [[], {"op": "dance"}, {"op": "group"}, {"op": "group", "cases": "x"}, {"op": "group", "cases": [{"shape": 1}]},
     {"op": "group", "cases": [{"colour": "red"}]}],
)  # fmt: skip
def test_what_is_no_request_is_answered(child: Child, request_):
    assert ask(child, request_)[-1]["event"] == "error"
    assert child.alive


def test_a_line_that_is_not_json_is_answered(child: Child):
    child._process.stdin.write("{oops\n")
    child._process.stdin.flush()
    event = child.next_event(30)
    assert event["event"] == "error"
    assert event["reason"].startswith("not JSON")


def test_quit_ends_it_with_code_zero(child: Child):
    child.send({"op": "quit"})
    assert child._process.wait(30) == 0


def test_dies_when_stdin_closes_even_while_a_case_hangs(child: Child, tmp_path: Path):
    child.send(group(tmp_path, case("hang")))
    assert child.next_event(30)["event"] == "phase"
    child._process.stdin.close()
    child._process.wait(10)


def test_dies_with_a_parent_that_is_killed(tmp_path: Path):
    parent = subprocess.Popen(
        [sys.executable, "-c",
         "import sys, time; from perfkit.child import Child, worker_env;"
         f"c = Child([sys.executable, {str(STUB)!r}], worker_env('fake')); c.wait_ready(60);"
         "print(c.pid, flush=True); time.sleep(600)"],
        stdout=subprocess.PIPE, text=True, env=worker_env("fake"),
    )  # fmt: skip
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 10
    while _runs(pid):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_numbers_that_json_lacks_become_null():
    assert json.loads(json.dumps(worker.finite({"a": float("nan"), "b": [float("inf"), 1.5]}))) == {
        "a": None, "b": [None, 1.5]}  # fmt: skip


def test_environment_of_each_mode(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert worker_env("interpret")["TRITON_INTERPRET"] == "1"
    assert "TRITON_INTERPRET" not in worker_env("cuda")
    assert worker_env("cuda", "GPU-1a2b")["CUDA_VISIBLE_DEVICES"] == "GPU-1a2b"
    assert worker_env("interpret")["CUDA_VISIBLE_DEVICES"] == ""
    assert os.environ["TRITON_INTERPRET"] == "1"


def test_modes_are_the_contracts():
    assert set(worker.HANDLERS) == {"cuda", "interpret", "compile", "fake", "roofs"}
    done = subprocess.run([sys.executable, "-m", "perfkit.worker", "--mode", "dance"], capture_output=True, text=True,
                          env=worker_env("fake"))  # fmt: skip
    assert done.returncode == 2
    assert "invalid choice" in done.stderr
