"""Sweeps of the simulated GPU for tests, in this process or in one of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
