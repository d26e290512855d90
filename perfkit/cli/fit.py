"""``perfkit fit``: fit what kernels reach of their roofs, and say how well it predicts what it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfkit.cli.common import JsonOption
from perfkit.errors import InputError

if TYPE_CHECKING:
    from perfkit.refit import Refit, Row
    from perfkit.roofline import Efficiency


def fit(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN...]", help="Run folders of perfkit sweep on a GPU. Default: what ships."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where the fits go. Default: where every command finds them."),
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Write nothing: show the fits and their errors.", show_default=False)
    ] = False,
    json: JsonOption = False,
) -> int:
    """Fit what kernels reach, and show how well that predicts.

    Two to five parameters a method with their 95 % intervals: what a step waits for beyond its bytes, what each tile of
    records adds, what windows beyond 32 take over that, the share of the roof that it reaches, instructions over the
    ideal mix, what a step that flushes takes over the rest. Then every row as it is predicted without its model's rows
    of the method: errors, the share inside the 90 % interval, and the ten that are worst.

    Fits to your own runs are saved beside your own roofs ($PERFKIT_ROOFS, else perfkit/roofs under $XDG_DATA_HOME or
    ~/.local/share) and go before those that ship. Without a run the shipped rows are fitted, and nothing is saved
    unless --out says where.

    Examples:
        perfkit fit
        perfkit fit runs/20260102T030405Z-nemotron-super-h200 runs/20260103T030405Z-nemotron-nano-h200
        perfkit fit runs/20260102T030405Z-nemotron-super-h200 --show
        perfkit fit --out efficiency.yaml --json
    """
    from perfkit import refit, results
    from perfkit.profiles import roofs_folder
    from perfkit.profiles.measured import EFFICIENCY
    from perfkit.roofline import roofs_for, shipped_roofs

    if show and out is not None:
        raise InputError("saves what --show does not; leave one of them out", field="--out", value=str(out))
    own = runs or []
    rows, days = _rows(own)
    found = refit.refit(rows, roofs_for if own else shipped_roofs)
    if own and not found.fits:
        raise InputError("no method was timed at enough batches, with L2 cold: sweep more of them (--batch 1,16,256)",
                         field="RUN", value=" ".join(map(str, own)))  # fmt: skip
    file = None if show else out or (roofs_folder() / EFFICIENCY if own else None)
    if file is not None:
        names = [path.resolve().name for path in own] or ["shipped rows"]
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"no folder can be made: {error.strerror}", file=file.parent) from error
        results.write_text(file, refit.document(found, dict.fromkeys(found.timed.rows, names), days))
    if json:
        _print_json(found, file)
    else:
        _print(found, file)
    return 0


def _rows(runs: Sequence[Path]) -> tuple[list[Row], dict[Any, str]]:
    """Return the rows to fit and the last day of each family, method, phase and GPU among them.

    Raises:
        InputError: a folder that is no run of this version, or a run in which nothing was timed.
    """
    from perfkit import results
    from perfkit.refit import load_fitted

    rows: list[Row] = []
    days: dict[Any, str] = {}

    def add(row: dict[str, Any], day: str) -> None:
        rows.append(row)
        key = (row["family"], row["method"], row["phase"], row["gpu"])
        days[key] = max(day, days.get(key, ""))

    if not runs:
        for row in load_fitted():
            add(row, str(row["manifest"]["ended"])[:10])
    for run in runs:
        frame = results.load_run(run)
        manifest = results.read_manifest(run) if run.is_dir() else {}
        frame = frame[frame["source"].eq("measured").fillna(False)]
        if frame.empty:
            raise InputError("nothing was timed in it: a fit needs a run on a GPU", file=run)
        day = str(manifest.get("ended") or manifest.get("started") or "")[:10] or "unknown"
        for row in results.plain_rows(frame):
            add(row, day)
    return rows, days


#: Parameters of which each has a column; what a step waits for comes before them.
_SHOWN = ("record_share", "wide", "efficiency", "arithmetic", "flush")


def _print(found: Refit, file: Path | None) -> None:
    from perfkit.cli.common import print_table, say

    for gpu in dict.fromkeys(one.gpu for one in found.fits):
        lines = []
        for one in (one for one in found.fits if one.gpu == gpu):
            n = len(found.timed.observations[one.family, one.method, one.phase, one.gpu])
            wait = "walk_us" if one.walk_us else "overhead_us"
            shown = (_shown(one, name) for name in (wait, *_SHOWN))
            lines.append((f"{one.family} {one.method} {one.phase}", n, *shown, f"±{one.width:.0%}"))
        print_table((f"fitted on {gpu}", "rows", "waits µs", "a tile of records", "L > 32", "efficiency", "arithmetic",
                     "flush", "interval"), lines)  # fmt: skip
    print("\n".join(_said(found)))
    if found.worst:
        print_table(
            ("predicted worst", "method", "B", "T", "L", "µs", "predicted", "error", "from"),
            [(one.model, f"{one.key[1]} {one.key[2]}", *_point(found, one.case_id), round(one.time_us, 1),
              round(one.predicted_us, 1), f"{one.error:+.0%}", one.lender or one.key[0]) for one in found.worst],
        )  # fmt: skip
    if file is not None:
        say(f"saved {file}")


def _shown(found: Efficiency, name: str) -> str:
    """Return a parameter with its interval; one without is that of another fit, and one of no effect is a dash."""
    from perfkit.roofline.efficiency import PARAMETERS

    value, ends = getattr(found, name), found.intervals.get(name)
    if value == PARAMETERS[name][0] and (ends is None or ends[0] == ends[1]):
        return "-"
    tile = " a tile" if name == "walk_us" else ""
    span = "" if ends is None or ends[0] == ends[1] else f" [{ends[0]:.2g}..{ends[1]:.2g}]"
    return f"{value:.3g}{span}{tile}"


def _said(found: Refit) -> list[str]:
    """Return what there is to know of the fits in lines: held-out errors, loans, rows that were left out."""
    from perfkit.progress import count

    lines = []
    said = found.summary
    if said is not None:
        lines.append(
            f"held out   {count(said.n, 'row')}, each without its model's rows of the method: median error "
            f"{said.median:.1%}, 95th percentile {said.p95:.1%}, {said.covered:.0%} inside the 90 % interval"
        )
    else:
        lines.append("held out   nothing: it takes times of two models, or of two families")
    if found.loan is not None:
        lines.append(f"borrowed   a method that was not timed in its family is predicted from another's, ±"
                     f"{found.loan['width']:.0%} by {found.loan['n']:.0f} such loans")  # fmt: skip
    if found.timed.rewritten:
        lines.append(f"left out   {count(len(found.timed.rewritten), 'row')} of kernels that were written anew since")
    if found.timed.other:
        lines.append(f"left out   {count(len(found.timed.other), 'row')} without a time of their own, with L2 warm, "
                     "options or lower read precision")  # fmt: skip
    return lines


def _point(found: Refit, case_id: str) -> tuple[int, int, int | None]:
    one = next(one for seen in found.timed.observations.values() for one in seen if one.case_id == case_id)
    return one.batch, one.draft_len, one.window


def _print_json(found: Refit, file: Path | None) -> None:
    from perfkit.cli.common import print_json

    print_json({
        "fits": found.fits, "held_out": found.summary, "loan": found.loan,
        "rows": [
            {"model": one.model, "family": one.key[0], "method": one.key[1], "phase": one.key[2], "gpu": one.key[3],
             "case_id": one.case_id, "time_us": one.time_us, "predicted_us": one.predicted_us, "lo": one.lo,
             "hi": one.hi, "error": one.error, "inside": one.inside, "lender": one.lender}
            for one in found.held
        ],
        "rewritten": len(found.timed.rewritten), "other": len(found.timed.other),
        "file": None if file is None else file.name,
    })  # fmt: skip
