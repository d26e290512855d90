"""The last lines of a sweep as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfkit.cases import draft_words
from perfkit.derive import is_bound
from perfkit.progress import count

if TYPE_CHECKING:
    from perfkit.roofline import Roofs

#: Columns that the name of a case takes at least.
CASE_WIDTH = 22
#: Groups whose best line is shown; the other groups are counted.
MAX_LINES = 12


def us(value: float | None) -> str:
    """Return a time without a unit, three digits at least: 4.62, 38.1, 302."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def case_text(row: Mapping[str, Any]) -> str:
    """Return which case a row is: ``B256 L16 replay``, ``B256 T4 a1 L16 replay``; a state not in FP32, staggered."""
    method = str(row["method"]).rsplit("/", 1)[-1]
    parts = [f"B{row['batch']}", *draft_words(row["draft_len"], row["acceptance"], row["tree"]),
             f"L{row['window']}" if row.get("window") is not None else "", method,
             "" if row["state_dtype"] == "float32" else row["state_dtype"],
             "" if row.get("flush_phase") in (None, "aligned") else row["flush_phase"]]  # fmt: skip
    return " ".join(part for part in parts if part)


def result_line(row: Mapping[str, Any], width: int = CASE_WIDTH) -> str:
    """Return a row's result: time and interval, speedup, share of the roof, limit; ``~`` marks a predicted time.

    ``width`` is what the case's name is padded to.
    """
    mark = "~" if row["source"] == "predicted" else " "
    parts = [f"{case_text(row):<{width}} {mark}{us(row['time_us'])} us"]
    if row.get("time_us_lo") and row.get("time_us_hi"):
        parts.append(f"[{us(row['time_us_lo'])},{us(row['time_us_hi'])}]")
    if row.get("speedup"):
        parts.append(f" {row['speedup']:.2f}x")
    if row.get("roof_fraction"):
        flag = " (above its roof)" if row["roof_fraction"] > 1 else ""
        parts.append(f" {row['roof_fraction']:.0%} roof{flag}")
    if row.get("limit"):
        parts.append(f" {row['limit']}")
    if is_bound(row):
        parts.append(" a bound")
    if row["phase"] == "verify" and row.get("conventional_steps"):
        parts.append(f" {row['conventional_steps']:.2f} conventional steps")
    return " ".join(parts)


def table_lines(table: Mapping[str, Any]) -> list[str]:
    """Return the table of a verify sweep: a line for each method and each way to find the best window."""
    mark = "~" if table["source"] == "predicted" else ""
    body = [
        [key.rsplit("/", 1)[-1] + (" (bound)" if table["bounds"][key] else ""),
         *(f"{mark}{us(time)}" if time else "-" for time in times)]
        for key, times in table["times"].items()
    ]  # fmt: skip
    names = {"run": f"best L {table['source']}", "model": "best L exact model", "eq16": "best L Eq. 16"}
    for way, name in names.items():
        values = table["windows"][way]
        if any(value is not None for value in values):
            body.append([name, *("-" if value is None else f"{value:.3g}" for value in values)])
    head = [f"{table['source']} us, B={table['batch']}", *table["points"]]
    first, *widths = (max(len(line[column]) for line in [head, *body]) for column in range(len(head)))
    lines = []
    for name, *cells in [head, *body]:
        padded = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
        lines.append("  ".join([f"{name:<{first}}", *padded]))
    if table["more"]:
        lines[0] += f"  … {table['more']} more"
    return lines


def counts_line(summary: Mapping[str, Any]) -> str:
    """Return how many cases ended how, with the first reason of each failure, and the A/A floor."""
    counts, reasons = summary["statuses"], summary["reasons"]
    parts = [f"{counts.get('ok', 0)}/{summary['total']} ok"]
    for status, number in counts.items():
        if status != "ok":
            reason = reasons.get(status)
            parts.append(f"{number} {status}" + (f" ({reason[:120]})" if reason else ""))
    text = ", ".join(parts)
    worst, quoted = summary["aa_floor"], summary["aa_reference"]
    if summary["source"] == "measured":
        text += f"; {_throttled_text(summary)}"
        if worst is None:
            text += "; A/A floor unknown"
    if quoted is not None and summary["control"]:
        text += f"; A/A floor {quoted:.1%} at B={summary['control']['batch']}, {worst:.1%} at worst"
    elif worst is not None:
        text += f"; A/A floor {worst:.1%}"
    return text


def _throttled_text(summary: Mapping[str, Any]) -> str:
    dropped = summary["throttled_samples"]
    if dropped is None:
        return "throttled samples unknown: the driver does not say"
    reasons = f" ({'; '.join(summary['throttle_reasons'])})" if dropped else ""
    return f"{count(dropped, 'sample')} throttled{reasons}"


