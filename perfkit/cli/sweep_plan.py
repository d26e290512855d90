"""What ``perfkit sweep`` is to run: which GPU, which groups of cases; nothing is made on disk."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfkit.cases import build_groups, case_memory, fit_memory, label, parse_spec
from perfkit.cli.common import print_json, print_table, say
from perfkit.errors import ExitCode, InputError
from perfkit.progress import count, duration
from perfkit.sweep import SETTINGS, Sweep

#: Without a GPU here, and none named, times are predicted for this one.
DEFAULT_GPU = "h200"
#: Set to ``fake`` by tests: the sweep then times the simulated GPU of :mod:`perfkit.fake`, with the settings (JSON) of
#: the second variable.
WORKER_MODE, FAKE_SETTINGS = "PERFKIT_WORKER_MODE", "PERFKIT_FAKE"
#: Rough cost of a case on a GPU (compile, check, tune, time), in seconds; only for the estimate of --dry-run.
CASE_S = 8.0
CHECK_S = 4.0


def usable_gpu() -> tuple[dict[str, Any] | None, list[str]]:
    """Return this machine's GPU, None without one, and notes about it.

    The facts are those that a manifest holds, with the ``key`` of its profile. Notes are for stderr once nothing can be
    bad input any more: that is one line alone.
    """
    from perfkit import device
    from perfkit.profiles import find_gpu

    found = device.usable_gpu()
    if found is None:
        return None, []
    facts = found.to_dict()
    notes = []
    others = found.foreign()
    if others:
        notes.append(f"other processes use this GPU ({', '.join(map(str, others))}): times may suffer")
    profile = None if found.is_mig else find_gpu(found.name, found.memory_total_mib)
    if found.is_mig:
        notes.append(f"{found.name} is a MIG instance of {found.uuid}, a part of a GPU: it is timed, without roofs and "
                     "predictions")  # fmt: skip
    elif profile is None:
        notes.append(f"no profile for {found.name}: it is timed, without roofs and predictions")
    return {"key": profile.key if profile is not None else None, **facts}, notes


def choose_gpu(gpu: str) -> tuple[str, str, dict[str, Any], list[str]]:
    """Return the mode, the worker's mode, the GPU's facts for ``--gpu``, and notes for stderr.

    Raises:
        InputError: a GPU that no profile knows.
    """
    from perfkit.profiles import load_gpu

    wanted = load_gpu(gpu) if gpu != "auto" else None
    if os.environ.get(WORKER_MODE) == "fake":
        from perfkit import fake

        profile = wanted or load_gpu(DEFAULT_GPU)
        return "measure", "fake", {"key": profile.key, "name": fake.NAME, "uuid": fake.UUID, "driver": "fake"}, []
    here, notes = usable_gpu()
    if here is not None and (wanted is None or wanted.key == here["key"]):
        return "measure", "cuda", here, notes
    profile = wanted or load_gpu(DEFAULT_GPU)
    if wanted is None:
        note = f"no usable GPU here (perfkit doctor says why): predicting for {profile.name}; --gpu KEY for another"
    else:
        what = f"this machine has {here['name']}" if here is not None else "there is no usable GPU here"
        note = f"{what}: predicting for {profile.name}"
    return "predict", "interpret", {"key": profile.key, "name": profile.name}, [note]


def check_gpu(plan: Sweep, run_dir: Path, done: str) -> list[str]:
    """Return what there is to say of this machine's GPU, on which a run is to go on; [] if it needs none.

    Args:
        plan: of the run.
        run_dir: its folder.
        done: what was done there, for the message: measured, counted.

    Raises:
        InputError: a GPU other than the one that the run began on.
    """
    if plan.worker_mode != "cuda":
        return []
    here, notes = usable_gpu()
    if here is None or here.get("uuid") != plan.gpu.get("uuid"):
        raise InputError(f"was {done} on {plan.gpu.get('uuid')}; here is {here and here.get('uuid')}",
                         file=run_dir / "manifest.json", field="gpu.uuid")  # fmt: skip
    return notes


def make_sweep(
    model: str | None, gpu: str, *, timeout: float, seed: int, flags: Mapping[str, Any], trace: bool = False
) -> tuple[Sweep, list[str]]:
    """Return the sweep that the flags describe, and notes for stderr; nothing is created on disk.

    Raises:
        InputError: names the flag, the value and what is allowed.
    """
    from perfkit.profiles import load_gpu, load_model
    from perfkit.profiles import to_dict as profile_dict

    if model is None:
        raise InputError("is missing", field="--model", allowed="a key of `perfkit list models`, or a config.json")
    profile = load_model(model)
    spec = parse_spec(**flags, model_state_dtype=profile.state_dtype)
    groups = build_groups(profile.shape, spec)
    mode, worker_mode, facts, notes = choose_gpu(gpu)
    if mode == "predict":  # a GPU that is here says itself what does not fit
        groups = fit_memory(groups, load_gpu(facts["key"]))
    settings = {**SETTINGS, "seed": seed, "self_check": spec.self_check}
    if worker_mode == "fake":
        from perfkit import fake

        settings |= fake.parse_settings(os.environ.get(FAKE_SETTINGS, ""), settings)
    plan = Sweep(mode, worker_mode, profile_dict(profile), facts, tuple(groups), settings, timeout, trace)  # type: ignore[arg-type]
    return plan, notes


def show_plan(plan: Sweep, notes: Sequence[str], *, as_json: bool) -> int:
    """Print what would run: groups, cases, memory and a rough time."""
    from perfkit.predict import checked_case

    for note in notes:
        say(note)
    groups: list[dict[str, Any]] = [
        {
            "group_id": group.group_id,
            "cases": [
                {"case_id": case.id, "case": label(case), "memory_bytes": case_memory(case)} for case in group.cases
            ],
            "skipped": [{"case_id": case.id, "case": label(case), "reason": reason} for case, reason in group.skipped],
        }
        for group in plan.groups
    ]
    cases = [case for group in groups for case in group["cases"]]
    checks = {checked_case(case) for group in plan.groups for case in group.cases}
    seconds = len(cases) * CASE_S if plan.mode == "measure" else len(checks) * CHECK_S
    skipped = sum(len(group["skipped"]) for group in groups)
    if as_json:
        print_json({"mode": plan.mode, "model": plan.model["key"], "gpu": plan.gpu, "n_groups": len(groups),
                    "n_cases": len(cases), "n_skipped": skipped, "estimate_s": seconds, "groups": groups})  # fmt: skip
        return ExitCode.OK
    rows = [[g["group_id"], c["case"], f"{c['memory_bytes'] / 1e9:.3f}", ""] for g in groups for c in g["cases"]]
    rows += [[g["group_id"], c["case"], "-", f"skipped: {c['reason']}"] for g in groups for c in g["skipped"]]
    print_table(["group", "case", "GB", "note"], rows)
    verb = "measure on" if plan.mode == "measure" else "predict for"
    print(f"{count(len(cases), 'case')} in {count(len(groups), 'group')}, {skipped} skipped: "
          f"{verb} {plan.gpu.get('name')}, about {duration(seconds)}")  # fmt: skip
    return ExitCode.OK
