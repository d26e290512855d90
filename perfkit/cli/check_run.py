"""What ``perfkit check`` does once its flags are read: choose methods, run the three parts, say what came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfkit import registry, results, samples
from perfkit.cases import is_plugin
from perfkit.checking import run_cases
from perfkit.cli.common import check_seed, print_json, print_table
from perfkit.errors import DeviceError, InputError
from perfkit.method import Case, Method
from perfkit.progress import Progress, make_progress
from perfkit.runner import signals_as_interrupts
from perfkit.shape import FAMILIES, Shape

#: Whose shape the kernels of a family are compiled for when no model is named.
DEFAULT_MODELS = MappingProxyType({"mamba2": "nemotron-super", "gdn": "qwen3.5-4b", "kda": "kimi-linear-48b-a3b"})
#: Seconds that compiling one case for all targets may take.
COMPILE_S = 300.0

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One way to check: where, by which worker, which cases."""

    where: str  # interpreter, gpu, compile
    mode: str
    cases: tuple[Case, ...]
    visible: str | None = None
    uuid: str | None = None
    case_s: float = 60.0


def choose_methods(family: str | None, text: str) -> list[Method]:
    """Return the methods that ``--family`` and ``--method`` name, the control first.

    Raises:
        InputError: an unknown family or method, or a file's method of another family.
    """
    if family is not None:
        if family not in FAMILIES:
            raise InputError("unknown family", field="--family", value=family, allowed=FAMILIES)
        registry.family(family)
    known = registry.methods(family)
    chosen: dict[tuple[str, str, str], Method] = {}
    for key in [part.strip() for part in text.split(",")]:
        if is_plugin(key):
            path, _, name = key.rpartition(":")
            found = [registry.load_method(f"{Path(path).resolve()}:{name}")]  # a worker may run in another folder
            if family not in (None, found[0].family):
                raise InputError(f"is for {found[0].family}, not {family}", field="--method", value=key)
        else:
            found = [item for item in known if key in ("all", item.key)]
        if not found:
            allowed = [*dict.fromkeys(item.key for item in known), "all", "FILE.py:METHOD"]
            raise InputError("no such method", field="--method", value=key, allowed=allowed)
        chosen |= {(item.family, item.phase, item.key): item for item in found}
    return list(chosen.values())


def compile_shapes(methods: Sequence[Method], model: str | None) -> dict[str, Shape]:
    """Return the shape to compile for, by family; families without a model are left out.

    Raises:
        InputError: an unknown model, or one whose family none of the methods has.
    """
    from perfkit.profiles import load_model

    families = list(dict.fromkeys(item.family for item in methods))
    if model is None:
        return {name: load_model(DEFAULT_MODELS[name]).shape for name in families if name in DEFAULT_MODELS}
    shape = load_model(model).shape
    if shape.family not in families:
        raise InputError(f"is a {shape.family} model; the methods are for {', '.join(families)}", field="--model",
                         value=model)  # fmt: skip
    return {shape.family: shape}


def parts(methods: Sequence[Method], shapes: Mapping[str, Shape]) -> list[Part]:
    """Return what to run: the interpreter, the GPU where there is one, the compiler where shapes are given."""
    from perfkit import device

    found = [Part("interpreter", "interpret", tuple(case for m in methods for case in samples.interpreter_cases(m)))]
    gpu = device.usable_gpu()
    if gpu is not None:
        cases = tuple(case for m in methods for case in samples.gpu_cases(m))
        found.append(Part("gpu", "cuda", cases, gpu.visible, gpu.uuid))
    compiled = tuple(case for m in methods if m.family in shapes for case in samples.compile_cases(m, shapes[m.family]))
    found.append(Part("compile", "compile", compiled, case_s=COMPILE_S))
    return [part for part in found if part.cases]


def run(family: str | None, method: str, compiles: bool, model: str | None, seed: int, *, as_json: bool) -> int:
    """Check and print; return the exit code."""
    if model is not None and not compiles:
        raise InputError("is only what kernels are compiled for; leave out --no-compile", field="--model", value=model)
    check_seed(seed)
    methods = choose_methods(family, method)
    shapes = compile_shapes(methods, model) if compiles else {}
    progress = make_progress()
    rows: list[Row] = []
    with signals_as_interrupts():
        for part in parts(methods, shapes):
            rows += _run_part(part, seed, progress)
    code = results.exit_code(row["status"] for row in rows)
    if as_json:
        print_json({"seed": seed, "statuses": Counter(row["status"] for row in rows), "exit_code": int(code),
                    "cases": rows})  # fmt: skip
    else:
        _print(rows)
    return code


