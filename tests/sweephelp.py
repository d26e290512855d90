"""Sweeps of the simulated GPU for tests, in this process or in one of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SMALL = ("--model", "nemotron-super", "--batch", "1,256", "--window", "8,16")
FAKE = {"max_samples": 20, "min_samples": 5}


def environment(**settings) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return env | {"PERFKIT_WORKER_MODE": "fake", "PERFKIT_FAKE": json.dumps(FAKE | settings), "PYTHONPATH": str(ROOT)}


def start(*args: str, **settings) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "perfkit", "sweep", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(**settings), stdin=subprocess.DEVNULL,
    )  # fmt: skip


def wait_for(run: Path, records: int, process: subprocess.Popen) -> None:
    """Wait until the journal has some records."""
    deadline = time.monotonic() + 60
    while len(journal(run)) < records:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def half_a_run(run: Path, number: signal.Signals, *args: str, records: int = 2) -> tuple[int, str, str]:
    """Start a sweep of slow groups, of so many cases each; send it a signal once the first has ended."""
    process = start(*args, "--out", str(run), fake={"sleep_s": 0.4})
    wait_for(run, records, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def journal(run: Path) -> list[dict]:
    path = run / "cases.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    records = []
    for line in lines:
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records
