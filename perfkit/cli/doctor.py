"""``perfkit doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfkit.cli.common import JsonOption, err_console, out_console, print_json
from perfkit.errors import ExitCode

MARKS = {"ok": "green", "missing": "yellow", "broken": "red"}


def doctor(
    json: JsonOption = False,
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where run folders go.")] = Path("runs"),
) -> int:
    """Say what works on this machine, what does not, and why.

    Exit code 3 if something that perfkit cannot do without is broken, else 0.
    """
    from rich.markup import escape

    from perfkit.doctor import Finding, examine

    findings: list[Finding] = []
    console = out_console()
    with err_console().status("asking a child process about torch and Triton"):
        for finding in examine(runs):
            findings.append(finding)
            if not json:
                color = MARKS[finding.state]
                line = f"[{color}]{finding.state:<8}[/{color}]{finding.name:<17}{escape(finding.detail)}"
                console.print(line, soft_wrap=True)
                if finding.remedy:
                    console.print(f"{'':25}-> {escape(finding.remedy)}", soft_wrap=True)
    broken = [finding for finding in findings if finding.required and finding.state == "broken"]
    if json:
        print_json({"ok": not broken, "findings": findings})
    elif broken:
        console.print(f"perfkit does not work here: {', '.join(finding.name for finding in broken)}")
    return int(ExitCode.INCOMPLETE if broken else ExitCode.OK)
