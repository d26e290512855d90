"""``perfkit compare``: two runs, by the ratio to the control inside each."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from perfkit.cli.common import JsonOption, print_json, print_table
from perfkit.errors import ExitCode, InputError


def compare(
    base: Annotated[
        str,
        typer.Argument(
            metavar="BASE", help="A run folder, its results.csv or .parquet, or a shipped measurement's name."
        ),
    ],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The same, of what is judged.")],
    fail_on_regression: Annotated[
        float | None,
        typer.Option(
            "--fail-on-regression",
            metavar="PCT",
            help="Exit 1 if a case is slower by more than PCT percent, or no longer ok.",
        ),
    ] = None,
    floor: Annotated[
        float | None,
        typer.Option(
            "--floor", metavar="PCT", help="What runs of the same code may differ by, in percent. Default: 0.5."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare runs of different GPUs or schema versions all the same.")
    ] = False,
    all_: Annotated[bool, typer.Option("--all", help="Show the cases that are the same as well.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a table for a pull request.")] = False,
    json: JsonOption = False,
) -> int:
    """Compare two runs, case by case, by the ratio to the control.

    Times are not compared across runs: a case's time over that of its control, timed in the same rounds, is. A case is
    slower or faster where that ratio changed by significantly more than the floor, corrected for the number of cases;
    the same where the interval lies within 2 %; else ambiguous; or missing, with what became of it.

    A regression is a case that is slower, by more than PCT in the middle of its interval, or one that was ok in BASE
    and that NEW tried without getting a time. What has a time in both runs and no control in one of them cannot be
    compared: it is named, and the last line counts such groups. Exit codes: 0; 1 a regression; 2 bad input, or nothing
    that could be compared.

    Examples:
        perfkit compare runs/before runs/after
        perfkit compare runs/before runs/after --fail-on-regression 3
        perfkit compare nemotron-super-h200 runs/after --json
        perfkit compare runs/before runs/after --markdown --all
    """
    for flag, value in (("--fail-on-regression", fail_on_regression), ("--floor", floor)):
        if value is not None and not 0 <= value < math.inf:
            raise InputError("must be a number of percent, 0 or more", field=flag, value=value)
    if json and markdown:
        raise InputError("choose one of them", field="--json, --markdown")

    from perfkit import compare as comparing

    share = comparing.FLOOR if floor is None else floor / 100
    found = comparing.compare(
        comparing.load(base), comparing.load(new), force=force, floor=share, fail_on=fail_on_regression
    )
    code = ExitCode.FAILED if found.regressions else ExitCode.OK
    if json:
        print_json(comparing.document(found) | {"exit_code": int(code)})
    elif markdown:
        print(comparing.markdown(found, everything=all_))
    else:
        body = comparing.rows(found, everything=all_)
        if body:
            print_table(comparing.COLUMNS, body, title=comparing.TITLE)
        print("\n".join(comparing.lines(found, everything=all_)))
    return code
