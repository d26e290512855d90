"""The program ``perfkit``: finds the command, turns every way it can end into one line and an exit code.

A command is a function in a module of its own, which is imported when the command runs or its help is shown. So
``perfkit --help`` costs no more than the command-line library.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from perfkit import __version__
from perfkit.errors import ExitCode, PerfkitError

#: 128 + SIGPIPE, what a shell reports for a program whose reader went away (`perfkit list models | head -1`).
PIPE_CLOSED = 141


@dataclass(frozen=True, slots=True)
class Command:
    """Where a command lives: a function of a module, and the first line of its docstring for the overview."""

    module: str
    function: str
    summary: str


#: In the order of the overview. A test holds every summary equal to the first line of the function's docstring.
COMMANDS = MappingProxyType(
    {
        "sweep": Command(
            "perfkit.cli.sweep", "sweep", "Measure, or without a GPU predict, every method at every point."
        ),
        "traffic": Command("perfkit.cli.traffic", "traffic", "Show bytes, FLOPs, intensity and the best window."),
        "plan": Command("perfkit.cli.plan", "plan", "Say what to run for a model under a load, and whether it pays."),
        "check": Command("perfkit.cli.check", "check", "Check every kernel against the float64 oracle."),
        "compare": Command(
            "perfkit.cli.compare", "compare", "Compare two runs, case by case, by the ratio to the control."
        ),
        "roofline": Command(
            "perfkit.cli.roofline", "roofline", "Measure this GPU's roofs, or show those that are known of a GPU."
        ),
        "fit": Command("perfkit.cli.fit", "fit", "Fit what kernels reach, and show how well that predicts."),
        "profile": Command("perfkit.cli.profile", "profile", "Hold DRAM counters of Nsight Compute against the model."),
        "reproduce": Command(
            "perfkit.cli.reproduce", "reproduce", "Show a figure of the paper: published, ours, their ratio."
        ),
        "report": Command("perfkit.cli.report", "report", "Write one offline HTML page from finished runs."),
        "list": Command("perfkit.cli.list", "list_", "List models, GPUs, methods, runs or the shipped measurements."),
        "doctor": Command("perfkit.cli.doctor", "doctor", "Say what works on this machine, what does not, and why."),
    }
)


def load_command(name: str) -> Any:
    """Import a command's module and return its function."""
    command = COMMANDS[name]
    return getattr(import_module(command.module), command.function)


def keep_lines(text: str) -> str:
    """Mark the paragraphs of a help text that have indented lines (examples), so that they are not filled anew."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(f"\b\n{part}" if "\n " in f"\n{part}" else part for part in paragraphs)


class LazyGroup(typer.core.TyperGroup):
    """A group whose commands are imported when asked for, and whose overview imports none."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import one command; None for a name that is none."""
        if cmd_name not in COMMANDS:
            return None
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        function = load_command(cmd_name)
        app.command(cmd_name, help=keep_lines(inspect.getdoc(function) or ""))(function)
        return typer.main.get_command(app)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the overview from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Interrupts and closed pipes are caught before the library gives them its own meaning."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print("perfkit: interrupted", file=sys.stderr)
            return int(ExitCode.INTERRUPTED)
        except BrokenPipeError:
            return PIPE_CLOSED


def _group() -> Any:
    app = typer.Typer(
        cls=LazyGroup,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        invoke_without_command=True,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    )

    @app.callback()
    def perfkit(
        ctx: typer.Context,
        version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    ) -> None:
        """Which state management for a state-space layer, on which GPU, and what it gains."""
        if version:
            typer.echo(f"perfkit {__version__}")
            raise typer.Exit
        if ctx.invoked_subcommand is None:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(int(ExitCode.USAGE))

    return typer.main.get_command(app)


def _error(line: str) -> None:
    print(f"perfkit: error: {' '.join(line.split())}", file=sys.stderr)


def _usage_message(error: Exception) -> str | None:
    """Return the line for an error of the command-line library, None for any other exception.

    Told apart by shape: the library's exception classes have moved between its releases.
    """
    if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
        return None
    ctx = getattr(error, "ctx", None)
    hint = f" (see {ctx.command_path} --help)" if ctx is not None else ""
    message = error.format_message().replace("Value error, ", "").rstrip(".")
    return f"{message}{hint}"


def run(args: Sequence[str] | None = None) -> int:
    """Run ``perfkit ARGS`` (default: the process's own) and return its exit code. Prints at most one line of error.

    ``PERFKIT_DEBUG=1`` shows the traceback of errors as well.
    """
    debug = os.environ.get("PERFKIT_DEBUG", "") not in ("", "0")
    try:
        result = _group().main(args=None if args is None else list(args), prog_name="perfkit", standalone_mode=False)
    except PerfkitError as error:
        if debug:
            traceback.print_exc()
        _error(str(error))
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("perfkit: interrupted", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # the library ends with 1, which would mean a failed check
            return PIPE_CLOSED
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception as error:
        usage = _usage_message(error)
        if usage is not None:
            _error(usage)
            return int(ExitCode.USAGE)
        if debug:
            traceback.print_exc()
        hint = "" if debug else " (PERFKIT_DEBUG=1 shows the traceback)"
        _error(f"{type(error).__name__}: {error}{hint}")
        return int(ExitCode.INCOMPLETE)
    return result if isinstance(result, int) else 0


def main() -> None:
    """Entry point of the program ``perfkit``."""
    code = run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = PIPE_CLOSED
    if code == PIPE_CLOSED:
        # The interpreter flushes stdout once more as it ends; there is nobody to read that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)
