"""``perfkit profile``: DRAM bytes of single steps by hardware counters, beside the bytes that methods declare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfkit.cli.common import (
    FlushPhaseOption,
    JsonOption,
    MaxTimeOption,
    ModelOption,
    OutOption,
    ResumeOption,
    StateDtypeOption,
    TimeoutOption,
    check_limits,
    check_seed,
)


def profile(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A sweep's run folder, with --worst.")] = None,
    worst: Annotated[
        int | None, typer.Option("--worst", metavar="N", help="The N cases of RUN that the model predicts worst.")
    ] = None,
    model: ModelOption = None,
    method: Annotated[
        str | None, typer.Option("--method", metavar="KEY,…|all|FILE.py:METHOD", help="Default: all.")
    ] = None,
    batch: Annotated[str | None, typer.Option("--batch", metavar="LIST", help="Default: 256.")] = None,
    window: Annotated[
        str | None, typer.Option("--window", metavar="LIST", help="L, in committed tokens. Default: 16.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="LIST", help="T, positions per step; 1 is decode. Default: 1,4,8.")
    ] = None,
    accepted: Annotated[
        str | None,
        typer.Option(
            "--accepted", metavar="LIST", help="Tokens that a verify step commits, as of sweep. Default: T-1."
        ),
    ] = None,
    tree: Annotated[
        list[str] | None, typer.Option("--tree", metavar="PARENTS", help="Draft tree, as of sweep.")
    ] = None,
    flush_phase: FlushPhaseOption = None,
    input_dtype: Annotated[str | None, typer.Option("--input-dtype", metavar="LIST", help="Default: bfloat16.")] = None,
    state_dtype: StateDtypeOption = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="'NAME=N …'",
            help="Launch configuration. Default: the tuned one if a search was kept, else the method's first.",
        ),
    ] = None,
    cache_control: Annotated[
        str, typer.Option("--cache-control", metavar="all|none", help="all: ncu flushes L2 before each launch.")
    ] = "all",
    metrics: Annotated[
        str,
        typer.Option(
            "--metrics", metavar="all|dram|LIST", help="dram: bytes and time alone; or more, as ncu names them."
        ),
    ] = "all",
    ncu: Annotated[
        str | None,
        typer.Option("--ncu", metavar="PATH", help="Nsight Compute. Default: from PATH or its usual places."),
    ] = None,
    out: OutOption = None,
    resume: ResumeOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be counted, and the ncu command lines.")
    ] = False,
    timeout: TimeoutOption = None,
    max_time: MaxTimeOption = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Of inputs. Default: 0.")] = None,
    json: JsonOption = False,
) -> int:
    """Hold DRAM counters of Nsight Compute against the model.

    A child runs steps under NVTX ranges of the domain perfkit: of each case one that flushes and one that does not.
    Bytes by the paper's count, by the exact count and by DRAM counters stand beside each other; L2, occupancy,
    registers and throughput are in counters.csv, every launch in counters/. Counters agree with the exact count if
    reads are within 1 % and writes within 1 % plus one L2, since what a kernel leaves dirty in L2 is not yet in DRAM.
    Times under the profiler are no times of a step, and stay out of time_us.

    The run folder has manifest.json, cases.jsonl, results.csv, results.parquet, counters.csv, counters/, and in ncu/
    the reports, which Nsight Compute's own interface opens.

    Exit code 1 if counters contradict what a method declares, 3 if a case was not counted.

    Examples:
        perfkit profile --model nemotron-super
        perfkit profile --model nemotron-super --method replay,snapshot --draft 4 --accepted 1,T
        perfkit profile runs/20260102T030405Z-nemotron-super-h200 --worst 3
        perfkit profile --model nemotron-super --method my_kernel.py:METHOD --draft 1
        perfkit profile --model nemotron-super --dry-run
        perfkit profile --resume runs/20260102T030405Z-nemotron-super-h200-counters
    """
    from perfkit.cli import profile_run

    check_limits(timeout, max_time)
    axes = {
        "--model": model, "--method": method, "--batch": batch, "--window": window, "--draft": draft,
        "--accepted": accepted, "--tree": tree or None, "--flush-phase": flush_phase, "--input-dtype": input_dtype,
        "--state-dtype": state_dtype, "--config": config,
    }  # fmt: skip
    how = {"--cache-control": None if cache_control == "all" else cache_control,
           "--metrics": None if metrics == "all" else metrics, "--seed": seed, "--out": out, "--timeout": timeout,
           "--dry-run": dry_run or None}  # fmt: skip
    if resume is not None:
        profile_run.refuse({"RUN": run, "--worst": worst, **axes, **how},
                           "--resume takes everything from the run; leave this out")  # fmt: skip
        return profile_run.resume(resume, ncu, max_time=max_time, as_json=json)
    options = profile_run.Options(cache_control, metrics, check_seed(seed or 0), timeout or 300.0)
    if run is not None:
        profile_run.refuse(axes, "cases come from RUN; leave this out")
        plan = profile_run.plan_worst(run, worst, options)
    else:
        profile_run.refuse({"--worst": worst}, "needs the RUN whose cases these are")
        flags = {"batch": batch or "256", "window": window or "16", "draft": draft, "method": method or "all",
                 "accepted": accepted, "tree": tree or (), "flush_phase": flush_phase, "input_dtype": input_dtype,
                 "state_dtype": state_dtype}  # fmt: skip
        plan = profile_run.plan_axes(model, flags, config, options)
    if dry_run:
        return profile_run.show(plan, ncu, out, as_json=json)
    return profile_run.start(plan, ncu, out, max_time=max_time, as_json=json)
