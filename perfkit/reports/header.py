"""What a report says before its figures: what was run, on what, how to run it again, and what to be careful about."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from perfkit.reports import select
from perfkit.reports.text import count, integer, is_missing, join, method_text, percent

if TYPE_CHECKING:
    import pandas as pd

#: Fewer samples than this carry no interval worth the name.
FEW_SAMPLES = 10
_PLACES = ("gpu", "device", "gpu_info", "device_info", "worker", "info", "clocks", "nvml")


def lookup(manifest: Mapping[str, Any], *names: str) -> Any:
    """Return the first of ``names`` that the manifest or one of its parts about the device holds, else None."""
    parts = [manifest, *(manifest[place] for place in _PLACES if isinstance(manifest.get(place), Mapping))]
    parts += [part["clocks"] for part in parts if isinstance(part.get("clocks"), Mapping)]
    for name in names:
        for part in parts:
            value = part.get(name)
            if value is not None and not isinstance(value, (Mapping, list)) and value != "":
                return value
    return None


#: Flags whose next word is where a command writes.
_OUT_FLAGS = ("--out", "-o")


def command(manifest: Mapping[str, Any]) -> str | None:
    """Return the command line of a run, ready for a shell."""
    argv = manifest.get("argv")
    if not isinstance(argv, list) or not argv:
        return None
    words = [str(word) for word in argv]
    # Where it went is a place of that machine, and not empty any more.
    for flag in _OUT_FLAGS:
        if flag in words[:-1]:
            place = words.index(flag)
            del words[place : place + 2]
    words = [word for word in words if not word.startswith("--out=")]
    first = PurePath(words[0])
    words[0] = "perfkit" if first.name == "__main__.py" else first.name
    return shlex.join(words)


def facts(frame: pd.DataFrame, manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, value) pairs about one run; what neither the rows nor the manifest say is left out."""
    data = select.prepare(frame)
    packages = manifest.get("packages")
    packages = packages if isinstance(packages, Mapping) else {}
    # The driver's clock in a manifest is that of an idle GPU; the rows hold the one during timing.
    clocked = [data.loc[data["source"].eq(source), "sm_clock_mhz"].dropna() for source in select.TIMED]
    timed = clocked[0] if len(clocked[0]) else clocked[1]
    highest, memory = lookup(manifest, "sm_clock_max_mhz"), lookup(manifest, "memory_clock_max_mhz")
    clocks = [
        f"SM {integer(timed.median())} MHz while timing" if len(timed) else "",
        f"SM at most {integer(highest)} MHz" if _is_number(highest) else "",
        f"memory at most {integer(memory)} MHz" if _is_number(memory) else "",
    ]
    git = manifest.get("git")
    revision = git.get("revision") if isinstance(git, Mapping) else manifest.get("git_revision")
    modified = " (modified)" if isinstance(git, Mapping) and git.get("modified") else ""
    controls = data[select.is_baseline(data)]
    pairs = [
        ("Model", _values(data, "model")),
        ("GPU", _gpu(data, manifest)),
        ("Driver", _text(lookup(manifest, "driver", "driver_version"))),
        ("Clocks", ", ".join(filter(None, clocks))),
        ("Implementation", _implementation(data, packages)),
        ("Workload", _workload(data)),
        ("State dtype", _values(data, "state_dtype")),
        ("Input dtype", _values(data, "input_dtype")),
        ("L2", _values(data, "l2_state")),
        ("Roofs", _roofs(data, manifest)),
        ("Baseline", _baseline(controls)),
        ("Evidence", _evidence(data)),
        ("Counters", _text(manifest.get("counters"))),
        ("Cases", statuses(data)),
        ("Started", _text(manifest.get("started") or manifest.get("start"))),
        ("Revision", f"{str(revision)[:12]}{modified}" if revision else ""),
        ("Versions", ", ".join(f"{n} {packages[n]}" for n in ("perfkit", "torch", "triton") if packages.get(n))),
    ]
    return [(name, value) for name, value in pairs if value]


