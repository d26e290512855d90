"""``perfkit check``: every kernel against the oracle, in the interpreter, on this machine's GPU, and compiled."""

from __future__ import annotations

from typing import Annotated

import typer

from perfkit.cli.common import JsonOption


def check(
    family: Annotated[str | None, typer.Option("--family", metavar="NAME", help="mamba2; default: all.")] = None,
    method: Annotated[
        str, typer.Option("--method", metavar="KEY,…|all|FILE.py:METHOD", help="Which methods, or somebody's own.")
    ] = "all",
    compile: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Also compile for GPUs of five architectures.")
    ] = True,
    model: Annotated[
        str | None, typer.Option("--model", metavar="KEY|FILE", help="Whose shape is compiled. Default: a large one.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of all random data.")] = 0,
    json: JsonOption = False,
) -> int:
    """Check every kernel against the float64 oracle.

    Small cases run in Triton's interpreter: outputs, states, flush times, memory that must not change, and the bytes
    touched, which must equal what the method declares. Where there is a usable GPU the same cases and BF16 run on it.
    Then the default configurations are compiled for compute capability 8.0, 9.0, 10.0, 10.3 and 12.0 and must not
    spill registers. Exit code 1 if anything is incorrect, 3 if a case crashed, hung or failed to compile.

    Examples:
        perfkit check
        perfkit check --method replay --no-compile
        perfkit check --method my_kernel.py:METHOD --json
        perfkit check --family mamba2 --model nemotron-nano --seed 7
    """
    from perfkit.cli import check_run

    return check_run.run(family, method, compile, model, seed, as_json=json)
