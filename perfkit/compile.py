"""Compile kernels for GPUs that are not here: registers, shared memory and spills of a launch.

The launch is specialized as Triton's JIT would specialize it on a GPU (pointers and integers divisible by 16, integers
equal to 1, ``do_not_specialize``), by the JIT's own code, so the result is the kernel that would run there. Needs a
process that does not interpret, and neither a GPU nor torch. Results are kept on disk; those of the project's own
kernels ship, and are not compiled again.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from perfkit import ptxas
from perfkit.cache import load, save
from perfkit.compiled import Compiled, assert_no_spills, cache_dir, locked, table
from perfkit.errors import DeviceError, PerfkitError
from perfkit.kernels.lang import HAVE_TRITON, triton
from perfkit.method import Case, Config, Family, Launch, Method
from perfkit.profiles.compiled import shipped
from perfkit.spec import specs

if TYPE_CHECKING:
    from perfkit.specialize import Specialized

__all__ = [
    "SHARED_LIMIT",
    "TARGETS",
    "Compiled",
    "assert_no_spills",
    "cache_dir",
    "compile_case",
    "compile_launch",
    "exempt",
    "run_group",
]

#: Compute capabilities that every kernel is compiled for: A100, H100/H200, B200, B300, RTX Blackwell.
TARGETS = (80, 90, 100, 103, 120)
#: Most shared memory of one block, bytes. Source: CUDA C++ Programming Guide, "Technical Specifications per Compute
#: Capability": 163, 227 and 99 KB.
SHARED_LIMIT = MappingProxyType({80: 163 << 10, 90: 227 << 10, 100: 227 << 10, 103: 227 << 10, 120: 99 << 10})
#: What compiles a launch for a target; None of a kernel that is not to be compiled now.
Find = Callable[[Launch, int], Compiled | None]


def exempt(case: Case, target_cc: int) -> str | None:
    """Return why a case cannot compile for a target, or None."""
    if target_cc < 89 and "float8_e4m3fn" in (case.input_dtype, case.state_dtype, case.reads):
        return f"float8_e4m3fn needs compute capability 8.9, not {target_cc / 10}"
    return None


def compile_launch(launch: Launch, target_cc: int, *, assembly: bool = False) -> Compiled:
    """Return what a launch compiles to: as this user's cache has it, or as it ships, or compiled now and kept.

    Args:
        launch: of a Triton kernel; its tensors may be torch's or :class:`perfkit.spec.Spec`.
        target_cc: compute capability without the dot, 90 or 103.
        assembly: whether ``ptx`` is wanted, which does not ship.

    Raises:
        DeviceError: Triton is absent, this process interprets, or the compiler fails.
        InputError: the kernel is not a plain Triton function, or a shipped table is broken.
    """
    item = _specialize(launch, target_cc)
    path = cache_dir() / f"{item.key}.json"
    found = _kept(path) or (None if assembly else shipped(triton.__version__).get(item.key))
    if found is None:
        with locked(path):
            found = _kept(path)
            if found is None:
                found = _compile(item)
                save(path, asdict(found))
    return replace(found, config=item.config)


@dataclass(frozen=True, slots=True)
class Finder:
    """Compiles launches, or only looks up what ships, and remembers what it was asked for.

    Attributes:
        compiles: whether what does not ship is compiled.
        found: by key.
        missing: keys of what does not ship and was not compiled.
    """

    compiles: bool
    found: dict[str, Compiled] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)

    def __call__(self, launch: Launch, target_cc: int) -> Compiled | None:
        """Return what a launch compiles to, or None.

        Raises:
            DeviceError, InputError: as :func:`compile_launch`.
        """
        if self.compiles:
            made = compile_launch(launch, target_cc)
        else:
            item = _specialize(launch, target_cc)
            known = shipped(triton.__version__).get(item.key)
            if known is None:
                self.missing.add(item.key)
                return None
            made = known
        self.found[made.key] = made
        return made


def _specialize(launch: Launch, target_cc: int) -> Specialized:
    if not HAVE_TRITON:
        raise DeviceError("Triton is not installed: nothing can be compiled here")
    from perfkit.specialize import specialize

    return specialize(launch, target_cc)


def _kept(path: Path) -> Compiled | None:
    data = load(path)
    return None if data is None else Compiled(**data)


def _compile(item: Specialized) -> Compiled:
    made, log = _run_compiler(item.source, item.target, item.options, item.name)
    found = ptxas.parse(log)
    return Compiled(
        kernel=item.name, cc=int(item.target.arch), config=item.config, num_warps=int(made.metadata.num_warps),
        registers=found.registers, shared_bytes=int(made.metadata.shared), spill_stores=found.spill_stores,
        spill_loads=found.spill_loads, stack_bytes=found.stack_bytes, cubin_bytes=len(made.asm["cubin"]),
        triton=triton.__version__, key=item.key, ptx=made.asm["ptx"],
    )  # fmt: skip


def _run_compiler(source: Any, target: Any, options: Any, name: str) -> tuple[Any, str]:
    """Return the compiled kernel and the log of the ptxas run that made it, with exactly Triton's flags."""
    from triton import knobs

    said = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="perfkit-triton-") as folder, contextlib.ExitStack() as stack:
        for group in (knobs.compilation, knobs.nvidia, knobs.cache):
            stack.enter_context(group.scope())
        knobs.cache.dir = folder
        knobs.compilation.always_compile = True  # a hit in Triton's own cache would have no log
        knobs.nvidia.dump_ptxas_log = True
        stack.enter_context(contextlib.redirect_stdout(said))
        try:
            return triton.compile(source, target=target, options=options.__dict__), said.getvalue()
        except Exception as error:  # Triton raises many kinds, and so does what it calls
            text = " ".join(str(error).split())[:400]
            raise DeviceError(
                f"{name} does not compile for sm_{target.arch}: {type(error).__name__}: {text}"
            ) from error


