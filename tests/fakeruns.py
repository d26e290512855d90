"""Run folders of the simulated GPU, made in this process: what a sweep leaves, without its worker and its report."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

from perfkit import fake, results
from perfkit.cli.sweep_plan import make_sweep
from perfkit.sweep import Recorder, finish

FLAGS = {"preset": "default", "method": None, "batch": "64,256", "window": "8,16", "draft": None, "accepted": None,
         "tree": (), "flush_phase": None, "input_dtype": None, "state_dtype": None, "layers": None,
         "self_check": False}  # fmt: skip
#: Samples as an H200 gives them: about 0.1 % of noise.
QUIET = {"noise": 0.001}


def fake_run(folder: Path, *, seed: int = 0, flags: dict[str, Any] | None = None, drop: tuple[str, ...] = (),
             **settings: Any) -> Path:  # fmt: skip
    """Write the run folder of a sweep that found these settings; ``drop`` names methods that it did not get to."""
    # Nobody pulls the plug of a test.
    with mock.patch("os.fsync"):
        return _fake_run(folder, seed, FLAGS | (flags or {}), drop, {"fake": QUIET} | settings)


def _fake_run(folder: Path, seed: int, flags: dict[str, Any], drop: tuple[str, ...], settings: dict[str, Any]) -> Path:
    environment = {"PERFKIT_WORKER_MODE": "fake", "PERFKIT_FAKE": json.dumps(settings)}
    with mock.patch.dict(os.environ, environment):
        plan, _ = make_sweep("nemotron-super", "auto", timeout=300.0, seed=seed, flags=flags)
    folder.mkdir()
    results.write_manifest(folder, plan.manifest(["perfkit", "sweep"]))
    recorder = Recorder(plan, folder)
    for group in plan.groups:
        cases = [case for case in group.cases if case.method not in drop]
        events: list[dict[str, Any]] = []
        request = {"group_id": group.group_id, "cases": [case.to_dict() for case in cases], "settings": plan.settings}
        fake.run_group(request, events.append)
        found = {event["case_id"]: event for event in events if event["event"] == "result"}
        records = [found[case.id] | {"started": None, "ended": None} for case in cases]
        recorder.group(type(group)(group.group_id, tuple(cases)), records)  # type: ignore[arg-type]
    finish(plan, folder)
    return folder
