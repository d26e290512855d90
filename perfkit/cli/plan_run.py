"""What ``perfkit plan`` does once its flags are read: make the question, answer it, print it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from perfkit.cli.common import say
from perfkit.errors import InputError

if TYPE_CHECKING:
    from perfkit.plan import Answer, Breakdown, BreakEven, Flip, OnGpu, Point, Question, Row, WindowChoice
    from perfkit.profiles import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The flags of the command, as they were typed."""

    model: str | None
    gpu: str | None
    concurrency: int
    context: int | None
    acceptance: str | None
    draft: str | None
    method: str
    window: str | None
    state_dtype: str | None
    engine: str
    memory_gb: float | None
    utilization: float | None
    reserve_gb: float
    tp: int
    kv_dtype: str | None
    weight_dtype: str | None
    impl: str
    routing: str
    slowdown: float
    overheads: str | None
    flush_phase: str
    sla_ms: float | None
    sla_on: str
    compare_gpus: str | None
    pareto: bool
    breakdown: bool
    all_rows: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is shown of an answer.

    Attributes:
        answer: what to run.
        rows: of the table.
        window: why this window.
        even: the break-even batch.
        terms: the conventional step.
        flipped: what flips the answer.
        front: the Pareto front, if asked for.
        within: of the points that keep the limit, the one of most throughput; None without a limit.
        gpus: other GPUs, if asked for.
    """

    answer: Answer
    rows: list[Row]
    window: WindowChoice | None
    even: BreakEven | None
    terms: Breakdown | None
    flipped: list[Flip]
    front: list[Point] | None
    within: Point | None
    gpus: list[OnGpu] | None


def run(request: Request, *, output: Literal["text", "json", "csv"], out: Path | None = None) -> None:
    """Answer and print; ``out`` is where the answer goes as a page too.

    Raises:
        InputError: names the flag, the value and what is allowed.
        DeviceError: several GPUs here, and which is meant is not clear.
    """
    if out is not None:
        from perfkit.reports.output import check_page

        check_page(out)
    report = plan(request)
    if out is not None:
        write_page(report, request, out)
    if output == "text":
        from perfkit.cli import plan_text

        plan_text.show(report, breakdown=request.breakdown)
    elif output == "json":
        from perfkit.cli.common import print_json

        print_json(to_json(report) | {"report": out})
    else:
        print_csv(report)
    if out is not None and output != "json":
        say(str(out))


def paper_check(*, as_json: bool) -> None:
    """Print published figures beside what the model behind a plan says of them."""
    from perfkit.cli.common import print_json
    from perfkit.paper import check_document, check_plan, render_checks

    rows = check_plan()
    if as_json:
        print_json({"schema_version": 1, "figures": check_document(rows)})
    else:
        print(render_checks(rows))


def plan(request: Request) -> Report:
    """Return everything that is shown of the answer to the flags; raises as :func:`run` does."""
    from perfkit import plan as plans

    asked = question(request)
    found = plans.answer(asked)
    front = plans.front(plans.points(_both_precisions(request, asked))) if request.pareto else None
    gpus = request.compare_gpus
    return Report(
        answer=found,
        rows=found.table.all_rows() if request.all_rows else found.table.rows(),
        window=plans.window_choice(found, _replay(found)),
        even=plans.break_even(found, _replay(found)),
        terms=plans.breakdown(found),
        flipped=plans.flips(found),
        front=front,
        within=plans.within_limit(asked) if request.sla_ms is not None else None,
        gpus=plans.on_gpus(asked, _keys(asked.gpu.key, gpus)) if gpus is not None else None,
    )


def _replay(found: Answer) -> Row:
    """Return the row whose window and break-even batch are shown: the choice, else the best one with a window."""
    if found.chosen.window is not None:
        return found.chosen
    other = next((choice for choice in found.table.choices if choice.window is not None), None)
    return other.row() if other is not None else found.chosen


def _keys(own: str, text: str) -> list[str]:
    return [own, *(part.strip() for part in text.split(","))]


def _both_precisions(request: Request, asked: Question) -> Question:
    """Return the question with FP16 states beside the model's, where nobody named precisions."""
    if request.state_dtype is not None:
        return asked
    return asked.but(state_dtypes=tuple(dict.fromkeys((*asked.state_dtypes, "float16"))))