def case_launches(case: Case, method: Method, family: Family, config: Config) -> list[Launch]:
    """Return the launches of Triton kernels of two successive steps (cursors are double-buffered by parity)."""
    tensors = specs(case, method, family)
    launches = [launch for step in (0, 1) for launch in method.launches(case, config, tensors, step)]
    return [launch for launch in launches if hasattr(launch.kernel, "fn")]


def compile_case(
    case: Case,
    method: Method,
    family: Family,
    config: Config,
    targets: Sequence[int] = TARGETS,
    find: Find = compile_launch,
) -> list[Compiled]:
    """Compile all kernels of a case in one configuration, each once per target; exempt targets are left out.

    ``find`` compiles one launch.

    Raises:
        DeviceError: a kernel does not compile.
    """
    found: dict[Compiled, None] = {}
    for target_cc in targets:
        if exempt(case, target_cc) is None:
            for launch in case_launches(case, method, family, config):
                made = find(launch, target_cc)
                if made is not None:
                    found[made] = None
    return list(found)


def run_group(request: Mapping[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Answer a worker's compile request: ``cases``, ``targets``, ``configs`` (default, all, or usable if left out).

    With ``"compile": false`` only what ships is looked up.

    Usable is, on each target, the first configuration that spills nothing there, as the tuner chooses among those; the
    default where all of them spill.

    Each case's row has ``compiled`` (one entry per kernel, configuration and target), ``registers`` and
    ``launch_config`` (the default configuration; registers of the largest kernel over all targets), ``passed_over``
    (kernels of configurations that were not usable) and ``missing`` (keys of what does not ship and was not compiled).
    """
    from perfkit.registry import get_method

    targets = [int(value) for value in request.get("targets") or TARGETS]
    cases = [Case.from_dict(data) for data in request["cases"]]
    for done, case in enumerate(cases):
        emit({"event": "phase", "case_id": case.id, "phase": "check", "done": done, "total": len(cases)})
        event: dict[str, Any] = {"event": "result", "case_id": case.id, "status": "ok", "reason": None, "row": {},
                                 "samples": {}}  # fmt: skip
        try:
            method = get_method(case.shape.family, case.method, case.phase)
            why = method.supports(case)
            if why is not None:
                event |= {"status": "skipped", "reason": why}
            else:
                configs, find = method.configs(case), Finder(bool(request.get("compile", True)))
                found = _compiled(case, method, targets, str(request.get("configs") or "usable"), find)
                event["row"] = {
                    "launch_config": str(configs[0]),
                    "registers": max((item.registers for items in found.values() for item in items), default=None),
                    "compiled": [{**item.row(), "launch_config": str(config)} for config, items in found.items()
                                 for item in items],
                    "passed_over": [find.found[key].row() for key in find.found.keys() - _keys(found)],
                    "missing": sorted(find.missing),
                }  # fmt: skip
        except PerfkitError as error:
            event |= {"status": "error", "reason": str(error)}
        emit(event)
    emit({"event": "done", "group_id": request.get("group_id")})


def _compiled(
    case: Case, method: Method, targets: Sequence[int], which: str, find: Find
) -> dict[Config, list[Compiled]]:
    """Return what each configuration that was asked for compiles to; of "usable" ones on which targets."""
    from perfkit.registry import family as find_family

    configs, family = method.configs(case), find_family(case.shape.family)
    if which != "usable":
        return {item: compile_case(case, method, family, item, targets, find)
                for item in (configs if which == "all" else configs[:1])}  # fmt: skip
    found: dict[Config, list[Compiled]] = {configs[0]: []}
    for target in targets:
        default = compile_case(case, method, family, configs[0], [target], find)
        config, made = configs[0], default
        others = iter(configs[1:])
        while any(item.spill_stores or item.spill_loads for item in made):
            config = next(others, configs[0])
            made = default if config == configs[0] else compile_case(case, method, family, config, [target], find)
            if config == configs[0]:
                break
        found.setdefault(config, []).extend(made)
    return found


def _keys(found: Mapping[Config, Sequence[Compiled]]) -> set[str]:
    return {item.key for items in found.values() for item in items}


def main(argv: Sequence[str] | None = None) -> int:
    """Print registers, shared memory and spills of the shipped kernels as a table; exit 1 if anything spills."""
    import argparse

    from perfkit import registry
    from perfkit.profiles import load_model

    parser = argparse.ArgumentParser(prog="python -m perfkit.compile", description="compile kernels for absent GPUs")
    parser.add_argument("--table", action="store_true", help="print a table (the default)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--model", default="nemotron-super", help="whose shape")
    parser.add_argument("--method", action="append", help="a key; all of the family if not given")
    parser.add_argument("--targets", type=int, nargs="+", default=TARGETS, help="compute capabilities: 80 90")
    parser.add_argument("--configs", choices=("default", "all"), default="default")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--draft", type=int, default=1)
    parser.add_argument("--input-dtype", default="bfloat16")
    parser.add_argument("--state-dtype", default="float32")
    given = parser.parse_args(argv)
    try:
        shape = load_model(given.model).shape
        phase = "decode" if given.draft == 1 else "verify"
        keys = given.method or [method.key for method in registry.methods(shape.family, phase)]
        cases = []
        for key in keys:
            windowed = registry.get_method(shape.family, key, phase).windowed
            cases.append(Case(shape, key, given.batch, given.window if windowed else None, given.draft,
                              input_dtype=given.input_dtype, state_dtype=given.state_dtype))  # fmt: skip
        rows: list[dict[str, Any]] = []
        failed = False

        def collect(event: dict[str, Any]) -> None:
            nonlocal failed
            if event["event"] == "result":
                rows.extend(event["row"].get("compiled", ()))
                if event["status"] != "ok":
                    failed |= event["status"] == "error"
                    print(f"{event['status']}: {event['reason']}", file=sys.stderr)

        data = [case.to_dict() for case in cases]
        run_group({"cases": data, "targets": given.targets, "configs": given.configs}, collect)
    except PerfkitError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    print(json.dumps(rows, indent=1) if given.json else table(rows))
    return 1 if failed or any(row["spill_stores"] or row["spill_loads"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
