#!/usr/bin/env python3
"""On a GPU: perfkit compare is quiet about runs of the same code, and finds a slowdown. prove_compare.py --out DIR

Seven sweeps of the same cases make twenty pairs; in at most one of them may a case be called slower or faster. Then one
more sweep, in which one method spins for 4 % of its time after each step (scripts/spun_decode.py): it must be a
regression, and nothing else. Launch configurations are those that the first sweep found, so what a search draws is not
among what the runs differ by. Prints a line a comparison and the largest change among runs of the same code, which is
what a floor is set by on this machine. Exit code 1 if anything is not as it must be; 3 where NVML does not tell the
clock that cycles are counted by, 2 for bad input.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perfkit import compare
from perfkit.errors import DeviceError, PerfkitError
from perfkit.progress import count

ROOT = Path(__file__).resolve().parent.parent
SPUN = f"{ROOT / 'scripts' / 'spun_decode.py'}:METHOD"
PAIRS = 20


def sweep(out: Path, seed: int, flags: Sequence[str], spins: Mapping[int, int] | None = None) -> compare.Run:
    """Run a sweep into a folder and read it."""
    text = ",".join(f"{batch}:{cycles}" for batch, cycles in (spins or {}).items())
    command = [sys.executable, "-m", "perfkit", "sweep", *flags, "--method", f"conventional,replay,{SPUN}",
               "--seed", str(seed), "--out", str(out)]  # fmt: skip
    environment = os.environ | {"PERFKIT_SPIN_CYCLES": text, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return compare.load(str(out))


def spins_of(run: compare.Run, percent: float) -> dict[int, int]:
    """Return by batch how many cycles are so many percent of a step of the spun method.

    Raises:
        DeviceError: a row has no time, or no clock, as where NVML cannot be read.
    """
    rows = [row for row in run.rows.values() if row["method"] == SPUN]
    for row in rows:
        for name in ("time_us", "sm_clock_mhz"):
            if not row.get(name):
                raise DeviceError(f"{run.name}: B{row['batch']} {Path(SPUN).name}: no {name}, so how many cycles are "
                                  f"{percent:g} % is not known (perfkit doctor: can NVML be read?)")  # fmt: skip
    return {int(row["batch"]): round(percent / 100 * row["time_us"] * row["sm_clock_mhz"]) for row in rows}


def same_code(runs: Sequence[compare.Run]) -> tuple[int, float]:
    """Compare pairs of runs; return how many raised an alarm, and the largest change that any case shows."""
    alarms, largest = 0, 0.0
    for first, second in list(itertools.combinations(runs, 2))[:PAIRS]:
        found = compare.compare(first, second)
        alarms += bool(found.counts["slower"] or found.counts["faster"])
        changes = [abs(case.change.value) for case in found.cases if case.change is not None]
        largest = max(largest, *changes)
        print(
            f"{Path(first.name).name} {Path(second.name).name}: {compare.lines(found)[-1]}; at most {max(changes):.2%}"
        )
    return alarms, largest


def main(argv: Sequence[str] | None = None) -> int:
    """Run everything and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a new folder for the runs")
    parser.add_argument("--model", default="nemotron-super")
    parser.add_argument("--batch", default="64,256")
    parser.add_argument("--window", default="8,16")
    parser.add_argument("--runs", type=int, default=7, help="sweeps of the same code")
    parser.add_argument("--slowdown", type=float, default=4.0, help="percent")
    parser.add_argument("--limit", type=float, default=3.0, help="percent, of --fail-on-regression")
    given = parser.parse_args(argv)
    flags = ["--model", given.model, "--batch", given.batch, "--window", given.window]
    try:
        given.out.mkdir(parents=True)
        runs = [sweep(given.out / "run0", 0, flags)]
        spins = spins_of(runs[0], given.slowdown)  # before the other sweeps take their time
        runs += [sweep(given.out / f"run{seed}", seed, flags) for seed in range(1, given.runs)]
        alarms, largest = same_code(runs)
        slow = sweep(given.out / "slow", given.runs, flags, spins)
        found = compare.compare(runs[0], slow, fail_on=given.limit)
    except (PerfkitError, OSError, subprocess.CalledProcessError) as error:
        print(f"prove_compare.py: {error}", file=sys.stderr)
        return int(error.exit_code) if isinstance(error, PerfkitError) else 1
    print("\n".join(compare.lines(found)))
    wanted = {case.case_id for case in found.cases if case.row["method"] == SPUN}
    named = {case.case_id for case in found.regressions}
    print(f"same code: {count(alarms, 'alarm')}, changes of {largest:.2%} at most")
    print(f"slower by {given.slowdown:g}%: {len(wanted & named)} of {count(len(wanted), 'case')} named, "
          f"{len(named - wanted)} others")  # fmt: skip
    return int(alarms > 1 or named != wanted)


if __name__ == "__main__":
    raise SystemExit(main())
