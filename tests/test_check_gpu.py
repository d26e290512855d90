"""Kernels on a GPU: every configuration, BF16 inputs, CUDA graphs, large grids and offsets. A child process each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfkit.registry import methods

VERIFY = [(method.family, method.key) for method in methods(phase="verify")]
SCRIPT = Path(__file__).with_name("gpu_checks.py")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]


def probe(name: str, *arguments: str) -> list[dict[str, Any]]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), name, *arguments], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    assert found
    return found


def wrong(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in found if item["status"] != "ok"]


def test_every_sample_in_every_configuration() -> None:
    found = probe("cases")
    assert wrong(found) == []
    assert {item["checked"] for item in found} == {"gpu"}
    assert {item["method"] for item in found} == {"conventional", "replay"}
    assert {item["input_dtype"] for item in found} == {"float32", "float16", "bfloat16"}
    assert all(0 <= item["rel_error"] < 2e-6 for item in found)


@pytest.mark.parametrize(("family", "method"), VERIFY)
def test_every_verify_sample(family: str, method: str) -> None:
    found = probe("verify_cases", family, method)
    assert wrong(found) == []
    assert {item["checked"] for item in found} == {"gpu"}
    assert {item["input_dtype"] for item in found} == {"float32", "float16", "bfloat16"}
    assert all(0 <= item["rel_error"] < 2e-6 for item in found)


@pytest.mark.parametrize(("family", "method"), VERIFY)
def test_one_graph_takes_the_acceptance_of_each_step(family: str, method: str) -> None:
    assert wrong(probe("verify_graphs", family, method)) == []


def test_one_graph_serves_desynchronized_rows() -> None:
    found = probe("graphs")
    assert wrong(found) == []
    started = [item["detail"] for item in found if item["case"].startswith("replay") and "_replayed" in item["case"]]
    assert started and all(len(set(h)) > 1 for h in started)


def test_more_programs_than_65535() -> None:
    found = probe("programs")
    assert wrong(found) == []
    assert all(item["programs"] > 65535 for item in found)


def test_state_offsets_past_two_billion_elements() -> None:
    found = probe("offsets")
    if found[0]["status"] == "skipped":
        pytest.skip(found[0]["detail"])
    assert wrong(found) == []
    assert all(max(item["detail"]) >= 2**31 > min(item["detail"]) for item in found)


def test_faults_are_found() -> None:
    found = {item["case"]: item for item in probe("planted")}
    assert found.pop("RIGHT")["status"] == "ok"
    assert [name for name, item in found.items() if item["status"] != "incorrect"] == []
    for name, buffer in (("DEAF_X", "x_ring"), ("DEAF_K", "k_ring"), ("DEAF_DT", "dt_ring"), ("DEAF_STATE", "state")):
        assert found[name]["detail"] == f"outputs do not change when {buffer} is perturbed"
    assert "did not write its checkpoint" in found["FLUSHES_LATE"]["detail"]


def test_faults_of_verify_steps_are_found() -> None:
    found = probe("planted_verify")
    right = [item for item in found if item["case"] == "RIGHT"]
    assert len(right) == 2 and wrong(right) == []
    missed = [item for item in found if item["case"] != "RIGHT" and
              (item["status"] != "incorrect" or item["finding"] not in item["detail"])]  # fmt: skip
    assert missed == []


def test_softplus() -> None:
    """The GPU's exponential multiplies by log2 e first: its relative error grows with |x|."""
    errors = {item["case"]: item["detail"] for item in probe("gates")}
    assert errors["softplus from 0"] <= 5e-7
    assert errors["softplus from -10"] <= 1.5e-6
    assert errors["softplus from -20"] <= 3e-6
