"""What Nsight Compute says when it cannot, as one line that names the remedy."""

from __future__ import annotations

import re
from pathlib import Path

from perfkit.errors import DeviceError, InputError, PerfkitError
from perfkit.nsight.metrics import is_own
from perfkit.nsight.tool import OPEN_COUNTERS, Tool

_METRIC = re.compile(r"Failed to find metric\s+(?:regex:)?\^?([A-Za-z0-9_.]+)")
_OPTION = re.compile(r"(?:unrecogni[sz]ed option|unknown option|the argument .* for option)[^\n]*", re.IGNORECASE)
_ERROR = re.compile(r"^==ERROR==\s*(.+)$", re.MULTILINE)
#: Said of a kernel, not of the tool: the case in flight is at fault.
_OF_A_KERNEL = ("Failed to profile", "application returned an error code", "shutdown target application")


class UnknownMetric(InputError):
    """A metric that the user named and Nsight Compute does not know: bad input that only it could find."""


def fatal(text: str, tool: Tool) -> PerfkitError | None:
    """Return the error for a reason that no other case would fare better with; None if the text has none.

    Args:
        text: what ``ncu`` has said so far.
        tool: which one it is.
    """
    if "ERR_NVGPUCTRPERM" in text:
        return DeviceError(f"no permission to read GPU counters (ERR_NVGPUCTRPERM): {OPEN_COUNTERS}")
    if "driver resource was unavailable" in text:
        return DeviceError("another tool holds this GPU's counters: end it, or pause DCGM with `dcgmi profile --pause` "
                           "(and --resume it afterwards)")  # fmt: skip
    if match := _METRIC.search(text):
        name = match[1].rstrip(".")
        if is_own(name):
            return DeviceError(f"ncu {tool.version or ''} knows no metric {name} for this GPU: --metrics dram asks for "
                               "bytes and time alone; a newer Nsight Compute may know it")  # fmt: skip
        return UnknownMetric("this Nsight Compute knows no such metric for this GPU (`ncu --query-metrics` lists them)",
                             field="--metrics", value=name)  # fmt: skip
    if match := _OPTION.search(text):
        return DeviceError(f"ncu {tool.version or ''} refuses an option: {match[0].strip()}; a Nsight Compute of 2022 "
                           "or newer takes it")  # fmt: skip
    return None


def of_kernel(text: str) -> str | None:
    """Return what ``ncu`` said about the kernel that it failed on, None if nothing."""
    lines = [line.strip() for line in _ERROR.findall(text)]
    said = next((line for line in lines if line.startswith("Failed to profile")), None)
    others = [line for line in lines if not line.startswith(_OF_A_KERNEL)]
    return "; ".join([*others[-1:], *([said] if said else [])]) or None


def nothing(text: str, output: str, nvtx: str | None, log: Path) -> DeviceError:
    """Return the error for a report that is not there or holds no launch, although the steps ran.

    Args:
        text: what ``ncu`` said.
        output: what it and the target printed beside that.
        nvtx: the module that marked ranges; None if the target never got so far.
        log: where all of it is.
    """
    if "No kernels were profiled" in text + output:
        if nvtx is None:
            return DeviceError(f"ncu saw no kernel, and the program under it did not start: see {log}")
        return DeviceError("kernels ran, but none inside an NVTX range that ncu saw, so its filter matched nothing: "
                           f"pip install nvtx (ranges were marked by {nvtx}), and see {log}")  # fmt: skip
    said = [line.strip() for line in _ERROR.findall(text)]
    return DeviceError(
        f"ncu made no report of the steps that ran: {said[-1] if said else last_line(output)}; see {log}"
    )


def hung(log: Path) -> DeviceError:
    """Return the error for an ``ncu`` that was ended because its report did not come, although the steps ran."""
    return DeviceError("ncu did not end by itself after the steps had run, and was ended without its report; see "
                       f"{log}, and try again with --metrics dram")  # fmt: skip


def last_line(output: str) -> str:
    """Return the last line that says something, cut to a line's length."""
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "it said nothing")
    return last[:200]


def empty(report: Path, log: Path) -> DeviceError:
    """Return the error for a report without a single launch in it."""
    return DeviceError(f"{report} is empty: ncu profiled no launch; see {log}, and try again with --metrics dram")
