#!/usr/bin/env python3
"""Turn a finished, measured run into rows that ship: profiles/measured/NAME.csv and NAME.manifest.json.

    scripts/ship_run.py RUN [--name NAME] [--rederive] [--force]

The rows keep their source, `measured`: whoever loads them beside a run of his own calls them `recorded`. The manifest
keeps what says how the numbers came about and nothing that names a machine's folders, processes or kernel build. Of a
run of `perfkit profile` the counters ship, as NAME-counters.csv with NAME-counters.manifest.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perfkit import results
from perfkit.cases import is_plugin
from perfkit.errors import InputError, PerfkitError
from perfkit.method import Case
from perfkit.profiles.counters import read_counters, write_counters
from perfkit.profiles.measured import COUNTERS_SUFFIX, MEASURED

#: Statuses that say something is wrong with the run or the kernels, not with the point.
BAD = ("incorrect", "crashed", "error", "timeout")
KEPT = ("schema", "command", "mode", "worker_mode", "model", "seed", "settings", "case_timeout_s", "case_ids", "hash",
        "packages", "python", "host_kind", "cpu_count", "started", "ended", "statuses", "aa_floor", "ncu")  # fmt: skip
GPU_KEPT = ("key", "name", "uuid", "driver", "cuda", "compute_capability", "memory_total_mib", "sm_clock_max_mhz",
            "memory_clock_max_mhz", "power_limit_w", "is_mig")  # fmt: skip
#: Columns that depend on the roofs that were known when the run ended.
ROOF_COLUMNS = ("roof_gb_s", "roof_source", "roof_fraction", "limit", "predicted_us", "predicted_lo", "predicted_hi",
                "prediction_error")  # fmt: skip
_PATH = re.compile(r"(?:^|[\s='\"(:])(?:/|~/|[A-Za-z]:\\)[A-Za-z0-9._-]+[/\\]")
Row = dict[str, Any]


def read_rows(run: Path) -> list[Row]:
    """Return the run's rows, absent values as None."""
    frame = results.load_run(run)
    frame = frame[[name for name in frame.columns if name in results.SCHEMA]]
    return [results.check_row(row) for row in results.plain_rows(frame)]


def check_run(run: Path, manifest: Mapping[str, Any], rows: Sequence[Row], *, force: bool) -> None:
    """Refuse what must not ship.

    Raises:
        InputError: not finished, not measured on a GPU, user-written methods, or (without ``force``) bad cases.
    """
    file = run / "manifest.json"
    if not manifest.get("ended"):
        raise InputError(f"has not finished; go on with perfkit {manifest.get('command')} --resume", file=file,
                         field="ended")  # fmt: skip
    mode = f"{manifest.get('mode')}, {manifest.get('worker_mode')}"
    if mode != "measure, cuda":
        raise InputError("was not measured on a GPU", file=file, field="mode", value=mode, allowed="measure, cuda")
    if not (manifest.get("gpu") or {}).get("key"):
        raise InputError("is a GPU without a profile", file=file, field="gpu.key")
    other = sorted({row["source"] for row in rows} - {"measured"})
    if other:
        raise InputError("only measured rows ship", file=run, field="source", value=", ".join(other))
    plugin = next((row["method"] for row in rows if is_plugin(row["method"])), None)
    if plugin is not None:
        raise InputError("is not one of perfkit's methods", file=run, field="method", value=plugin)
    missing = set(manifest["case_ids"]) - {row["case_id"] for row in rows}
    if missing:
        raise InputError(f"{len(missing)} of {len(manifest['case_ids'])} cases have no row", file=run, field="case_ids")
    bad = [row for row in rows if row["status"] in BAD]
    if bad and not force:
        words = ", ".join(f"{row['case_id']} {row['status']}" for row in bad[:3])
        raise InputError(f"{len(bad)} bad cases ({words}); --force ships them as they are", file=run, field="status")


def rederive(manifest: Mapping[str, Any], rows: Sequence[Row]) -> list[Row]:
    """Return the rows with what depends on roofs computed with the roofs that are known now.

    Raises:
        InputError: the byte model is no longer the one that the rows were made with.
    """
    from perfkit.derive import derive
    from perfkit.profiles import load_gpu
    from perfkit.roofline import shipped_roofs

    gpu = load_gpu(manifest["gpu"]["key"])
    dicts = [data for group in manifest["groups"] for data in group["cases"]]
    cases = {case.id: case for case in map(Case.from_dict, dicts)}
    fresh = derive(rows, cases, gpu, shipped_roofs(gpu))
    refuse_other_bytes(rows, fresh)
    return [old | {name: new[name] for name in ROOF_COLUMNS} for old, new in zip(rows, fresh, strict=True)]


def refuse_other_bytes(rows: Sequence[Row], fresh: Sequence[Row]) -> None:
    """Refuse rows that were made with another byte model.

    Raises:
        InputError: names the column.
    """
    for old, new in zip(rows, fresh, strict=True):
        for name in ("bytes_read_model", "bytes_write_model"):
            if old[name] is not None and abs(old[name] - (new[name] or 0.0)) > 1e-9 * old[name]:
                raise InputError("the byte model has changed since the run: measure again", field=name, value=old[name])


