"""Measured rows to fits of what kernels reach (:mod:`perfkit.roofline.fitting`), and to the file that holds them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from perfkit.derive import observation
from perfkit.method import Case, Config
from perfkit.profiles import Gpu, load_gpu, load_measured
from perfkit.profiles.measured import windows_folder
from perfkit.registry import get_method
from perfkit.roofline import Roofs
from perfkit.roofline.efficiency import PARAMETERS, WIDEST, Efficiency
from perfkit.roofline.fitting import Key, Observation, covered, errors, fit, fit_all
from perfkit.roofline.heldout import HeldOut, Summary, held_out, loan, summary
from perfkit.shape import Shape

Row = Mapping[str, Any]
#: Gives the roofs that the times of a GPU are held against.
RoofsOf = Callable[[Gpu], Roofs]
HEAD = """\
# What the kernels of a method add to the bound from bytes over measured roofs: perfkit/roofline/efficiency.py.
# Written by `perfkit fit` from the rows and roofs named under sources; do not edit. lo and hi are 95 %.
# left_out: errors on each model's rows under a fit to the other models alone, and the share inside that fit's interval.
# held_out: the same of all rows, each predicted without its model's rows of the method; covered by the 90 % interval.
# loan: half width of the 95 % interval, as a factor less 1, of what was predicted from another family's kernels.
"""
WORST = 10


@dataclass(frozen=True, slots=True)
class Timed:
    """Rows that a fit can use.

    Attributes:
        observations: by family, method, phase and GPU.
        rows: the same, as they were given.
        rewritten: rows of kernels that have been rewritten since: the method has no such launch configuration now.
        other: rows without a time of their own kernels with L2 cold and reads in the format of the state.
    """

    observations: dict[Key, list[Observation]] = field(default_factory=dict)
    rows: dict[Key, list[Row]] = field(default_factory=dict)
    rewritten: list[Row] = field(default_factory=list)
    other: list[Row] = field(default_factory=list)


def load_fitted(directory: Path | None = None) -> list[dict[str, Any]]:
    """Return the rows that ship for fits: of all runs, and of sweeps of the window the longest.

    From :data:`~perfkit.roofline.efficiency.WIDEST` on, which few runs have. What fits then say of the shorter ones is
    held against times that none has seen.

    Args:
        directory: where the rows are; sweeps are in a folder beside it.

    Raises:
        InputError: as :func:`perfkit.profiles.load_measured`.
    """
    swept = load_measured(directory=windows_folder(directory))
    return load_measured(directory=directory) + [row for row in swept if (row["window"] or 0) >= WIDEST]


def case_of(row: Row) -> Case:
    """Return the case of a row.

    Raises:
        ValueError: the row's case_id is not that of the case that its columns name.
    """
    shape = Shape(row["family"], *(int(row[name]) for name in ("n_v_heads", "n_k_heads", "d_v", "d_k")))
    whole: dict[str, Any] = {name: int(row[name]) for name in ("batch", "draft_len", "n_layers")}
    plain = ("acceptance", "flush_phase", "tree", "input_dtype", "state_dtype")
    read = row["read_dtype"] if row["read_dtype"] != row["state_dtype"] else None
    options = tuple(sorted(json.loads(row["options"]).items())) if row.get("options") else ()
    window = None if row["window"] is None else int(row["window"])
    case = Case(shape, row["method"], window=window, read_dtype=read, options=options, **whole,
                **{name: row[name] for name in plain})  # fmt: skip
    if case.id != row["case_id"]:
        raise ValueError(f"row {row['case_id']} is not the case that its columns name")
    return case


def timed(rows: Iterable[Row], roofs_of: RoofsOf) -> Timed:
    """Sort out what there is to fit: rows with a time, L2 cold, without options or lower read precision.

    Args:
        rows: of results, missing values None.
        roofs_of: a function of a GPU's profile, such as :func:`perfkit.roofline.shipped_roofs`.

    Raises:
        InputError: a GPU without a profile or roofs, an unknown method.
    """
    found = Timed()
    gpus: dict[str, tuple[Gpu, Roofs]] = {}
    for row in rows:
        plain = row["status"] == "ok" and row["source"] in ("measured", "recorded") and row["l2_state"] == "cold"
        if not plain or row["options"] or row["read_dtype"] not in (None, row["state_dtype"]):
            found.other.append(row)
            continue
        case = case_of(row)
        method = get_method(case.shape.family, case.method, case.phase)
        if row["launch_config"] not in map(str, method.configs(case)):
            found.rewritten.append(row)
            continue
        if row["gpu"] not in gpus:
            gpu = load_gpu(row["gpu"])
            gpus[row["gpu"]] = gpu, roofs_of(gpu)
        key = (row["family"], row["method"], row["phase"], row["gpu"])
        found.observations.setdefault(key, []).append(observation(row, case, *gpus[row["gpu"]]))
        found.rows.setdefault(key, []).append(row)
    return found


def left_out(key: Key, seen: Sequence[Observation], shared: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return how each model's rows are predicted by a fit to the others, windows beyond all of theirs left out."""
    models = sorted({one.model for one in seen})
    out = []
    for model in models if len(models) > 1 else ():
        found = fit(key, [one for one in seen if one.model != model], shared)
        wide = "wide" in found.intervals
        rest = [one for one in seen if one.model == model and (wide or (one.window or 0) <= WIDEST)]
        error = errors(found, rest)
        worst = float(error[np.argmax(np.abs(error))])
        out.append({"model": model, "rms": float(np.sqrt(np.mean(error**2))), "worst": worst,
                    "covered": covered(found, rest)})  # fmt: skip
    return out


