"""Figures, sentences and the table become one HTML file that needs no network and no other file."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.errors import InputError
from perfkit.reports import figures, findings, header, select, table, text, theme
from perfkit.reports.counters import join_counters
from perfkit.reports.points import points_csv

if TYPE_CHECKING:
    import pandas as pd

#: A section draws the figures of so many workloads; the table has the rows of all, and the page says so.
MAX_WORKLOADS = 8
_SCRIPTS = ("page.js", "table.js", "figures.js")


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its name in the report, its rows, its manifest."""

    name: str
    frame: pd.DataFrame
    manifest: Mapping[str, Any]


def build_report(run_dirs: list[Path], out: Path) -> Path:
    """Write the report of some runs to ``out``; see :func:`perfkit.reports.build_report`."""
    check_writable(out)
    return write_page(render(load_all(run_dirs)), out)


def load_all(paths: Sequence[Path]) -> list[Run]:
    """Read runs; those that only counted bytes fill the rows of the others.

    Raises:
        InputError: see :func:`load`.
    """
    return join_counters([load(path) for path in paths])


def load(path: Path) -> Run:
    """Read a run folder, or one file of results without a manifest.

    Raises:
        InputError: there are no results, or they have another schema version.
    """
    from perfkit.results import load_run, read_manifest

    frame = load_run(path)
    manifest = read_manifest(path) if (path / "manifest.json").is_file() else {}
    return Run(path.resolve().name, frame, manifest)


def check_writable(out: Path) -> None:
    """Refuse a place where no file can be written, before any work is done.

    Raises:
        InputError: a folder, a parent that is missing, or no permission.
    """
    if out.is_dir():
        raise InputError("is a folder", field="--out", value=str(out), allowed="a file name")
    folder = out.absolute().parent
    if not folder.is_dir():
        raise InputError("its folder does not exist", field="--out", value=str(out))
    if out.exists() and not os.access(out, os.W_OK):
        raise InputError("cannot be written", field="--out", value=str(out))
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", field="--out", value=str(out)) from error


def write_page(page: str, out: Path) -> Path:
    """Write a page in one step, so that a reader never sees half of it.

    Raises:
        InputError: the file cannot be written.
    """
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        part.write_text(page, encoding="utf-8")
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"cannot be written: {error.strerror}", field="--out", value=str(out)) from error
    return out


def merged(runs: Sequence[Run]) -> pd.DataFrame:
    """Join the rows of runs; of several, a column ``run`` names each row's."""
    import pandas as pd

    if len(runs) == 1:
        return runs[0].frame
    names = _distinct([run.name for run in runs])
    return pd.concat([run.frame.assign(run=name) for run, name in zip(runs, names, strict=True)], ignore_index=True)


def _distinct(names: Sequence[str]) -> list[str]:
    """Number names that appear more than once."""
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)
    ]


