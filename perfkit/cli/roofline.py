"""``perfkit roofline``: measure this GPU's roofs, or show those that are known of a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfkit.cli.common import JsonOption

MAX_REPEAT = 10


def roofline(
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="auto|KEY", help="This machine's GPU, or one whose roofs to show.")
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE|DIR", help="Where the roofs go. Default: where every command finds them."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer sizes, shorter; saved only with --out.", show_default=False)
    ] = False,
    repeat: Annotated[
        int, typer.Option("--repeat", metavar="N", help="Measure N times, each in a process of its own, and compare.")
    ] = 1,
    compare: Annotated[
        Path | None, typer.Option("--compare", metavar="FILE", help="Compare with the roofs in this file.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="PCT", help="Of --repeat and --compare, percent.")
    ] = 2.0,
    show: Annotated[
        bool, typer.Option("--show", help="Measure nothing: show what every command uses.", show_default=False)
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Measure nothing: show the roofs in this file.")
    ] = None,
    json: JsonOption = False,
) -> int:
    """Measure this GPU's roofs, or show those that are known of a GPU.

    Bandwidth of reads, writes, copies, updates in place and mixes over the bytes moved, bandwidth of L2, rates of
    matrix products, costs of launches and graphs. They are saved for this user, and every later
    command goes by them: $PERFKIT_ROOFS, else perfkit/roofs under $XDG_DATA_HOME or ~/.local/share. Datasheet values
    stay apart, and stand in where nothing was measured.

    Without a GPU, or with another's key, it shows which roofs are used there: your own, those that ship, or the
    datasheet's.

    Exit code 1 if runs, or the file of --compare, differ by more than --tolerance in any roof. Roofs of runs that
    differ are saved only where --out says.

    Examples:
        perfkit roofline
        perfkit roofline --repeat 2
        perfkit roofline --gpu h200
        perfkit roofline --out roofs.yaml --compare last-week.yaml
        perfkit roofline --file roofs.yaml --compare last-week.yaml --json
    """
    from perfkit.cli import roofline_run
    from perfkit.errors import InputError

    if not 1 <= repeat <= MAX_REPEAT:
        raise InputError(f"must be from 1 to {MAX_REPEAT}", field="--repeat", value=repeat)
    if not 0 < tolerance < 100:
        raise InputError("must be above 0 and below 100", field="--tolerance", value=tolerance)
    measuring = {"--out": out is not None, "--quick": quick, "--repeat": repeat > 1}
    for flag, given in {"--show": show, "--file": file is not None}.items():
        for other in (name for name, asked in measuring.items() if given and asked):
            raise InputError(f"is for a measurement, and {flag} makes none; leave one of them out", field=other)
    if file is not None and (show or gpu != "auto"):
        raise InputError("says itself which GPU it is of; leave --show and --gpu out", field="--file", value=str(file))
    request = roofline_run.Request(gpu, out, quick, repeat, compare, tolerance / 100, show, file)
    return roofline_run.run(request, must=any(measuring.values()), as_json=json)