@dataclass(frozen=True, slots=True)
class Refit:
    """Fits, and how good they are.

    Attributes:
        timed: what they were fitted to.
        fits: one for each method that had enough times.
        held: every row as fits predict it that have not seen its model's rows of the method.
        loan: :func:`perfkit.roofline.heldout.loan`.
    """

    timed: Timed
    fits: tuple[Efficiency, ...]
    held: tuple[HeldOut, ...]
    loan: dict[str, float] | None

    @property
    def summary(self) -> Summary | None:
        """Errors of held-out rows; None where nothing can be held out."""
        return summary(self.held) if self.held else None

    @property
    def worst(self) -> list[HeldOut]:
        """The held-out rows that are predicted worst, first of all the worst."""
        return sorted(self.held, key=lambda one: -abs(one.error))[:WORST]


def refit(rows: Iterable[Row], roofs_of: RoofsOf) -> Refit:
    """Fit every method that the rows hold enough times of.

    Raises:
        InputError: as :func:`timed`.
    """
    found = timed(rows, roofs_of)
    fits = fit_all(found.observations)
    return Refit(found, fits, tuple(held_out(found.observations)), loan(found.observations, fits))


def document(found: Refit, sources: Mapping[Key, Sequence[str]], dates: Mapping[Key, str]) -> str:
    """Return fits as the text of a YAML file.

    Args:
        found: the fits.
        sources: names of the files that each fit is from.
        dates: the day of its last row.
    """
    text = HEAD
    if found.loan is not None:
        text += f"loan: {{width: {found.loan['width']:.4f}, n: {found.loan['n']}}}\n"
    if found.summary is not None:
        said = found.summary
        text += (f"held_out: {{n: {said.n}, median: {said.median:.4f}, p95: {said.p95:.4f}, "
                 f"covered: {said.covered:.4f}}}\n")  # fmt: skip
    text += "fits:\n" if found.fits else "fits: []\n"
    for one in found.fits:
        key = (one.family, one.method, one.phase, one.gpu)
        text += _entry(one, found.timed.observations[key], found.timed.rows[key], sources[key], dates[key])
    return text


def resources(rows: Sequence[Row]) -> dict[str, int] | None:
    """Return what a program took at the largest batch: registers, shared memory, warps; None where rows do not say."""
    row = max(rows, key=lambda row: (row["batch"], row["draft_len"], row["window"] or 0))
    warps = dict(Config.parse(row["launch_config"] or "-").values).get("warps")
    if warps is None or row.get("registers") is None or row.get("shared_bytes") is None:
        return None
    return {"registers": int(row["registers"]), "shared_bytes": int(row["shared_bytes"]), "warps": warps}


def _entry(found: Efficiency, seen: Sequence[Observation], rows: Sequence[Row], files: Sequence[str], date: str) -> str:
    """Return one fit as YAML."""
    key = (found.family, found.method, found.phase, found.gpu)
    own = dict(found.intervals)
    shared = {name: getattr(found, name) for name, (without, *_) in PARAMETERS.items()
              if name not in own and getattr(found, name) != without}  # fmt: skip
    lines = [f"family: {found.family}", f"method: {found.method}", f"phase: {found.phase}", f"gpu: {found.gpu}",
             f'date: "{date}"', f"sources: [{', '.join(files)}]", f"n: {len(seen)}",
             f"models: [{', '.join(sorted({one.model for one in seen}))}]",
             f"batches: {sorted({one.batch for one in seen})}",
             f"windows: {sorted({one.window for one in seen if one.window})}", "parameters:"]  # fmt: skip
    # What verify shares with decode was fitted there, and has its interval there.
    for name, (lo, hi) in (own | {name: (value, value) for name, value in shared.items()}).items():
        lines.append(f"  {name}: {{value: {getattr(found, name):.5g}, lo: {lo:.5g}, hi: {hi:.5g}}}")
    kernel = resources(rows)
    others = left_out(key, seen, shared)
    lines += [f"spread: {found.spread:.4f}", f"width: {found.width:.4f}", f"freedom: {found.freedom:g}",
              *([f"kernel: {{{', '.join(f'{name}: {value}' for name, value in kernel.items())}}}"] if kernel else []),
              "left_out:" if others else "left_out: []"]  # fmt: skip
    for one in others:
        lines.append(f"  - {{model: {one['model']}, rms: {one['rms']:.4f}, worst: {one['worst']:.4f}, "
                     f"covered: {one['covered']:.3f}}}")  # fmt: skip
    return "  - " + "\n    ".join(lines) + "\n"
