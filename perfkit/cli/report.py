"""``perfkit report``: runs to one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfkit.cli.common import JsonOption, err_console, print_json
from perfkit.errors import InputError


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or results.csv files.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FILE", help="Default: report.html in the run folder; here for several runs."
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Write one offline HTML page from finished runs."""
    target = out or default_out(runs)
    if target.suffix.lower() not in (".html", ".htm"):
        raise InputError("must be an HTML file", field="--out", value=str(target), allowed="*.html")
    for run in runs:
        if not run.exists():
            raise InputError("no such run", file=run)

    from perfkit.reports.page import answers, check_writable, load_all, render, write_page

    check_writable(target)
    loaded = load_all(runs)
    write_page(render(loaded), target)
    found = answers(loaded)
    if json_:
        rows = sum(len(run.frame) for run in loaded)
        print_json({"report": target, "bytes": target.stat().st_size, "rows": rows, "answers": found})
        return
    console = err_console()
    for item in found:
        console.print(f"{item['model']} on {item['gpu']}: {item['headline']}", markup=False)
    typer.echo(target)


def default_out(runs: list[Path]) -> Path:
    """Return where the page goes when nobody says: into the run; beside the caller for several runs or a file."""
    return runs[0] / "report.html" if len(runs) == 1 and runs[0].is_dir() else Path("report.html")