def shared(runs: Sequence[list[tuple[str, str]]]) -> dict[str, list[tuple[str, Any]]]:
    """Sort the facts of runs: ``same``, (name, value), and ``different``, (name, values by run; empty for none)."""
    named = [dict(facts) for facts in runs]
    names = dict.fromkeys(name for facts in named for name in facts)
    values = {name: [facts.get(name, "") for facts in named] for name in names}
    return {
        "same": [(name, found[0]) for name, found in values.items() if len(set(found)) == 1],
        "different": [(name, found) for name, found in values.items() if len(set(found)) > 1],
    }


def all_warnings(runs: Mapping[str, list[str]]) -> list[str]:
    """Join the warnings of runs by name: each once, with the names of the runs that it is about unless it is all."""
    found: dict[str, list[str]] = {}
    for name, texts in runs.items():
        for text in texts:
            found.setdefault(text, []).append(name)
    return [text if len(names) == len(runs) else f"{join(names)}: {text}" for text, names in found.items()]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not is_missing(value)


def _text(value: Any) -> str:
    return "" if is_missing(value) and not isinstance(value, str) else str(value)


def _values(data: pd.DataFrame, name: str) -> str:
    return join(dict.fromkeys(str(value) for value in data[name].dropna()))


def _gpu(data: pd.DataFrame, manifest: Mapping[str, Any]) -> str:
    keys = _values(data, "gpu")
    name = lookup(manifest, "gpu_name", "nvml_name") or lookup({"gpu": manifest.get("gpu")}, "name")
    uuid = lookup(manifest, "gpu_uuid", "uuid")
    text = f"{name} ({keys})" if name and keys and str(name) != keys else str(name or keys)
    return f"{text}, {uuid}" if uuid else text


def _implementation(data: pd.DataFrame, packages: Mapping[str, Any]) -> str:
    """Return whose kernels the methods are; a plug-in is named by its file and object."""
    methods = list(dict.fromkeys(data.loc[data["status"].ne("skipped"), "method"]))
    own = [name for name in methods if ":" not in name]
    parts = [f"perfkit's Triton kernels of {join(own)}" if own else ""]
    parts += [f"plug-in {name}" for name in methods if ":" in name]
    return join(parts) + (f", Triton {packages['triton']}" if packages.get("triton") else "")


def _workload(data: pd.DataFrame) -> str:
    """Return phases, batches, windows, draft lengths, acceptances, flushes and layers, in a few words."""
    axes = ((letter, _span(data[name])) for letter, name in (("B", "batch"), ("L", "window"), ("T", "draft_len")))
    accepted = _values(data[data["phase"].eq("verify")], "acceptance")
    flushes = _values(data, "flush_phase")
    layers = _span(data["n_layers"])
    parts = [
        _values(data, "phase"),
        *(f"{letter} = {span}" for letter, span in axes if span),
        f"accepted {accepted}" if accepted else "",
        f"{flushes} flushes" if flushes else "",
        f"{layers} {'layer' if layers == '1' else 'layers'}" if layers else "",
    ]
    return "; ".join(filter(None, parts))


def _span(column: pd.Series[Any]) -> str:
    """Write the values of a column; of many the first two and the last."""
    found = [integer(value) for value in sorted(set(column.dropna()))]
    return ", ".join(found if len(found) <= 4 else [*found[:2], "…", found[-1]])


def _roofs(data: pd.DataFrame, manifest: Mapping[str, Any]) -> str:
    """Return which roofs a run went by; runs of before that was written down have its kind in their rows."""
    roofs = manifest.get("roofs")
    if isinstance(roofs, Mapping) and roofs.get("text"):
        return str(roofs["text"])
    return _values(data[data["roof_gb_s"].notna()], "roof_source")


def _baseline(controls: pd.DataFrame) -> str:
    methods = join(dict.fromkeys(controls["method"]))
    if not methods:
        return "none in these rows"
    configs = list(dict.fromkeys(controls["launch_config"].dropna()))
    shown = configs[0] if len(configs) == 1 else f"{len(configs)} launch configurations"
    return f"{methods} of the same group" + (f", {shown}" if configs else "")


def _evidence(data: pd.DataFrame) -> str:
    ok = data[data["status"].eq("ok")]
    return join(f"{n:,} {source}" for source in select.SOURCES if (n := int(ok["source"].eq(source).sum())))


def statuses(data: pd.DataFrame) -> str:
    """Count cases by status: ``47 ok, 1 oom``; the worst never hidden behind a total."""
    counts = data["status"].value_counts()
    order = ["ok", *(name for name in counts.index if name != "ok")]
    return ", ".join(f"{int(counts[name]):,} {name}" for name in order if name in counts) or "none"