def clock_text(clock: Mapping[str, Any] | None, power_limit_w: float | None = None) -> str | None:
    """Return how the GPU fared over the whole run, by :func:`perfkit.device.clock_summary`; None without a log."""
    if clock is None:
        return None

    def spread(name: str, unit: str) -> str | None:
        found = clock[name]
        if found is None:
            return None
        low, middle, high = (f"{found[which]:.0f}" for which in ("min", "median", "max"))
        return f"{middle} {unit}" + ("" if low == high else f" [{low},{high}]")

    power = spread("power_w", "W")
    if power is not None and power_limit_w:
        power += f" of {power_limit_w:.0f}"
    clocks = {"SM": spread("sm_clock_mhz", "MHz"), "memory": spread("memory_clock_mhz", "MHz"), "": power,
              " ": spread("temperature_c", "C")}  # fmt: skip
    parts = [f"{name} {text}".strip() for name, text in clocks.items() if text is not None] or ["idle throughout"]
    text = f"{', '.join(parts)}; throttled in {clock['throttled']} of {count(clock['readings'], 'reading')}"
    if clock["reasons"]:
        text += f" ({', '.join(clock['reasons'])})"
    if clock["others"]:
        text += f"; {count(clock['others'], 'other process', 'other processes')} on this GPU"
    return text


def _window_line(found: Mapping[str, Any], recorded: Mapping[str, Any] | None) -> str | None:
    parts = []
    if recorded is not None and recorded["batch"] == found["batch"]:
        parts.append(f"recorded {recorded['window']} of {', '.join(map(str, recorded['tried']))}")
    if found["window"] is not None:
        parts.append(f"{found['source']} {found['window']} of {', '.join(map(str, found['tried']))}")
    if found["model"] is not None:
        parts.append(f"exact model {found['model']}")
    if found["eq16"] is not None:
        cost = f" (would cost {found['cost']:.1%})" if found["cost"] is not None else ""
        parts.append(f"Eq. 16 {found['eq16']:.1f}{cost}")
    return f"{', '.join(parts)}; at B={found['batch']}" if parts else None


def _choice_line(found: Mapping[str, Any] | None) -> str | None:
    """Return what choosing the window by the model costs, of times of real runs; None where too few were timed."""
    if found is None:
        return None
    source = "" if found["source"] == "measured" else f"{found['source']}: "
    many = count(found["groups"], "case")
    if found["chosen"] == found["fastest"]:
        return f"{source}the model's L is the fastest that was timed, in {many}"
    point = " ".join([f"B={found['batch']}", *draft_words(found["draft_len"], found["acceptance"])])
    return (f"{source}the model's L costs {found['cost']:.1%} at most over the fastest that was timed, in {many} "
            f"({found['chosen']} for {found['fastest']} at {point})")  # fmt: skip


def _break_even_text(found: Mapping[str, Any]) -> str:
    smallest, largest = found["smallest"], found["largest"]
    high = f"above {largest}" if found["hi"] is None else f"{found['hi']:.3g}"
    if found["batch"] is None:
        low = "" if found["lo"] is None else f" (perhaps from {found['lo']:.3g})"
        return f"none up to {largest}{low}"
    if found["at_most"]:
        return f"at most batch {smallest}" + (f" [{smallest},{high}]" if found["hi"] != smallest else "")
    low = f"{found['lo']:.3g}"
    return f"batch {found['batch']:.3g}" + ("" if low == high else f" [{low},{high}]")


def _break_evens(found: Mapping[str, Any] | None, recorded: Mapping[str, Any] | None) -> str:
    """Return the break-even batch, of each kind of rows that there is; only a measured one goes without its kind."""

    def text(one: Mapping[str, Any], kind: str) -> str:
        return f"{kind}{_break_even_text(one)}" + (f" at {one['point']}" if one["point"] else "")

    kinds = [text(recorded, "recorded ")] if recorded else []
    if found:
        kinds.append(text(found, "" if found["source"] == "measured" else f"{found['source']} "))
    return "; ".join(kinds)


def _control_text(control: Mapping[str, Any], recorded: Mapping[str, Any] | None, source: str, tuned: bool) -> str:
    mark = "~" if source == "predicted" else ""
    text = f"{'tuned ' if tuned else ''}{control['method']} {mark}{us(control['time_us'])} us at {control['point']}"
    if control.get("time_default_us"):
        text += f"; default configuration {us(control['time_default_us'])} us"
    if control["unit_us"]:
        text += f"; one conventional step {mark}{us(control['unit_us'])} us"
    if recorded and (recorded["method"], recorded["point"]) == (control["method"], control["point"]):
        text += f"; recorded {us(recorded['time_us'])} us"
    return text


def _model_line(found: Mapping[str, Any] | None) -> str | None:
    if found is None:
        return None
    parts = []
    if found["n"]:
        kind = "" if found["source"] == "measured" else " against the recorded rows, which the model is fitted to"
        parts.append(f"median error {found['median']:.1%}, p95 {found['p95']:.0%}, worst B={found['worst_batch']} "
                     f"({found['worst']:+.0%}){kind}")  # fmt: skip
    if found["n_bounds"]:
        parts.append(f"without a fit the bound from bytes, in the median {found['bounds']:+.0%} off the time")
    return "; ".join(parts)