def answers(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the answer of each section and workload as plain data: what the page's first screen says."""
    frame = select.prepare(merged(runs))
    floor = _floor(runs)
    return [
        {"model": model, "gpu": gpu, "workload": workload or None} | _answer_data(findings.answer(rows, floor))
        for model, gpu, part in select.sections(frame)
        for workload, rows in select.workloads(part)
    ]


def _answer_data(said: findings.Answer) -> dict[str, Any]:
    names = ("verdict", "headline", "advice", "source", "baseline", "method", "window", "batch", "time_us", "gain",
             "gain_lo", "gain_hi", "aa_floor")  # fmt: skip
    even = said.break_even
    return {name: getattr(said, name) for name in names} | {
        "break_even": None if even is None else {"batch": even.estimate, "lo": even.lo, "hi": even.hi}
    }


def _floor(runs: Sequence[Run]) -> float | None:
    """Return the largest A/A noise floor that the manifests state."""
    floors = [value for run in runs if isinstance(value := run.manifest.get("aa_floor"), (int, float))]
    return max((float(value) for value in floors if not text.is_missing(value)), default=None)


def render(runs: Sequence[Run]) -> str:
    """Return the page as HTML."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True,
                                     undefined=jinja2.StrictUndefined)  # fmt: skip
    environment.filters["tied"] = tied
    frame = merged(runs)
    data = select.prepare(frame)
    drawn: dict[str, Any] = {}
    floor = _floor(runs)
    sections = [_section(i, *part, floor, drawn) for i, part in enumerate(select.sections(data))]
    names = _distinct([run.name for run in runs])
    context = {
        "title": _title(data),
        "lead": findings.nothing(data) if not sections else None,
        "sections": sections,
        "runs": [
            {"name": name, "facts": header.facts(run.frame, run.manifest), "command": header.command(run.manifest),
             "warnings": header.warnings(run.frame, run.manifest)}
            for name, run in zip(names, runs, strict=True)
        ],
        "rows": text.count(len(data), "row"),
        "columns": text.count(len(frame.columns), "column"),
        "built": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": importlib.import_module("perfkit").__version__,
        "css": _asset("page.css"),
        "script": "\n".join(_asset(name) for name in _SCRIPTS),
        "plotly": importlib.import_module("plotly.offline").get_plotlyjs() if drawn else "",
        "figures_json": script_json(drawn),
        "table_json": script_json(table.table_data(frame)),
        "twins_json": script_json(theme.dark_twins()),
    }  # fmt: skip
    return environment.from_string(_asset("page.html.j2")).render(context)


def tied(words: str) -> str:
    """Keep ``B = 256``, ``311 µs`` and ``0.3 %`` on one line."""
    return words.replace(" = ", "\u00a0=\u00a0").replace(" µs", "\u00a0µs").replace(" %", "\u00a0%")


def _title(data: pd.DataFrame) -> str:
    places = [f"{model} on {gpu}" for model, gpu, _ in select.sections(data)]
    shown = places if len(places) <= 3 else [*places[:2], f"{len(places) - 2} more"]
    return text.join(shown) or "empty run"


def _section(index: int, model: str, gpu: str, rows: pd.DataFrame, floor: float | None, drawn: dict[str, Any]) -> Any:
    """Return what the template needs about one model on one GPU; its figures are added to ``drawn``."""
    parts = list(select.workloads(rows))
    missing = _Missing()
    single = [item for item in figures.FIGURES if item[0] not in figures.ACROSS_WORKLOADS]
    joint = [item for item in figures.FIGURES if item[0] in figures.ACROSS_WORKLOADS]
    said = [findings.answer(part, floor) for _, part in parts[:MAX_WORKLOADS]]
    shown = []
    for j, (answer, (workload, part)) in enumerate(zip(said, parts, strict=False)):
        builders = [] if answer.verdict == "nothing" else single
        entries = _built(builders, part, f"s{index}-w{j}", workload, drawn, missing)
        shown.append({"workload": workload, "answer": answer, "cards": _cards(answer), "figures": entries})
    if all(answer.verdict == "nothing" for answer in said):
        joint = []
    across = _built(joint, rows, f"s{index}", "", drawn, missing)
    return {"id": f"section-{index}", "model": model, "gpu": gpu, "parts": shown, "across": across,
            "missing": missing.lines(len(shown)), "cases": header.statuses(rows),
            "left_out": max(0, len(parts) - MAX_WORKLOADS)}  # fmt: skip


class _Missing:
    """What the figures of a section lack, each thing once, whatever the number of workloads that lack it."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str | None], list[str]] = {}

    def add(self, words: Mapping[str, Any], workload: str) -> None:
        """Note the title of a figure without data and the command that adds what it needs."""
        self._found.setdefault((words["title"], words["add"]), []).append(workload)

    def lines(self, n_workloads: int) -> list[tuple[str, str | None]]:
        """Return (what is missing, the command that adds it); the workloads are named unless all of them lack it."""
        return [
            (title if len(names) == n_workloads or not any(names) else f"{title} ({'; '.join(names)})", command)
            for (title, command), names in self._found.items()
        ]


def _built(
    builders: Sequence[tuple[str, Callable[[pd.DataFrame], Any]]], rows: pd.DataFrame, prefix: str, workload: str,
    drawn: dict[str, Any], missing: _Missing,
) -> list[dict[str, str]]:  # fmt: skip
    """Build figures of some rows: those with data are added to ``drawn``, the others to ``missing``."""
    entries = []
    for name, build in builders:
        figure = build(rows)
        if figure.data:
            entries.append(_figure(f"{prefix}-{name}", figure, drawn))
        else:
            missing.add(figure.layout.meta, workload)
    return entries


def _cards(said: findings.Answer) -> list[tuple[str, str, str]]:
    """Return the numbers of the first screen: (name, value, note)."""
    if said.verdict == "nothing":
        return []
    best = text.method_text(said.method or "", said.window)
    kept = said.verdict in ("same", "slower")
    cards = [
        ("Best here", said.baseline or best if kept else best, f"at B = {text.integer(said.batch)}, {said.source}"),
        ("Time", text.microseconds(said.time_us), f"{best}, per step and layer"),
    ]
    if said.gain is not None:
        span = text.interval(said.gain_lo, said.gain_hi, lambda v: f"{v:.2f}")
        cards.append(("Gain", text.times(said.gain), f"{span or 'no interval'} against {said.baseline}"))
        even = said.break_even
        cards.append(("Break-even batch", even.text if even else text.MISSING,
                      f"{best} wins from there on" if even and even.above else "where the gain passes 1"))  # fmt: skip
    if said.source != "predicted":
        note = "difference of a method with itself" if said.aa_floor is not None else "not in these rows"
        cards.append(("A/A noise floor", text.percent(said.aa_floor, 2), note))
    return cards


def _figure(name: str, figure: Any, drawn: dict[str, Any]) -> dict[str, str]:
    """Add a figure's data to ``drawn``; its title and caption become HTML text, which wraps."""
    plain = json.loads(figure.to_json())
    layout = plain["layout"]
    words = layout.pop("meta")
    layout.pop("title", None)
    # The page's script sets height and top margin: how many rows the legend needs depends on the width.
    area = layout.pop("height") - layout["margin"]["t"] - layout["margin"]["b"]
    layout.pop("width", None)
    drawn[name] = {"data": plain["data"], "layout": layout, "area": area, "csv": points_csv(figure),
                   "entries": sum(trace.get("showlegend", True) for trace in plain["data"])}  # fmt: skip
    return {"id": name, "title": words["title"], "caption": words["caption"]}


def script_json(data: Any) -> str:
    """Return JSON that is safe inside a script element: no tag can begin or end in it."""
    encoded = json.dumps(data, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files("perfkit.reports").joinpath("templates", name).read_text(encoding="utf-8")
