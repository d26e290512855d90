#!/usr/bin/env python3
"""Fit what kernels reach of their roofs to the shipped rows, and write profiles/measured/efficiency.yaml.

    scripts/fit_efficiency.py [--directory DIR] [--check]

Run it after shipping rows or roofs, then ship the rows again with --rederive, so that their predictions are by the new
fit. With --check nothing is written: exit 1 if the file is not what the rows give.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perfkit import results
from perfkit.derive import observation
from perfkit.errors import PerfkitError
from perfkit.method import Case
from perfkit.profiles import load_gpu, load_measured, load_model, measured_files
from perfkit.profiles.measured import EFFICIENCY, MEASURED
from perfkit.roofline import shipped_roofs
from perfkit.roofline.efficiency import Efficiency, Observation, covered, enough, errors, fit

Row = dict[str, Any]
Key = tuple[str, str, str, str]  # family, method, phase, gpu
HEAD = """\
# What the kernels of a method add to the bound from bytes over measured roofs: perfkit/roofline/efficiency.py.
# Written by scripts/fit_efficiency.py from the rows and roofs named under sources; do not edit. lo and hi are 95 %.
# left_out: errors on each model's rows under a fit to the other models alone, and the share inside that fit's interval.
fits:
"""


def case_of(row: Row) -> Case:
    """Return the case of a shipped row.

    Raises:
        ValueError: the row's case_id is not that of the case that its columns name.
    """
    case = Case(load_model(row["model"]).shape, row["method"], row["batch"], window=row["window"],
                draft_len=row["draft_len"], acceptance=row["acceptance"], flush_phase=row["flush_phase"],
                input_dtype=row["input_dtype"], state_dtype=row["state_dtype"])  # fmt: skip
    if case.id != row["case_id"]:
        raise ValueError(f"row {row['case_id']} is not the case that its columns name")
    return case


def observations(rows: Sequence[Row]) -> dict[Key, list[Observation]]:
    """Return what there is to fit: measured rows, L2 cold, without options or lower read precision."""
    found: dict[Key, list[Observation]] = {}
    for row in rows:
        plain = row["status"] == "ok" and row["l2_state"] == "cold" and not row["options"] and not row["tree"]
        if not plain or row["read_dtype"] not in (None, row["state_dtype"]):
            continue
        gpu = load_gpu(row["gpu"])
        key = (row["family"], row["method"], row["phase"], row["gpu"])
        found.setdefault(key, []).append(observation(row, case_of(row), gpu, shipped_roofs(gpu)))
    return found


def left_out(key: Key, seen: Sequence[Observation]) -> list[Row]:
    """Return how each model's rows are predicted by a fit to the others."""
    models = sorted({one.model for one in seen})
    out = []
    for model in models if len(models) > 1 else ():
        found = fit(*key, [one for one in seen if one.model != model])
        rest = [one for one in seen if one.model == model]
        error = errors(found, rest)
        worst = float(error[np.argmax(np.abs(error))])
        out.append({"model": model, "rms": float(np.sqrt(np.mean(error**2))), "worst": worst,
                    "covered": covered(found, rest)})  # fmt: skip
    return out


def entry(found: Efficiency, seen: Sequence[Observation], others: Sequence[Row], files: list[str], date: str) -> str:
    """Return one fit as YAML."""
    lines = [f"family: {found.family}", f"method: {found.method}", f"phase: {found.phase}", f"gpu: {found.gpu}",
             f'date: "{date}"', f"sources: [{', '.join(files)}]", f"n: {len(seen)}",
             f"models: [{', '.join(sorted({one.model for one in seen}))}]",
             f"batches: {sorted({one.batch for one in seen})}",
             f"windows: {sorted({one.window for one in seen if one.window})}", "parameters:"]  # fmt: skip
    for name, (lo, hi) in found.intervals.items():
        lines.append(f"  {name}: {{value: {getattr(found, name):.4g}, lo: {lo:.4g}, hi: {hi:.4g}}}")
    lines += [f"spread: {found.spread:.4f}", f"width: {found.width:.4f}", "left_out:" if others else "left_out: []"]
    for one in others:
        lines.append(f"  - {{model: {one['model']}, rms: {one['rms']:.4f}, worst: {one['worst']:.4f}, "
                     f"covered: {one['covered']:.3f}}}")  # fmt: skip
    return "  - " + "\n    ".join(lines) + "\n"


def document(directory: Path = MEASURED) -> str:
    """Return the file's text, fitted anew to the rows in ``directory``."""
    rows = load_measured(directory=directory)
    text = HEAD
    for key, seen in sorted(observations(rows).items()):
        if not enough(key[1], seen):  # timed at a batch or two: its prediction stays a bound
            continue
        used = [row for row in rows if (row["family"], row["method"], row["phase"], row["gpu"]) == key]
        ids = [f",{row['case_id']}," for row in used]
        files = [path.name for path in measured_files(directory).values()
                 if any(one in path.read_text(encoding="utf-8") for one in ids)]  # fmt: skip
        date = max(str(row["manifest"]["ended"])[:10] for row in used)
        text += entry(fit(*key, seen), seen, left_out(key, seen), [*files, f"{key[3]}-roofs.yaml"], date)
    return text


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=MEASURED, help="default: perfkit/profiles/measured")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file would change")
    given = parser.parse_args(argv)
    file = given.directory / EFFICIENCY
    try:
        text = document(given.directory)
        if given.check:
            same = file.is_file() and file.read_text(encoding="utf-8") == text
            print(f"{file}: {'is' if same else 'is not'} what the rows give")
            return 0 if same else 1
        results.write_text(file, text)
    except PerfkitError as error:
        print(f"fit_efficiency: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(file)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
