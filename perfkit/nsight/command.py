"""The command line that starts Nsight Compute on a plan, and the files of one such start."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfkit.files import write_text
from perfkit.method import Case
from perfkit.nsight.tool import Tool
from perfkit.ranges import DOMAIN

#: The range around every counted step: the names of the steps' own ranges have slashes, which a filter would have to
#: escape. Where it is marked without a domain, it is perfkit's all the same.
COUNTED = "perfkit-counters"
#: Launches inside that push/pop range, in perfkit's domain or in the default one.
INCLUDE = (f"{DOMAIN}@{COUNTED}/", f"{COUNTED}/")
CACHE_CONTROLS = ("all", "none")
#: Clocks stay as they are in any other run.
CLOCK_CONTROL = "none"


@dataclass(frozen=True, slots=True)
class Job:
    """The files of one start of ``ncu``, in one folder: what is asked, what is told, what comes out."""

    folder: Path
    number: int

    @property
    def plan(self) -> Path:
        """What the target runs."""
        return self.folder / f"{self.number}.plan.json"

    @property
    def events(self) -> Path:
        """What the target tells."""
        return self.folder / f"{self.number}.events.jsonl"

    @property
    def log(self) -> Path:
        """What ``ncu`` itself says."""
        return self.folder / f"{self.number}.log"

    @property
    def output(self) -> Path:
        """What ``ncu`` and the target print beside that."""
        return self.folder / f"{self.number}.out"

    @property
    def report(self) -> Path:
        """Nsight Compute's report; its user interface opens it."""
        return self.folder / f"{self.number}.ncu-rep"


def write_plan(job: Job, cases: Sequence[tuple[Case, str | None]], device: str, seed: int) -> None:
    """Write what the target of a job runs: cases, each with its launch configuration or None for it to choose.

    Raises:
        InputError: the folder cannot be written.
    """
    plan = {"events": str(job.events.resolve()), "device": device, "seed": seed,
            "cases": [{"case": case.to_dict(), "config": config} for case, config in cases]}  # fmt: skip
    write_text(job.plan, json.dumps(plan, indent=1) + "\n")


def command(tool: Tool, job: Job, metrics: Sequence[str], cache_control: str) -> list[str]:
    """Return the command line of a job.

    Source: Nsight Compute Command Line Interface, NVTX filtering and command line options.
    """
    includes = [word for include in INCLUDE for word in ("--nvtx-include", include)]
    # A name without its ending: ncu adds it. A percent sign would start one of its macros.
    report = str(job.report.resolve().with_suffix("")).replace("%", "%%")
    return [
        tool.path, "--config-file", "off", "--target-processes", "application-only", "--nvtx", *includes,
        "--replay-mode", "kernel", "--cache-control", cache_control, "--clock-control", CLOCK_CONTROL,
        "--metrics", ",".join(metrics), "--log-file", str(job.log.resolve()), "--force-overwrite", "--export", report,
        sys.executable, "-m", "perfkit.nsight.target", str(job.plan.resolve()),
    ]  # fmt: skip


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a job: messages and numbers of ``ncu`` are read, so they are not to be translated."""
    return {**base, "LC_ALL": "C"}