def _run_part(part: Part, seed: int, progress: Progress) -> Iterator[Row]:
    """Yield a row per case; where no worker starts, each case says so."""
    from perfkit import device

    settings = {"seed": seed, "check_only": True, "tune": False}
    left = list(part.cases)
    try:
        with device.gpu_lock(part.uuid) if part.uuid is not None else nullcontext():
            for case, record in run_cases(part.cases, part.mode, settings, progress, visible=part.visible,
                                          case_s=part.case_s):  # fmt: skip
                left.remove(case)
                yield _row(part.where, case, record)
    except DeviceError as error:
        progress.note(f"{part.where}: {error}")
        for case in left:
            yield _row(part.where, case, {"status": "error", "reason": str(error), "row": {}})


def _row(where: str, case: Case, record: Mapping[str, Any]) -> Row:
    told = record["row"]
    row: Row = {
        "where": where, "family": case.shape.family, "method": case.method, "phase": case.phase, "shape": case.shape,
        "batch": case.batch, "window": case.window, "draft_len": case.draft_len, "tree": case.tree,
        "input_dtype": case.input_dtype,
        "state_dtype": case.state_dtype, "launch_config": told.get("launch_config") or case.option(samples.CONFIG),
        "status": record["status"], "reason": record["reason"], "rel_error": told.get("rel_error"),
        "steps": told.get("steps"), "checked": told.get("covered") or [],
    }  # fmt: skip
    if "compiled" in told:
        kernels = told["compiled"]
        row |= {"checked": ["compiles", "spills"], "kernels": kernels}
        spilled = [kernel for kernel in kernels if kernel["spill_stores"] or kernel["spill_loads"]]
        if row["status"] == "ok" and spilled:
            row |= {"status": "incorrect", "reason": "spills registers: " + ", ".join(map(_target, spilled))}
    return row


def _target(kernel: Mapping[str, Any]) -> str:
    spills = kernel["spill_stores"] + kernel["spill_loads"]
    return f"sm_{kernel['cc']} {kernel['registers']} registers" + (f", {spills} bytes spilled" if spills else "")


def _name(row: Row) -> str:
    return Path(row["method"]).name if is_plugin(row["method"]) else str(row["method"])


def _checked(row: Row) -> str:
    most: dict[int, int] = {}
    for kernel in row.get("kernels", ()):
        most[kernel["cc"]] = max(kernel["registers"], most.get(kernel["cc"], 0))
    if most:
        return "registers: " + ", ".join(f"sm_{cc} {registers}" for cc, registers in most.items())
    return ", ".join(row["checked"])


def _drafts(row: Row) -> str:
    return f"tree{row['draft_len']}" if row["tree"] is not None else str(row["draft_len"])


def _cells(row: Row) -> list[Any]:
    shape = row["shape"]
    return [
        row["where"], row["family"], _name(row), row["batch"], row["window"], _drafts(row),
        f"{shape.n_v_heads}/{shape.n_k_heads}", f"{shape.d_v}x{shape.d_k}",
        f"{row['input_dtype']}, {row['state_dtype']}", row["launch_config"], row["status"],
        None if row["rel_error"] is None else f"{row['rel_error']:.1e}", _checked(row),
    ]  # fmt: skip


def _print(rows: Sequence[Row]) -> None:
    columns = ["where", "family", "method", "batch", "window", "T", "heads", "state", "input, state", "configuration",
               "status", "rel_error", "checked"]  # fmt: skip
    print_table(columns, map(_cells, rows))
    for row in rows:
        if row["reason"]:
            window = f" L{row['window']}" if row["window"] is not None else ""
            drafts = "" if row["phase"] == "decode" else f" {_drafts(row)}" if row["tree"] else f" T{_drafts(row)}"
            point = f"B{row['batch']}{drafts}{window} [{row['launch_config']}]"
            print(f"{row['status']}: {row['where']} {row['family']} {_name(row)} {point}: {row['reason']}")
    counts = Counter(row["status"] for row in rows)
    others = "".join(f", {count} {status}" for status, count in counts.items() if status != "ok")
    print(f"{counts['ok']}/{len(rows)} ok{others}: {', '.join(dict.fromkeys(row['where'] for row in rows))}")
