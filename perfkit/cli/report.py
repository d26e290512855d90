"""``perfkit report``: runs to one HTML page, and to a CSV, a table in markdown or pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from perfkit.cli.common import JsonOption, err_console, print_json, say
from perfkit.errors import InputError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, results.csv files, or names of shipped measurements."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FILE", help="Default: report.html in the run folder; here for several runs."
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write every row and column of all runs as CSV.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables for a pull request.")] = False,
    png: Annotated[
        Path | None,
        typer.Option("--png", metavar="DIR", help="Write each figure as a PNG; needs Chrome and kaleido."),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Write one offline HTML page from finished runs.

    Several runs stand in one page, by model and GPU; a run of a model and GPU that an earlier one was measured on is
    compared with that one, as `perfkit compare` does, worst cases first. With --csv, --markdown or --png the page
    itself is written only where -o says.

    Examples:
        perfkit report runs/my-run
        perfkit report runs/before runs/after -o both.html
        perfkit report nemotron-super-h200 -o shipped.html
        perfkit report runs/my-run --markdown > table.md
        perfkit report runs/my-run --csv rows.csv --png figures/
    """
    if json_ and markdown:
        raise InputError("choose one of them", field="--json, --markdown")
    exports = csv is not None or markdown or png is not None
    target = out if out is not None or exports else default_out(runs)

    from perfkit.reports.changes import changes
    from perfkit.reports.output import check_page, check_writable, write_text
    from perfkit.reports.page import answers, render
    from perfkit.reports.png import check_png, write_png
    from perfkit.reports.runs import load_all, merged

    if target is not None:
        check_page(target)
    if csv is not None:
        check_writable(csv, "--csv")
    if png is not None:
        check_png(png)
    loaded = load_all(runs)
    found = changes(loaded)
    written: dict[str, Any] = {"report": target}
    if target is not None:
        write_text(render(loaded), target)
    if csv is not None:
        written["csv"] = write_text(merged(loaded).to_csv(index=False), csv, "--csv")
    if png is not None:
        written["png"] = write_png(loaded, png)
    if json_:
        size = None if target is None else target.stat().st_size
        rows = sum(len(run.frame) for run in loaded)
        compared = [
            {"base": change.base, "new": change.new, "verdict": change.verdict, "headline": change.headline}
            for change in found
        ]
        print_json(written | {"bytes": size, "rows": rows, "answers": answers(loaded), "changes": compared})
        return
    if markdown:
        from perfkit.reports.markdown import markdown as tables

        typer.echo(tables(loaded), nl=False)
    else:
        console = err_console()
        for change in found:
            console.print(change.headline, markup=False)
        for item in answers(loaded):
            where = ", ".join(filter(None, (f"{item['model']} on {item['gpu']}", item["workload"])))
            console.print(f"{where}: {item['headline']}", markup=False)
    paths = [path for path in (target, csv, *written.get("png", ())) if path is not None]
    for path in paths:
        # Of --markdown, stdout holds the tables alone.
        say(str(path)) if markdown else typer.echo(path)


def default_out(runs: list[Path]) -> Path:
    """Return where the page goes when nobody says: into the run; beside the caller for several runs or a file."""
    return runs[0] / "report.html" if len(runs) == 1 and runs[0].is_dir() else Path("report.html")
