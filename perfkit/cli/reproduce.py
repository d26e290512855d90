"""``perfkit reproduce``: a figure or table of the paper, with our numbers beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from perfkit.cli.common import JsonOption
from perfkit.errors import InputError, PerfkitError

NAMES = ("table3",)
HOW = "perfkit profile --model nemotron-super --out runs/counters && perfkit reproduce table3 runs/counters"


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="table3: state traffic of one step by DRAM counters.")],
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN...]", help="Run folders of perfkit profile. Default: the counters that ship."),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Show a table of the paper: the paper's number, ours, their ratio.

    Table 3 sets the paper's count of state traffic (reads and writes times the batch's states) against DRAM bytes by
    Nsight Compute. The paper's text has lost the cells; those that are quoted elsewhere stand under "published".

    Examples:
        perfkit reproduce table3
        perfkit reproduce table3 runs/20260102T030405Z-nemotron-super-h200-counters
    """
    if name not in NAMES:
        raise InputError("cannot be reproduced yet", field="NAME", value=name, allowed=NAMES)
    return _table3(runs or [], as_json=json)


def _table3(runs: Sequence[Path], *, as_json: bool) -> int:
    from perfkit.cli.common import print_json, print_table
    from perfkit.nsight import table3
    from perfkit.profiles.published import load_table3

    published = load_table3()
    tables = []
    for origin, rows in _counters(runs):
        found = table3.table3(rows, published)
        if found:
            tables.append({**origin, "rows": found})
    if not tables:
        raise PerfkitError(
            f"no step at B = {published.batch} is among the counters of {', '.join(map(str, runs))}; {HOW}"
        )
    if as_json:
        print_json({"table": "table3", "title": published.title, "source": published.source, "tables": tables})
        return 0
    for at, found_table in enumerate(tables):
        if at:
            print()
        print_table(table3.COLUMNS, map(table3.line, found_table["rows"]), title=_title(published.title, found_table))
    print(f"paper GB: reads and writes (R+W) times the states of the batch; published: {published.source}")
    print("exact GB: inputs, outputs and records too; counters agree with it within 1 %, of writes within one L2 more")
    return 0


def _counters(runs: Sequence[Path]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return the rows of each run, or of each table that ships, with what says where they are from.

    Raises:
        InputError: a folder that is no run of perfkit profile.
        PerfkitError: nothing ships.
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
        if not found:
            raise PerfkitError(f"no counters are shipped yet; where there is a GPU: {HOW}")
    return list(found.values())


def _origin(manifest: Mapping[str, Any], where: str) -> dict[str, Any]:
    gpu, model = manifest.get("gpu") or {}, manifest.get("model") or {}
    return {"from": where, "model": model.get("key"), "gpu": gpu.get("name") or gpu.get("key"),
            "ncu": manifest.get("ncu"), "date": str(manifest.get("started") or "")[:10] or None}  # fmt: skip


def _title(title: str, origin: Mapping[str, Any]) -> str:
    return (f"{title}, GB; {origin['model']}, B = 256 on {origin['gpu']}, ncu {origin['ncu']}, {origin['date']} "
            f"({origin['from']})")  # fmt: skip