def warnings(frame: pd.DataFrame, manifest: Mapping[str, Any] | None = None) -> list[str]:
    """Return what a reader must know before trusting the numbers, one sentence each; the gravest first."""
    data = select.prepare(frame)
    manifest = manifest or {}
    result = []
    if not len(data):
        return ["The run has no rows."]
    bad = data[data["status"].ne("ok")]
    for status, rows in bad.groupby("status", sort=False):
        reasons = list(dict.fromkeys(str(reason) for reason in rows["reason"].dropna()))
        shown = "; ".join(reasons[:3]) + (f"; {count(len(reasons) - 3, 'more reason')}" if len(reasons) > 3 else "")
        result.append(f"{count(len(rows), 'case')} ended as {status}" + (f": {shown}" if shown else "") + ".")
    result.sort(key=lambda text: " incorrect" not in text)
    ok = data[data["status"].eq("ok")]
    timed = ok[ok["us"].notna()]
    measured, recorded = timed[timed["source"].eq("measured")], timed[timed["source"].eq("recorded")]
    predicted = ok[ok["model_us"].notna()]
    if len(predicted) and not len(timed):
        result.append("Nothing was timed: every time in this report is predicted from bytes.")
    elif len(recorded) and not len(measured):
        result.append("Nothing was timed in this run: recorded times were measured earlier and shipped with perfkit.")
    loose = predicted[predicted["roof_source"].eq("datasheet")]
    if len(loose):
        result.append(
            f"Uncalibrated: {count(len(loose), 'prediction rests', 'predictions rest')} on the datasheet's bandwidth, "
            "not on roofs measured on such a GPU."
        )
    bare = predicted[predicted["model_lo"].isna() | predicted["model_hi"].isna()]
    if len(bare):
        result.append(f"{count(len(bare), 'prediction has', 'predictions have')} no interval.")
    above = ok[ok["roof_fraction"].gt(1)]
    if len(above):
        worst = select.row_at(above, "roof_fraction", largest=True)
        result.append(
            f"Above the roof: {count(len(above), 'case')}, up to {percent(worst['roof_fraction'], 0)} "
            f"({method_text(worst['method'], worst['window'])}, B = {integer(worst['batch'])}): the roof is a slower "
            "GPU's or wrong, or the count of bytes is, or data came from a cache."
        )
    hot = data[data["n_throttled"].gt(0)]
    if len(hot):
        result.append(
            f"Throttled: {count(int(hot['n_throttled'].sum()), 'sample')} in {count(len(hot), 'case')} were taken "
            "while the clocks were held down, and dropped."
        )
    few = timed[timed["n_samples"].lt(FEW_SAMPLES)]
    if len(few):
        result.append(f"Few samples: {count(len(few), 'case')} with fewer than {FEW_SAMPLES}.")
    early = measured[measured["stop_reason"].isin(("max_samples", "max_time"))]
    if len(early):
        result.append(f"{count(len(early), 'case')} stopped at a limit before the interval was narrow enough.")
    unchecked = ok[ok["checked"].eq("no")]
    if len(unchecked):
        reasons = list(dict.fromkeys(str(reason) for reason in unchecked["reason"].dropna()))
        why = f" ({'; '.join(reasons[:2])})" if reasons else ""
        result.append(
            f"Unchecked: the kernels of {count(len(unchecked), 'case')} were not compared with the oracle{why}."
        )
    gpu = manifest.get("gpu")
    if isinstance(gpu, Mapping) and len(measured):
        others = gpu.get("processes")
        if isinstance(others, list) and others:
            result.append(
                f"Not alone: {count(len(others), 'other process', 'other processes')} on the GPU at the start."
            )
        if gpu.get("is_mig"):
            result.append(
                "The GPU is a MIG instance: its share of bandwidth is not the whole GPU's, which the roofs are."
            )
    planned = manifest.get("case_ids")
    if isinstance(planned, list) and len(set(planned)) > data["case_id"].nunique():
        missing = len(set(planned) - set(data["case_id"]))
        result.append(
            f"Unfinished run: {count(missing, 'case')} of {count(len(set(planned)), 'case')} did not run yet."
        )
    return result