def _model_text(roofs: Roofs, fits: Mapping[str, str | None], loans: Mapping[str, str]) -> str:
    """Return what times are predicted with, and where it was fitted if not on this GPU and to this family's kernels."""
    text = f"{roofs.source} roofs"
    fitted = sorted({gpu for gpu in fits.values() if gpu is not None})
    if not fitted:
        return f"{text}, a bound"
    if fitted == [roofs.gpu]:
        text += " and fitted efficiencies"
    else:
        text += f", efficiencies fitted on {' and '.join(fitted)}"
    bare = [name.rsplit("/", 1)[-1] for name, gpu in fits.items() if gpu is None]
    notes = [f"none for {', '.join(bare)}: a bound"] if bare else []
    for lender in sorted(set(loans.values())):
        lent = [name.rsplit("/", 1)[-1] for name, family in loans.items() if family == lender]
        notes.append(f"{', '.join(lent)} after {lender}'s kernels")
    return text + (f" ({'; '.join(notes)})" if notes else "")


def _failed_control_text(found: Mapping[str, Any]) -> str:
    why = f" ({str(found['reason'])[:120]})" if found["reason"] else ""
    what = "missing" if found["status"] == "skipped" else "failed"
    return f"{what} at B={', '.join(map(str, found['batches']))}: {found['status']}{why}; no speedups there"


def device_text(gpu: Mapping[str, Any], l2_states: Sequence[str]) -> str:
    """Return the GPU as the line ``MEASURED`` names it: name, UUID, driver, SM clock, state of L2."""
    parts = [str(gpu.get("name") or gpu.get("key"))]
    if gpu.get("uuid"):
        uuid = str(gpu["uuid"])
        parts[0] += f" {uuid[:8]}" if uuid.startswith("GPU-") else f" {uuid[:12]}"
    if gpu.get("driver"):
        parts.append(f"driver {str(gpu['driver']).split('.')[0]}")
    if gpu.get("sm_clock_mhz"):
        parts.append(f"SM {gpu['sm_clock_mhz']:.0f} MHz")
    if l2_states:
        parts.append(f"{' and '.join(l2_states)} L2")
    return ", ".join(parts)


def lines(summary: Mapping[str, Any], gpu: Mapping[str, Any], roofs: Roofs | None, *, tuned: bool = False) -> list[str]:
    """Return the last lines of a sweep, without the one that says what to do next; ``tuned`` says if it searched."""
    known = {row["group_id"] for row in summary["recorded_best"] if row["phase"] == "verify"}
    best = [row for row in summary["best"] if row["group_id"] not in known]
    chosen = best if len(best) <= MAX_LINES else sorted(best, key=lambda row: row["batch"])[-MAX_LINES:]
    recorded = summary["recorded_best"][-MAX_LINES:]
    width = max([CASE_WIDTH, *(len(case_text(row)) for row in [*chosen, *recorded])])
    out = [result_line(row, width) for row in chosen]
    if len(chosen) < len(best):
        out.append(f"… {count(len(best) - len(chosen), 'more group')} in results.csv")
    if recorded:
        out += ["recorded:", *(result_line(row, width) for row in recorded)]
    if summary["verify"]:
        out += table_lines(summary["verify"])
    out.append(counts_line(summary))

    def say(name: str, text: str | None) -> None:
        if text:
            out.append(f"{name:<9} {text}")

    if summary["source"] == "measured":
        say("MEASURED", device_text(gpu, summary["l2_states"]))
        say("clock", clock_text(summary.get("clock"), gpu.get("power_limit_w")))
    elif summary["source"] == "predicted":
        kind = _model_text(roofs, summary["fits"], summary["loans"]) if roofs is not None else "no roofs"
        some = "kernels checked" if "no" not in summary["checked"] else "not all kernels checked"
        kernels = f"{some} in the interpreter" if "interpreter" in summary["checked"] else "kernels not checked"
        say("PREDICTED", f"{gpu.get('name') or gpu.get('key')}: nothing was timed here; bytes over {kind}; {kernels}")
    if summary["recorded"]:
        stand = "stands" if summary["recorded"] == 1 else "stand"
        say("RECORDED", f"{count(summary['recorded'], 'shipped row')} of this model and GPU {stand} beside them")
    if summary["control"]:
        say("control", _control_text(summary["control"], summary["recorded_control"], str(summary["source"]), tuned))
    for failed in summary["failed_controls"]:
        say("control", _failed_control_text(failed))
    if summary["best_window"] and not (summary["verify"] and summary["best_window"]["phase"] == "verify"):
        say("best L", _window_line(summary["best_window"], summary["recorded_window"]))
    say("choice", _choice_line(summary["window_choice"]))
    if summary["roofs"] and summary["best"]:
        say("roofs", summary["roofs"]["text"])
    say("model", _model_line(summary["model"]))
    say("break-even", _break_evens(summary["break_even"], summary["recorded_break_even"]))
    return out
