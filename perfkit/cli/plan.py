"""``perfkit plan``: what to run for a model on a GPU under a load, and whether it pays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfkit.cli.common import FlushPhaseOption, JsonOption, ModelOption, StateDtypeOption

_ACCEPTANCE = (
    "Rates by draft position as engines log them (.88,.62,.40), or mean:X or T with --draft. Default: no drafts."
)
_OVERHEADS = "The engine's own time: none or an estimate (vllm). Default: the engine's estimate, if there is one."


def plan(
    model: ModelOption = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="KEY", help="`perfkit list gpus`; default: this machine's GPU.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", metavar="N", help="Requests at once.")] = 256,
    context: Annotated[
        int | None,
        typer.Option("--context", metavar="N", help="Tokens of a request, all read at every step. Default: 8192."),
    ] = None,
    acceptance: Annotated[str | None, typer.Option("--acceptance", metavar="RATES", help=_ACCEPTANCE)] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="LIST", help="T to compare. Default: 1 to the rates and one.")
    ] = None,
    method: Annotated[
        str, typer.Option("--method", metavar="KEY,…|all", help="Those that engines have, and replay.")
    ] = "conventional,snapshot,replay",
    window: Annotated[
        str | None, typer.Option("--window", metavar="LIST", help="L to compare. Default: 2..64 that the engine takes.")
    ] = None,
    state_dtype: StateDtypeOption = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="vllm|bytes", help="Who allocates memory: pages, or the plain sum.")
    ] = "vllm",
    memory_gb: Annotated[
        float | None, typer.Option("--memory-gb", metavar="GB", help="Of one GPU, in place of its own.")
    ] = None,
    utilization: Annotated[
        float | None, typer.Option("--utilization", metavar="SHARE", help="Of it, for the engine. Default: vllm .9.")
    ] = None,
    reserve_gb: Annotated[
        float, typer.Option("--reserve-gb", metavar="GB", help="Set aside of it for activations and graphs.")
    ] = 0.0,
    tp: Annotated[int, typer.Option("--tp", metavar="N", help="GPUs that share the model.")] = 1,
    kv_dtype: Annotated[
        str | None, typer.Option("--kv-dtype", metavar="DTYPE", help="Default: fp8 of quantized models, else bf16.")
    ] = None,
    weight_dtype: Annotated[
        str | None, typer.Option("--weight-dtype", metavar="DTYPE", help="Of the weights. Default: the checkpoint's.")
    ] = None,
    impl: Annotated[
        str, typer.Option("--impl", metavar="NAME,…", help="Whose kernels: ours, or published ones: vllm,replayssm.")
    ] = "ours",
    routing: Annotated[
        str, typer.Option("--routing", metavar="independent|identical", help="Rows' experts; identical: one prompt.")
    ] = "independent",
    slowdown: Annotated[
        float, typer.Option("--slowdown", metavar="X", help="φ, of the kernels inside the model: a power cap.")
    ] = 1.0,
    overheads: Annotated[str | None, typer.Option("--overheads", metavar="none|vllm", help=_OVERHEADS)] = None,
    flush_phase: FlushPhaseOption = None,
    sla_ms: Annotated[
        float | None, typer.Option("--sla-ms", metavar="MS", help="Limit on the p99 step, or a token's mean time.")
    ] = None,
    sla_on: Annotated[str, typer.Option("--sla-on", metavar="step|token", help="What the limit is on.")] = "step",
    compare_gpus: Annotated[
        str | None, typer.Option("--compare-gpus", metavar="KEY,…", help="The same on other GPUs.")
    ] = None,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Throughput against a user's speed, over batch, T and precision.")
    ] = False,
    breakdown: Annotated[
        bool, typer.Option("--breakdown", help="The conventional step by term over the context.")
    ] = False,
    all_rows: Annotated[bool, typer.Option("--all", help="Every window, not the best of each method and T.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV on stdout.")] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write the plan as one offline HTML page too.")
    ] = None,
    paper_check: Annotated[
        bool, typer.Option("--paper-check", help="Published figures beside what this predicts of them, misses first.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Say what to run for a model under a load, and whether it pays.

    Predicted from bytes, roofs and fitted kernels; nothing is timed. Each row is the best window of a method and draft
    length T (T = 4 is an engine's num_speculative_tokens = 3): memory of a request, requests that fit and run, the mean
    step and its 99th percentile, tokens per second of all requests. ± holds what is not known of kernels and roofs.

    Examples:
        perfkit plan --model nemotron-super --gpu b300
        perfkit plan --model nemotron-super --gpu b300 --concurrency 256 --context 8192 --acceptance .88,.62,.40
        perfkit plan --model nemotron-nano --gpu h100 --concurrency 64 --sla-ms 12 --pareto
        perfkit plan --model qwen3.5-122b --gpu h200 --tp 2 --acceptance mean:3 --draft 1,2,4 --state-dtype fp32,fp16
        perfkit plan --model kimi-linear --gpu h200 --compare-gpus h100,b200,b300 --breakdown
        perfkit plan --model nemotron-super --gpu b300 -o plan.html
        perfkit plan --paper-check
    """
    from perfkit.cli import plan_run
    from perfkit.errors import InputError

    if csv and json:
        raise InputError("prints one document: leave out one of --csv and --json", field="--csv")
    if paper_check and csv:
        raise InputError("has no rows of --paper-check: leave it out, or take --json", field="--csv")
    if paper_check and out is not None:
        raise InputError("has no page", field="--paper-check")
    if paper_check:
        plan_run.paper_check(as_json=json)
        return
    request = plan_run.Request(
        model=model, gpu=gpu, concurrency=concurrency, context=context, acceptance=acceptance, draft=draft,
        method=method, window=window, state_dtype=state_dtype, engine=engine, memory_gb=memory_gb,
        utilization=utilization, reserve_gb=reserve_gb, tp=tp, kv_dtype=kv_dtype, weight_dtype=weight_dtype, impl=impl,
        routing=routing, slowdown=slowdown, overheads=overheads, flush_phase=flush_phase or "staggered",
        sla_ms=sla_ms, sla_on=sla_on,
        compare_gpus=compare_gpus, pareto=pareto, breakdown=breakdown, all_rows=all_rows,
    )  # fmt: skip
    plan_run.run(request, output="json" if json else "csv" if csv else "text", out=out)