def plain_argv(argv: Sequence[str]) -> list[str]:
    """Return the command as one would type it elsewhere: no folder of results, of files only their names."""
    words, skip = ["perfkit"], False
    for word in argv[1:]:
        if skip or word in ("--out", "--resume"):
            skip = not skip
        elif not word.startswith(("--out=", "--resume=")):
            flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
            words.append(flag + equals + value.rpartition("/")[2])
    return words


def plain_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest that ships; ``git`` is this checkout's, where that has the kernels of a run from none."""
    kept = {name: manifest.get(name) for name in KEPT}
    kept["argv"] = plain_argv(manifest["argv"])
    kept["platform"] = str(manifest.get("platform") or "").partition("-")[0] or None
    kept["gpu"] = {name: manifest["gpu"].get(name) for name in GPU_KEPT}
    kept["git"] = manifest.get("git")
    if (kept["git"] is None or kept["git"].get("modified")) and same_kernels(manifest):
        kept["git"] = results.git_revision()
    return kept


def same_kernels(manifest: Mapping[str, Any]) -> bool:
    """Say whether the kernels of this checkout are the ones that ran: the run's hash comes out again."""
    gpu, packages = manifest["gpu"], manifest["packages"]
    return manifest["hash"] == results.manifest_hash(
        model=manifest["model"], gpu=gpu.get("key"), gpu_uuid=gpu.get("uuid"), seed=int(manifest["seed"]),
        timing=manifest["settings"], case_ids=manifest["case_ids"], torch=packages["torch"], triton=packages["triton"],
    )  # fmt: skip


def refuse_paths(value: Any, where: str) -> None:
    """Refuse text that holds an absolute path.

    Raises:
        InputError: names the field.
    """
    if isinstance(value, str) and _PATH.search(value):
        raise InputError("holds a path of the machine that ran it", field=where, value=value)
    if isinstance(value, Mapping):
        for name, item in value.items():
            refuse_paths(item, f"{where}.{name}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            refuse_paths(item, f"{where}[{index}]")


def ship(run: Path, name: str | None, directory: Path, *, fresh: bool = False, force: bool = False) -> list[Path]:
    """Write the two files and return them.

    Args:
        run: a run folder.
        name: of the files; by default ``<model>-<gpu>``.
        directory: where they go.
        fresh: compute roofs and predictions again (:func:`rederive`); there are none among counters.
        force: ship bad cases, and replace files that are there.

    Raises:
        InputError: the run must not ship, a file is there already, or something names the machine.
    """
    manifest = results.read_manifest(run)
    rows = read_rows(run)
    check_run(run, manifest, rows, force=force)
    counted = manifest["command"] == "profile"
    write = write_counters if counted else results.write_csv
    if counted:
        rows = read_counters(run / "counters.csv")
    if fresh and not counted:
        rows = rederive(manifest, rows)
    name = name or f"{manifest['model']['key']}-{manifest['gpu']['key']}"
    name = f"{name.removesuffix(COUNTERS_SUFFIX)}{COUNTERS_SUFFIX}" if counted else name
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise InputError("is not a file's name", field="--name", value=name, allowed="a-z, 0-9, '.', '_', '-'")
    files = [directory / f"{name}.csv", directory / f"{name}.manifest.json"]
    plain = plain_manifest(manifest)
    if files[1].exists():  # shipped again: what it ran on is known from the first time
        before = json.loads(files[1].read_text(encoding="utf-8"))
        if before.get("hash") == plain["hash"]:
            plain["git"] = before.get("git")
    refuse_paths(plain, "manifest")
    for row in rows:
        refuse_paths(row, f"row {row['case_id']}")
    for file in files:
        if file.exists() and not force:
            raise InputError("is there already; --force replaces it", file=file)
    directory.mkdir(parents=True, exist_ok=True)
    results.write_text(files[1], json.dumps(plain, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    with results.replacing(files[0]) as temporary:
        write(temporary, rows)
    return files


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--name", help="of the files (default: MODEL-GPU)")
    parser.add_argument("--directory", type=Path, default=MEASURED, help="default: perfkit/profiles/measured")
    parser.add_argument("--rederive", action="store_true", help="roofs and predictions by the roofs that ship now")
    parser.add_argument("--force", action="store_true", help="ship bad cases as they are; replace files")
    given = parser.parse_args(argv)
    os.environ["PERFKIT_ROOFS"] = os.devnull  # no folder, so neither roofs nor fits of the user's own
    try:
        files = ship(given.run, given.name, given.directory, fresh=given.rederive, force=given.force)
    except PerfkitError as error:
        print(f"ship_run: {error}", file=sys.stderr)
        return int(error.exit_code)
    print("\n".join(map(str, files)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
