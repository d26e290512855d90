"""What ``perfkit roofline`` does once its flags are read: find the GPU, measure or look up, compare, save, say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit import device
from perfkit.cli.common import print_json, say
from perfkit.cli.sweep_plan import DEFAULT_GPU
from perfkit.errors import DeviceError, ExitCode, InputError
from perfkit.profiles import find_gpu, load_gpu, read_roofs, roofs_folder
from perfkit.progress import count
from perfkit.roofline import Roofs, roofs_for
from perfkit.roofs import FULL, Comparison, compare

if TYPE_CHECKING:
    from perfkit.device import DeviceFacts
    from perfkit.profiles import Gpu


@dataclass(frozen=True, slots=True)
class Request:
    """The flags of the command; ``tolerance`` is a share."""

    gpu: str = "auto"
    out: Path | None = None
    quick: bool = False
    repeat: int = 1
    compare: Path | None = None
    tolerance: float = 0.02
    show: bool = False
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came out.

    Attributes:
        gpu: the profile.
        data: the roofs, with the fields of a roofs file; of the datasheet, what the model makes of it.
        roofs: the same as every command uses them.
        measured: whether they were measured just now.
        saved: where they were written.
        unsaved: why they were not.
        agreement: of two runs, those that differ most; None for one run.
        comparison: with the file of ``--compare``.
    """

    gpu: Gpu
    data: Mapping[str, Any]
    roofs: Roofs
    measured: bool = False
    saved: Path | None = None
    unsaved: str | None = None
    agreement: Comparison | None = None
    comparison: Comparison | None = None


def run(request: Request, *, must: bool, as_json: bool) -> int:
    """Do what was asked and print it; return the exit code.

    Args:
        request: the flags.
        must: whether some of them ask for a measurement: without a GPU there is then nothing to do.
        as_json: print one JSON document.

    Raises:
        InputError: a file, a key or a place to write that is refused; nothing was measured.
        DeviceError: a measurement was asked for, or begun, and cannot be made.
    """
    base = read_roofs(request.compare) if request.compare is not None else None
    if request.file is not None:
        data = {**read_roofs(request.file), "file": str(request.file)}
        profile = load_gpu(data["gpu"])
        answer = Answer(profile, data, roofs_for(profile, data))
    else:
        profile, facts = choose(request, must)
        if base is not None and base["gpu"] != profile.key:
            raise InputError(f"roofs of another GPU, not of {profile.key}", file=request.compare, field="gpu",
                             value=base["gpu"])  # fmt: skip
        answer = known(profile) if facts is None else measured(profile, facts, request)
    if base is not None:
        if not answer.roofs.calibrated:
            raise InputError(f"nobody measured the roofs of {answer.gpu.name} yet: there is nothing to compare",
                             field="--compare", value=str(request.compare))  # fmt: skip
        answer = _compared(answer, base, request)
    from perfkit.cli import roofline_text

    if as_json:
        print_json(to_json(answer, request))
    else:
        roofline_text.show(answer, request)
    pairs = [one for one in (answer.agreement, answer.comparison) if one is not None]
    return ExitCode.FAILED if any(one.spread > request.tolerance for one in pairs) else ExitCode.OK


def _compared(answer: Answer, base: Mapping[str, Any], request: Request) -> Answer:
    try:
        return replace(answer, comparison=compare(base, answer.data))
    except InputError as error:
        raise InputError(str(error), file=request.compare) from None


# -- which GPU -------------------------------------------------------------------------------------------------------


def choose(request: Request, must: bool) -> tuple[Gpu, DeviceFacts | None]:
    """Return the GPU, and its facts if it is here and to be measured.

    Raises:
        InputError: a GPU that no profile knows.
        DeviceError: the GPU here has no roofs of its own, or a measurement is asked for and the GPU is not here.
    """
    wanted = load_gpu(request.gpu) if request.gpu != "auto" else None
    if request.show and wanted is not None:
        return wanted, None
    facts = device.usable_gpu()
    if facts is not None and (wanted is None or _is(facts, wanted)):
        profile = known_gpu(facts)
        return profile, None if request.show else facts
    profile = wanted or load_gpu(DEFAULT_GPU)
    what = f"this machine has {facts.name}" if facts is not None else "there is no usable GPU here"
    if must:
        raise DeviceError(f"{what}: nothing was measured (perfkit doctor says what works)")
    if wanted is None:
        say(f"{what} (perfkit doctor says why): these are roofs of {profile.name}; --gpu KEY for another")
    return profile, None


def _is(facts: DeviceFacts, wanted: Gpu) -> bool:
    found = None if facts.is_mig else find_gpu(facts.name, facts.memory_total_mib)
    return found is not None and found.key == wanted.key