def question(request: Request) -> Question:
    """Return what the flags ask; raises as :func:`run` does."""
    from perfkit.plan import make_question, parse_drafts
    from perfkit.presets import DTYPES, parse_ints
    from perfkit.profiles import load_model
    from perfkit.profiles.schema import STATE_DTYPES
    from perfkit.roofline import roofs_for
    from perfkit.roofline.crossover import KV_DTYPES
    from perfkit.shape import dtype_name

    if request.model is None:
        raise InputError("needs a model", field="--model", allowed="a key of `perfkit list models`, or a config.json")
    model = load_model(request.model)
    lengths = parse_ints(request.draft, field="--draft") if request.draft is not None else ()
    drafts = parse_drafts(request.acceptance, lengths)
    windows = parse_ints(request.window, field="--window") if request.window is not None else ()
    states = [dtype_name(part, field="--state-dtype", allowed=DTYPES) for part in (request.state_dtype or "").split(",")
              if part] or [dtype_name(model.state_dtype, field="--state-dtype", allowed=DTYPES)]  # fmt: skip
    kv_dtype = request.kv_dtype
    if kv_dtype is not None:
        kv_dtype = dtype_name(kv_dtype, field="--kv-dtype", allowed=KV_DTYPES)
    weights = request.weight_dtype
    if weights is not None:
        weights = dtype_name(weights, field="--weight-dtype", allowed=STATE_DTYPES)
    gpu = _gpu(request.gpu)
    return make_question(
        model, gpu, roofs_for(gpu), engine=request.engine, context=request.context, concurrency=request.concurrency,
        drafts=drafts, windows=windows, methods=tuple(part.strip() for part in request.method.split(",")),
        state_dtypes=tuple(dict.fromkeys(states)), kv_dtype=kv_dtype, weight_dtype=weights, tp=request.tp,
        routing=request.routing, slowdown=request.slowdown, overheads=request.overheads, memory_gb=request.memory_gb,
        utilization=request.utilization, reserve_gb=request.reserve_gb, flush_phase=request.flush_phase,
        impls=tuple(part.strip() for part in request.impl.split(",")), sla_ms=request.sla_ms, sla_on=request.sla_on,
    )  # fmt: skip


def _gpu(key: str | None) -> Gpu:
    """Return the GPU that is named, else this machine's."""
    from perfkit.profiles import find_gpu, load_gpu

    if key is not None and key != "auto":
        return load_gpu(key)
    from perfkit import device

    facts = device.usable_gpu()
    if facts is None:
        raise InputError("there is no usable GPU here (perfkit doctor says why): name one", field="--gpu",
                         allowed="a key of `perfkit list gpus`")  # fmt: skip
    found = None if facts.is_mig else find_gpu(facts.name, facts.memory_total_mib)
    if found is None:
        raise InputError(f"no profile of this machine's {facts.name}: name another GPU", field="--gpu",
                         allowed="a key of `perfkit list gpus`, or a .yaml")  # fmt: skip
    return found


def write_page(report: Report, request: Request, out: Path) -> None:
    """Write the answer as one offline page."""
    from perfkit.cli import plan_text
    from perfkit.cli.common import cell
    from perfkit.plan import frames
    from perfkit.reports.header import command
    from perfkit.reports.output import write_text
    from perfkit.reports.plan_page import Words, render_plan

    found = report.answer
    asked = found.table.question
    states = len(asked.state_dtypes) > 1
    cells = [[cell(value) for value in plan_text.cells(row, found, states)] for row in report.rows]
    words = Words(
        columns=plan_text.columns(states), rows=[[text.replace("<-", "← ") for text in row] for row in cells],
        assumed=list(plan_text.header(asked))[1], lines=list(plan_text.lines(report)),
        command=command({"argv": sys.argv}),
    )  # fmt: skip
    write_text(render_plan(found, frames(found, _both_precisions(request, asked)), words), out)


def to_json(report: Report) -> dict[str, object]:
    """Return the document of ``--json``."""
    from dataclasses import asdict

    from perfkit.plan.document import document

    data = document(report.answer, report.rows, window=report.window, even=report.even, terms=report.terms,
                    flipped=report.flipped, front=report.front, gpus=report.gpus)  # fmt: skip
    return data | {"within_sla": asdict(report.within) if report.within is not None else None}


def print_csv(report: Report) -> None:
    """Print the rows as CSV."""
    import csv

    from perfkit.plan.document import row_data

    rows = [{"source": "predicted", **row_data(row)} for row in report.rows]
    writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
