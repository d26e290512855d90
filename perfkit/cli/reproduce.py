"""``perfkit reproduce``: a figure or table of the paper, with our numbers beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfkit.cli.common import JsonOption
from perfkit.errors import InputError, PerfkitError

if TYPE_CHECKING:
    from perfkit.paper import Compared, Rows
    from perfkit.profiles.published import PaperTable

HOW = "perfkit profile --model nemotron-super --out runs/counters && perfkit reproduce table3 runs/counters"


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="fig4, table7, …; without one, what there is.")
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN...]", help="Run folders of perfkit sweep (table3: of perfkit profile). Default: what ships."
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Show a figure of the paper: published, ours, their ratio.

    Ours are measured (of the runs that are named), recorded (shipped rows) or of the model (formulas, whole steps,
    serving, others' kernels carried over from another GPU); each line says which. Another GPU, implementation, baseline
    or routing makes the two not comparable, with the reason; misses come first, with what other assumptions would
    give. Table 3 also sets the count of state traffic against DRAM bytes by Nsight Compute.

    Examples:
        perfkit reproduce
        perfkit reproduce fig4
        perfkit reproduce fig10 runs/20260102T030405Z-qwen3.5-122b-b300
        perfkit reproduce table3 runs/20260102T030405Z-nemotron-super-h200-counters
    """  # fmt: skip
    from perfkit.profiles.published import load_paper

    if name is None:
        return _names(as_json=json)
    published = load_paper(name)
    if name == "table3":
        return _table3(published, runs or [], as_json=json)
    return _compare(published, _rows(runs or []), as_json=json)


def _names(*, as_json: bool) -> int:
    from perfkit.cli.common import print_json, print_table
    from perfkit.profiles.published import load_paper, paper_names

    tables = [load_paper(name) for name in paper_names()]
    rows = [(table.name, table.title, sum(cell.lost is None for cell in table.cells), len(table.cells))
            for table in tables]  # fmt: skip
    if as_json:
        print_json([dict(zip(("name", "title", "published", "cells"), row, strict=True)) for row in rows])
    else:
        print_table(("name", "what it is", "published", "of"), rows)
    return 0


def _rows(runs: Sequence[Path]) -> Rows:
    """Return the rows of the runs that are named, else those that ship.

    Raises:
        InputError: a folder that is no run, or the run of another command than sweep.
    """
    from perfkit import results
    from perfkit.paper import Rows
    from perfkit.profiles import load_measured

    if not runs:
        return Rows("recorded", tuple(load_measured()))
    found: list[Mapping[str, Any]] = []
    for run in runs:
        frame = results.load_run(run)
        manifest = results.read_manifest(run if run.is_dir() else run.parent)
        if manifest.get("command", "sweep") != "sweep":
            raise InputError("is not the run of a sweep", file=run / "manifest.json", field="command",
                             value=str(manifest.get("command")))  # fmt: skip
        found += [{**row, "manifest": manifest, "run": str(run)} for row in results.plain_rows(frame)]
    return Rows("measured", tuple(found))


def _compare(published: PaperTable, rows: Rows, *, as_json: bool) -> int:
    from perfkit.cli.common import print_json, print_table
    from perfkit.paper import TOLERANCE, compare_table, text

    items = compare_table(published, rows)
    if as_json:
        print_json(_document(published, items))
        return 0
    shown = text(items)
    print_table(shown.columns, shown.lines, title=". ".join(filter(None, [published.title, shown.common])))
    for at, note in enumerate(shown.notes, 1):
        print(f"[{at}] {note}")
    for source in dict.fromkeys(f"{cell.source}, {cell.where}" for cell in published.cells):
        print(f"published: {source}")
    verdicts = [item.verdict for item in items]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts))
    print(f"{len(items)} cells: {counts}; a miss is comparable and off by more than {TOLERANCE:.0%}")
    return 0


def _document(published: PaperTable, items: Sequence[Compared]) -> dict[str, Any]:
    from perfkit.paper import TOLERANCE, document

    return {"name": published.name, "title": published.title, "tolerance": TOLERANCE,
            "cells": list(map(document, items))}  # fmt: skip


def _table3(published: PaperTable, runs: Sequence[Path], *, as_json: bool) -> int:
    """Show the counters of the runs, or those that ship; where there are none, the count alone.

    Raises:
        InputError: a folder that is no run of perfkit profile.
        PerfkitError: the runs have no step at the published batch.
    """
    from perfkit.cli.common import print_json, print_table
    from perfkit.nsight import table3
    from perfkit.paper import Rows, compare_table

    tables = []
    for origin, rows in _counters(runs):
        found = table3.table3(rows, published)
        if found:
            tables.append({**origin, "rows": found})
    if runs and not tables:
        names = ", ".join(map(str, runs))
        raise PerfkitError(f"no step at B = {table3.BATCH} is among the counters of {names}; {HOW}")
    if as_json:
        cells = _document(published, compare_table(published, Rows("recorded", ())))
        print_json({"table": "table3", "source": published.cells[0].source, "tables": tables, **cells})
        return 0
    if not tables:
        _compare(published, Rows("recorded", ()), as_json=False)
        print(f"DRAM counters: not measured; where there is a GPU: {HOW}")
        return 0
    for at, found_table in enumerate(tables):
        if at:
            print()
        print_table(table3.COLUMNS, map(table3.line, found_table["rows"]), title=_title(published.title, found_table))
    print(f"paper GB: reads and writes (R+W) times the states of the batch; published: {published.cells[0].source}")
    print("exact GB: inputs, outputs and records too; counters agree with it within 1 %, of writes within one L2 more")
    return 0


def _counters(runs: Sequence[Path]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return the rows of each run, or of each table that ships, with what says where they are from.

    Raises:
        InputError: a folder that is no run of perfkit profile.
    """
    from perfkit import results
    from perfkit.profiles.counters import load_counters, read_counters

    found: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
    for run in runs:
        manifest = results.read_manifest(run)
        if manifest.get("command") != "profile":
            raise InputError("is not the run of a profile", file=run / "manifest.json", field="command",
                             value=str(manifest.get("command")))  # fmt: skip
        found[str(run)] = (_origin(manifest, str(run)), read_counters(run / "counters.csv"))
    if not runs:
        for row in load_counters():
            manifest = row.pop("manifest")
            found.setdefault(str(manifest.get("hash")), (_origin(manifest, "shipped"), []))[1].append(row)
    return list(found.values())


def _origin(manifest: Mapping[str, Any], where: str) -> dict[str, Any]:
    gpu, model = manifest.get("gpu") or {}, manifest.get("model") or {}
    return {"from": where, "model": model.get("key"), "gpu": gpu.get("name") or gpu.get("key"),
            "ncu": manifest.get("ncu"), "date": str(manifest.get("started") or "")[:10] or None}  # fmt: skip


def _title(title: str, origin: Mapping[str, Any]) -> str:
    return (f"{title}, GB; {origin['model']}, B = 256 on {origin['gpu']}, ncu {origin['ncu']}, {origin['date']} "
            f"({origin['from']})")  # fmt: skip
