"""Figures, sentences and the table become one HTML file that needs no network and no other file."""

from __future__ import annotations

import base64
import gzip
import importlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit import compare as comparing
from perfkit.reports import findings, header, select, table, text, theme
from perfkit.reports.changes import changes
from perfkit.reports.output import check_writable, write_text
from perfkit.reports.points import points_csv
from perfkit.reports.runs import Run, distinct, load_all, merged, noise_floor
from perfkit.reports.sections import Section, answered, sections

if TYPE_CHECKING:
    import pandas as pd

#: More workloads than this of one model and GPU have their answers in a table, behind the card of the first.
MAX_CARDS = 2
#: A figure with more texts for hover boxes goes without: they would be most of the page. Its CSV has them.
MAX_HOVERS = 2000
ANSWER_COLUMNS = ("workload", "best here", "time per step and layer", "gain", "against", "evidence")
_SCRIPTS = ("page.js", "table.js", "figures.js")


def build_report(run_dirs: list[Path], out: Path) -> Path:
    """Write the report of some runs to ``out``; see :func:`perfkit.reports.build_report`."""
    check_writable(out)
    return write_text(render(load_all(run_dirs)), out)


def answers(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the answer of each section and workload as plain data: what the page's first screen says."""
    frame = select.prepare(merged(runs))
    floor = noise_floor(runs)
    return [
        {"model": model, "gpu": gpu, "workload": name or None} | _answer_data(said)
        for model, gpu, part in select.sections(frame)
        for workload, rows in select.workloads(part)
        for name, said in answered(workload, rows, floor)
    ]


def _answer_data(said: findings.Answer) -> dict[str, Any]:
    names = ("verdict", "headline", "advice", "source", "baseline", "method", "window", "batch", "time_us", "gain",
             "gain_lo", "gain_hi", "aa_floor")  # fmt: skip
    even = said.break_even
    return {name: getattr(said, name) for name in names} | {
        "break_even": None if even is None else {"batch": even.estimate, "lo": even.lo, "hi": even.hi}
    }


def render(runs: Sequence[Run]) -> str:
    """Return the page of some runs as HTML."""
    frame = merged(runs)
    data = select.prepare(frame)
    drawn: dict[str, Any] = {}
    shown = [_shown(section, drawn) for section in sections(data, noise_floor(runs))]
    names = distinct([run.name for run in runs])
    return fill(
        _title(data), frame, drawn,
        lead=findings.nothing(data) if not shown else None,
        sections=shown,
        changes=changes(runs),
        answer_columns=ANSWER_COLUMNS,
        runs=[{"name": name, "command": header.command(run.manifest)} for name, run in zip(names, runs, strict=True)],
        warnings=header.all_warnings(
            {name: header.warnings(run.frame, run.manifest) for name, run in zip(names, runs, strict=True)}
        ),
        facts=header.shared([header.facts(run.frame, run.manifest) for run in runs]),
        table_columns=table.MAIN_COLUMNS,
    )  # fmt: skip


def fill(
    title: str, frame: pd.DataFrame, drawn: dict[str, Any], *, table_columns: Sequence[str], **words: Any
) -> str:  # fmt: skip
    """Return a page as HTML.

    Args:
        title: its heading.
        frame: the rows of its table.
        drawn: its figures, as :func:`figure_words` adds them.
        table_columns: the columns that the table shows at first.
        words: what the template says besides.
    """
    import jinja2

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True,
                                     undefined=jinja2.StrictUndefined)  # fmt: skip
    environment.filters["tied"] = tied
    context = {
        "title": title,
        "change_title": comparing.TITLE,
        "change_columns": comparing.COLUMNS,
        "rows": text.count(len(frame), "row"),
        "columns": text.count(len(frame.columns), "column"),
        "built": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": importlib.import_module("perfkit").__version__,
        "css": _asset("page.css"),
        "script": "\n".join(_asset(name) for name in _SCRIPTS),
        "plotly": importlib.import_module("plotly.offline").get_plotlyjs() if drawn else "",
        "figures_json": script_json(drawn),
        "table_packed": packed(script_json(table.table_data(frame, table_columns))),
        "twins_json": script_json(theme.dark_twins()),
    }  # fmt: skip
    return environment.from_string(_asset("page.html.j2")).render(context | words)


def _ratio(value: float) -> str:
    return f"{value:.3f}"


def tied(words: str) -> str:
    """Keep ``B = 256``, ``311 µs`` and ``0.3 %`` on one line."""
    return words.replace(" = ", "\u00a0=\u00a0").replace(" µs", "\u00a0µs").replace(" %", "\u00a0%")


def _title(data: pd.DataFrame) -> str:
    places = [f"{model} on {gpu}" for model, gpu, _ in select.sections(data)]
    shown = places if len(places) <= 3 else [*places[:2], f"{len(places) - 2} more"]
    return text.join(shown) or "empty run"