def known_gpu(facts: DeviceFacts) -> Gpu:
    """Return the profile of the GPU that is here.

    Raises:
        DeviceError: a MIG instance, whose share of bandwidth is not the GPU's, or a GPU without a profile.
    """
    if facts.is_mig:
        raise DeviceError(f"{facts.name} is a MIG instance: its bandwidth is not the GPU's; measure on a whole GPU")
    gpu = find_gpu(facts.name, facts.memory_total_mib)
    if gpu is None:
        raise DeviceError(
            f"no profile for {facts.name} with {facts.memory_total_mib} MiB: add one to perfkit/profiles/gpus"
        )
    return gpu


def known(gpu: Gpu) -> Answer:
    """Return the roofs of a GPU that every command uses."""
    from perfkit.profiles import find_roofs

    data = find_roofs(gpu.key)
    roofs = roofs_for(gpu, data)
    return Answer(gpu, data if data is not None else stated_data(gpu, roofs), roofs)


def stated_data(gpu: Gpu, roofs: Roofs) -> dict[str, Any]:
    """Return a datasheet's roofs with the fields of a roofs file: what nodes of a graph would take, cold."""
    points = []
    for kind, written in (("read", 0.0), ("inplace", 0.5)):
        for size in FULL.sizes:
            time_us = roofs.time_us(size * (1 - written), size * written) + roofs.graph_node_us
            points.append({"kind": kind, "bytes": size, "bandwidth_gb_s": size / time_us / 1e3})
    source = f"{gpu.bandwidth_gb_s:,g} GB/s of the datasheet, times what an H200 reaches of its own"
    return {"gpu": gpu.key, "points": points, "l2": [], "rates": [], "graph_node_us": roofs.graph_node_us,
            "source": source}  # fmt: skip


def measured(gpu: Gpu, facts: DeviceFacts, request: Request) -> Answer:
    """Measure the GPU as often as asked.

    Raises:
        InputError, DeviceError: as :func:`perfkit.cli.roofline_measure.measure`.
    """
    from perfkit.cli.roofline_measure import measure

    found = measure(
        gpu, facts, out=request.out, quick=request.quick, repeat=request.repeat, tolerance=request.tolerance
    )
    origin = "here" if found.saved is not None and found.saved.parent == roofs_folder() else "file"
    roofs = roofs_for(gpu, {**found.data, "origin": origin, "file": str(found.saved) if found.saved else None})
    return Answer(gpu, found.data, roofs, True, found.saved, found.unsaved, found.agreement)


# -- say -------------------------------------------------------------------------------------------------------------


def to_json(answer: Answer, request: Request) -> dict[str, Any]:
    """Return the document of ``--json``."""
    return {
        "schema_version": 1,
        "gpu": answer.gpu.key,
        "name": answer.gpu.name,
        "measured": answer.measured,
        "roofs_used": {**answer.roofs.provenance(), "file": answer.roofs.file},
        "saved": answer.saved,
        "unsaved": answer.unsaved,
        "roofs": {name: value for name, value in answer.data.items() if name not in ("origin", "file")},
        "datasheet": datasheet(answer.gpu),
        "tolerance": request.tolerance,
        "agreement": _comparison_json(answer.agreement, request.tolerance),
        "comparison": _comparison_json(answer.comparison, request.tolerance),
    }


def datasheet(gpu: Gpu) -> dict[str, float | None]:
    """Return what the datasheet says of what is measured here."""
    return {"bandwidth_gb_s": gpu.bandwidth_gb_s, "bf16_tflops": gpu.bf16_tflops, "tf32_tflops": gpu.tf32_tflops,
            "fp32_tflops": gpu.fp32_tflops, "l2_mib": gpu.l2_mb}  # fmt: skip


def _comparison_json(comparison: Comparison | None, tolerance: float) -> dict[str, Any] | None:
    if comparison is None:
        return None
    return {"largest": comparison.spread, "of": comparison.largest.name, "within": comparison.spread <= tolerance,
            "roofs": [{**asdict(one), "change": one.change} for one in comparison.roofs],
            "costs": [{**asdict(one), "change": one.change} for one in comparison.costs]}  # fmt: skip


def differ_text(comparison: Comparison, tolerance: float) -> str:
    """Return one line about the figure that differs most."""
    one = comparison.largest
    verdict = "within" if one.size <= tolerance else "MORE than"
    return (f"largest difference {one.size:.2%} ({one.name}: {one.base:.4g} and {one.new:.4g} {one.unit}), {verdict} "
            f"{100 * tolerance:g}%; {count(len(comparison.roofs), 'roof')} compared")  # fmt: skip
