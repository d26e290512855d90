"""``perfkit sweep``: every method at every point, timed on this machine's GPU or predicted for another."""

from __future__ import annotations

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

_DRAFT_HELP = "T, positions per step; 1 is decode, --draft 4 an engine's 3 speculative tokens."
_ACCEPTED_HELP = (
    "Tokens that a verify step commits, a group for each: n, T, T-1, mean:X or a decimal, p:.88,.62,.40 (rates by "
    "position, as engines log them). A list with p: in it has ; between its items. Default: 1,T-1,T."
)
_TREE_HELP = "Draft tree, the parent of each draft: 0,0,1,1,2,2,3. May be repeated, or has ; between trees."


def sweep(
    model: ModelOption = None,
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="auto|KEY", help="This machine's GPU, or one to predict for.")
    ] = "auto",
    preset: Annotated[
        str | None,
        typer.Option("--preset", metavar="NAME|FILE", help="default, quick, verify, windows, or a YAML file."),
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", metavar="KEY,…|all|FILE.py:METHOD", help="The control is always there.")
    ] = None,
    batch: Annotated[str | None, typer.Option("--batch", metavar="LIST", help="1,8,64 or 1..512:x2.")] = None,
    window: Annotated[str | None, typer.Option("--window", metavar="LIST", help="L, in committed tokens.")] = None,
    draft: Annotated[str | None, typer.Option("--draft", metavar="LIST", help=_DRAFT_HELP)] = None,
    accepted: Annotated[str | None, typer.Option("--accepted", metavar="LIST", help=_ACCEPTED_HELP)] = None,
    flush_phase: FlushPhaseOption = None,
    tree: Annotated[list[str] | None, typer.Option("--tree", metavar="PARENTS", help=_TREE_HELP)] = None,
    input_dtype: Annotated[str | None, typer.Option("--input-dtype", metavar="LIST", help="bf16, fp16, fp32.")] = None,
    state_dtype: StateDtypeOption = None,
    read_dtype: Annotated[
        str | None, typer.Option("--read-dtype", metavar="DTYPE", help="Dtype of the checkpoint that is read.")
    ] = None,
    layers: Annotated[int | None, typer.Option("--layers", metavar="N", help="Layers whose states take turns.")] = None,
    out: OutOption = None,
    resume: ResumeOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run, and its memory.")] = False,
    self_check: Annotated[
        bool,
        typer.Option(
            "--self-check", help="Time the control as two cases, A and B, beside each group's own A/A series."
        ),
    ] = False,
    timeout: TimeoutOption = None,
    max_time: MaxTimeOption = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Of inputs and resampling. Default: 0.")
    ] = None,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Write trace.json, for ui.perfetto.dev: cases, launches, waits."),
    ] = False,
    json: JsonOption = False,
) -> int:
    """Measure, or without a GPU predict, every method at every point.

    Writes a run folder: manifest.json, cases.jsonl, samples/, results.parquet, results.csv, report.html; with --trace
    also trace.json.

    Verify steps (--draft above 1, --tree) are compared with tuned snapshots. A sweep of verify steps without draft 1
    also times one conventional decode step for each batch and dtype, so that the column conventional_steps is filled.

    Examples:
        perfkit sweep --model nemotron-super
        perfkit sweep --model nemotron-super --batch 64,256 --window 8..32:+8
        perfkit sweep --model path/to/config.json --gpu b200 --json
        perfkit sweep --model nemotron-super --preset verify
        perfkit sweep --model nemotron-super --preset windows
        perfkit sweep --model nemotron-super --draft 4,8 --accepted 1,T-1,T,mean:3.5 --window 16,32
        perfkit sweep --model nemotron-super --tree 0,0,1,1,2,2,3 --method snapshot,stree,replay
        perfkit sweep --model nemotron-super --method my_kernel.py:METHOD --self-check
        perfkit sweep --model nemotron-super --preset quick --trace
        perfkit sweep --resume runs/20260102T030405Z-nemotron-super-h200
    """
    from perfkit.cli import sweep_plan, sweep_run
    from perfkit.errors import InputError
    from perfkit.ranges import listening, mark
    from perfkit.trace import Trace

    check_limits(timeout, max_time)
    if resume is not None:
        given = {
            "--model": model, "--gpu": None if gpu == "auto" else gpu, "--preset": preset, "--method": method,
            "--batch": batch, "--window": window, "--draft": draft, "--accepted": accepted,
            "--flush-phase": flush_phase, "--tree": tree or None, "--input-dtype": input_dtype,
            "--state-dtype": state_dtype, "--read-dtype": read_dtype, "--layers": layers, "--out": out,
            "--self-check": self_check or None, "--seed": seed, "--timeout": timeout, "--dry-run": dry_run or None,
            "--trace": trace or None,
        }  # fmt: skip
        for flag, value in given.items():
            if value is not None:
                raise InputError("--resume takes everything from the run; leave this out", field=flag)
        events = Trace()
        with listening(events.parent):
            return sweep_run.resume(resume, events, max_time=max_time, as_json=json)
    if read_dtype is not None:
        raise InputError("two-precision checkpoints are not there yet", field="--read-dtype", value=read_dtype)
    events = Trace()
    with listening(events.parent):
        with mark("plan"):
            plan, notes = sweep_plan.make_sweep(
                model,
                gpu,
                timeout=300.0 if timeout is None else timeout,
                seed=check_seed(seed or 0),
                trace=trace,
                flags={
                    "preset": preset or "default", "method": method, "batch": batch, "window": window, "draft": draft,
                    "accepted": accepted, "tree": tree or (), "flush_phase": flush_phase, "input_dtype": input_dtype,
                    "state_dtype": state_dtype, "layers": layers, "self_check": self_check,
                },
            )  # fmt: skip
        if dry_run:
            return sweep_plan.show_plan(plan, notes, as_json=json)
        return sweep_run.start(plan, notes, out, events, max_time=max_time, as_json=json)
