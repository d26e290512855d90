#!/usr/bin/env python3
"""Compile all kernels that ship compiled, with both Tritons: perfkit/profiles/compiled/<Triton version>.csv.

    make compiled
    scripts/compiled_tables.py [--check] [--workers N] [--directory DIR]

What it compiles stands in tests/compileparts.py, where tests have it from. A row that is there for the very same
kernel stays, others are compiled, and rows that nothing asks for any more go. What was compiled is kept in the user's
cache too, so a run that was interrupted goes on where it was. With --check nothing is compiled or written: exit 1 if a
row lacks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from compilehelp import ask, old_python, start
from compileparts import OLD, PINNED, Asked, shipped

from perfkit.child import Child
from perfkit.errors import InputError, PerfkitError
from perfkit.files import write_text
from perfkit.profiles.compiled import COMPILED, Compiled, compiled_text, load_compiled
from perfkit.progress import Progress, count, make_progress

Rows = dict[str, Compiled]


def gather(
    wanted: Sequence[Asked], python: str, workers: int, progress: Progress, **more: Any
) -> tuple[str, Rows, set[str]]:
    """Return a Python's version of Triton, what it compiles by key, and the keys of what it was told not to compile.

    Raises:
        DeviceError: a kernel does not compile.
    """
    children = [start(python) for _ in range(workers)]
    idle: SimpleQueue[Child] = SimpleQueue()
    for child in children:
        idle.put(child)

    def answer(asked: Asked) -> Mapping[str, Any]:
        child = idle.get()
        progress.phase(asked.name, "compile", 0, 0)
        try:
            found = ask(child, asked, **more)
            progress.case_done(asked.name, "ok", {"text": f"{len(found)} cases"}, None)
            return found
        finally:
            idle.put(child)

    version = str(children[0].info["triton"])
    progress.begin(len(wanted))
    pool = ThreadPoolExecutor(workers)
    try:
        answers = [row for found in pool.map(answer, wanted) for row in found.values()]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.kill()
        progress.close()
    rows = [Compiled(**{name: value for name, value in item.items() if name != "launch_config"})
            for answer in answers for item in (*answer["compiled"], *answer["passed_over"])]  # fmt: skip
    return version, {row.key: row for row in rows}, {key for answer in answers for key in answer["missing"]}


def main(argv: list[str] | None = None) -> int:
    """Write the tables, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compile and write nothing; exit 1 if a row lacks")
    parser.add_argument("--workers", type=int, default=2, help="processes that compile (default: 2)")
    parser.add_argument("--directory", type=Path, default=COMPILED, help="default: perfkit/profiles/compiled")
    given = parser.parse_args(argv)
    complete = True
    try:
        if given.workers < 1:
            raise InputError("must be at least 1", field="--workers", value=given.workers)
        if not old_python().exists():
            raise InputError("no Python with Triton 3.6.0: make compile-36, or set PERFKIT_TRITON36", file=old_python())
        wanted = list(shipped())
        for name, python in ((PINNED, sys.executable), (OLD, str(old_python()))):
            own = [asked for asked in wanted if asked.triton == name]
            if not own:
                continue
            version, rows, missing = gather(own, python, given.workers, make_progress(), compile=not given.check)
            whole, said = settle(version, rows, missing, given.directory, write=not given.check)
            complete &= whole
            print(said, flush=True)
    except PerfkitError as error:
        print(f"compiled_tables: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("compiled_tables: interrupted; what was compiled is kept: run it again", file=sys.stderr)
        return 130
    return 0 if complete else 1


def settle(version: str, rows: Rows, missing: set[str], directory: Path, *, write: bool) -> tuple[bool, str]:
    """Write the table of a Triton, if told to; say whether it has all rows, and what is new in it and what is gone."""
    path, before = directory / f"{version}.csv", load_compiled(version, directory)
    wanted = rows.keys() | missing
    kept, dropped = wanted & before.keys(), before.keys() - wanted
    if not write:
        lacks = len(wanted) - len(kept)
        said = f"at least {count(lacks, 'row')} missing: make compiled" if lacks else "complete"
        return not lacks, f"{path.name}: {count(len(kept), 'row')}, {said}; {len(dropped)} that nothing asks for"
    path.parent.mkdir(parents=True, exist_ok=True)
    # A row that stays is left as it is: the size of a binary differs a little by where its source lies.
    text = compiled_text(before.get(key, row) for key, row in rows.items())
    write_text(path, text)
    return True, (f"{path.name}: {count(len(rows), 'row')} ({len(rows) - len(kept)} new, {len(kept)} kept, "
                  f"{len(dropped)} dropped), {len(text) / 1000:.0f} kB")  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
