"""The parent's side of checks: cases through a worker, one verdict each, and nothing written on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfkit.cases import Group, label
from perfkit.child import Child, worker_argv, worker_env
from perfkit.method import Case
from perfkit.progress import Progress
from perfkit.runner import Limits, Runner
from perfkit.samples import CONFIG
from perfkit.trace import Trace

#: What a check of one case may take in all, in seconds; a case that takes longer is not checked.
CHECK_S = 60.0


@dataclass(frozen=True, slots=True)
class Check:
    """What a worker says about one case."""

    status: str  # ok, incorrect, error, skipped, …
    reason: str | None
    rel_error: float | None = None

    @property
    def checked(self) -> str:
        """The column ``checked`` of a row whose kernel the interpreter ran."""
        return "interpreter" if self.status in ("ok", "incorrect") else "no"


def describe(case: Case) -> str:
    """Return the name of a case among checks, which differ in shapes, dtypes and launch configurations too."""
    shape, config = case.shape, case.option(CONFIG)
    text = f"{label(case)} {shape.family} {shape.n_v_heads}/{shape.n_k_heads} heads {shape.d_v}x{shape.d_k}"
    text += f", {case.input_dtype} inputs, {case.state_dtype} state"
    return text + (f" [{config}]" if config else "")


def run_cases(
    cases: Sequence[Case],
    mode: str,
    settings: Mapping[str, Any],
    progress: Progress,
    *,
    visible: str | None = None,
    log: Path | None = None,
    case_s: float = CHECK_S,
    stop_at: float | None = None,
    trace: Trace | None = None,
) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Run each case through a worker of ``mode``, each as a group of its own; yield its record as it comes.

    Raises:
        DeviceError: no worker gets ready.
        Interrupted, OutOfTime: the rest does not run.
    """

    def spawn() -> Child:
        return Child(worker_argv(mode), worker_env(mode, visible), log)

    limits = Limits(case_s=case_s, stop_at=stop_at)
    progress.begin(len(cases))
    try:
        with Runner(spawn, settings, limits, progress, describe, trace) as run:
            for case in cases:
                yield case, run.run_group(Group(case.group_id, (case,)))[0]
    finally:
        progress.close()