def _shown(section: Section, drawn: dict[str, Any]) -> dict[str, Any]:
    """Return what the template needs about a section; its figures are added to ``drawn``."""
    n_cards = len(section.answers) if len(section.answers) <= MAX_CARDS else 1
    return {
        "id": f"section-{section.id}", "model": section.model, "gpu": section.gpu,
        "heading": f"Evidence: {section.model} on {section.gpu}",
        "table_name": "Other workloads", "table_class": "short",
        "cards": [{"workload": workload, "answer": said, "cards": _cards(said), "notes": []}
                  for workload, said in section.answers[:n_cards]],
        "others": [_answer_row(workload, said) for workload, said in section.answers[n_cards:]],
        "folded": len(section.answers) > MAX_CARDS,
        "parts": [{"workload": part.workload, "figures": [figure_words(*item, drawn) for item in part.figures.items()]}
                  for part in section.parts],
        "across": [figure_words(*item, drawn) for item in section.across.items()],
        "missing": section.missing, "cases": header.statuses(section.rows), "left_out": section.left_out,
    }  # fmt: skip


def _answer_row(workload: str, said: findings.Answer) -> tuple[str, ...]:
    """Return the cells under :data:`ANSWER_COLUMNS` of one workload."""
    if said.verdict == "nothing":
        return (workload, said.headline, "", "", "", "")
    if said.gain is None or said.time_us is None:
        return (workload, _best(said), text.microseconds(said.time_us), text.MISSING, "", said.source or "")
    gain = f"{text.times(said.gain)} {text.interval(said.gain_lo, said.gain_hi, _ratio)}"
    kept = _best(said) == said.baseline
    time = said.time_us * said.gain if kept else said.time_us
    gain = f"none: {text.method_text(said.method or '', said.window)} {gain}" if kept else gain
    return (workload, _best(said), text.microseconds(time), gain, said.baseline or "", said.source or "")


def _best(said: findings.Answer) -> str:
    """Return the method to run: the baseline where no other is faster."""
    best = text.method_text(said.method or "", said.window)
    return said.baseline or best if said.verdict in ("same", "slower") else best


def _cards(said: findings.Answer) -> list[tuple[str, str, str]]:
    """Return the numbers of the first screen: (name, value, note)."""
    if said.verdict == "nothing":
        return []
    best = text.method_text(said.method or "", said.window)
    cards = [
        ("Best here", _best(said), f"at B = {text.integer(said.batch)}, {said.source}"),
        ("Time", text.microseconds(said.time_us), f"{best}, per step and layer"),
    ]
    if said.gain is not None:
        span = text.interval(said.gain_lo, said.gain_hi, _ratio)
        cards.append(("Gain", text.times(said.gain), f"{span or 'no interval'} against {said.baseline}"))
        even = said.break_even
        if even is not None:
            note = f"{best} wins from there on" if even.above else "where the gain passes 1"
            cards.append(("Break-even batch", even.text, note))
    if said.source != "predicted":
        note = "difference of a method with itself" if said.aa_floor is not None else "not in these rows"
        cards.append(("A/A noise floor", text.percent(said.aa_floor, 2), note))
    return cards


def figure_words(name: str, figure: Any, drawn: dict[str, Any]) -> dict[str, str]:
    """Add a figure's data to ``drawn`` and return its id, title and caption, which become HTML text that wraps."""
    plain = json.loads(figure.to_json())
    layout = plain["layout"]
    words = layout.pop("meta")
    layout.pop("title", None)
    # The page's script sets height and top margin: how many rows the legend needs depends on the width.
    area = layout.pop("height") - layout["margin"]["t"] - layout["margin"]["b"]
    layout.pop("width", None)
    data = _rounded(plain["data"])
    if sum(len(trace.get("hovertext") or ()) for trace in data) > MAX_HOVERS:
        for trace in data:
            if trace.pop("hovertext", None) is not None:
                trace["hoverinfo"] = "x+y+name"
    drawn[name] = {"data": data, "layout": layout, "area": area, "csv": packed(points_csv(figure)),
                   "entries": sum(trace.get("showlegend", True) for trace in data)}  # fmt: skip
    return {"id": name, "title": words["title"], "caption": words["caption"]}


def _rounded(node: Any) -> Any:
    """Return plain data with six digits of each number: more than a screen shows, the CSV has all."""
    if isinstance(node, float):
        return float(f"{node:.6g}")
    if isinstance(node, list):
        return [_rounded(item) for item in node]
    return {name: _rounded(item) for name, item in node.items()} if isinstance(node, dict) else node


def packed(words: str) -> str:
    """Return text as gzip in base64, a third of its size; the page's script unpacks it."""
    return base64.b64encode(gzip.compress(words.encode(), mtime=0)).decode()


def script_json(data: Any) -> str:
    """Return JSON that is safe inside a script element: no tag can begin or end in it."""
    encoded = json.dumps(data, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files("perfkit.reports").joinpath("templates", name).read_text(encoding="utf-8")
