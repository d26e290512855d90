#!/usr/bin/env python3
"""Take rows out of a shipped file, and have its manifest say which and why.

    scripts/leave_out.py NAME COLUMN=VALUE[,VALUE] … --why TEXT
    scripts/leave_out.py qwen3.5-122b-verify-h200 method=replay window=32.0 --why "its fold is another one since"

For times that no longer hold, of kernels that have changed since: what ships is what runs. A row goes if it has one of
the values in every column that is named; NAME is a file's in perfkit/profiles/measured, counters or times. The cases
move from the manifest's case_ids to its left_out, so that nothing calls the run unfinished.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from perfkit import results
from perfkit.errors import InputError, PerfkitError
from perfkit.profiles.measured import MEASURED


def conditions(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each column that is named.

    Raises:
        InputError: a word is no COLUMN=VALUE.
    """
    found = {}
    for word in words:
        column, equals, values = word.partition("=")
        if not equals or not column or not values:
            raise InputError("is no condition", field="COLUMN=VALUE", value=word, allowed="such as window=32")
        found[column] = tuple(values.split(","))
    return found


def leave_out(name: str, wanted: Mapping[str, Sequence[str]], why: str, directory: Path = MEASURED) -> list[str]:
    """Take rows out of NAME.csv and NAME.manifest.json in ``directory``; return their case ids.

    The CSV's other lines stay as they are. The columns are those of the file, values as they stand there.

    Raises:
        InputError: no such file or column, or no row is meant, or every one.
    """
    csv_file, manifest_file = directory / f"{name}.csv", directory / f"{name}.manifest.json"
    for file in (csv_file, manifest_file):
        if not file.exists():
            raise InputError("is not there", field="NAME", file=file)
    with csv_file.open(encoding="utf-8", newline="") as read:
        header, *body = csv.reader(read)
    unknown = sorted(set(wanted) - set(header))
    if unknown:
        raise InputError("has no such column", file=csv_file, field="COLUMN=VALUE", value=", ".join(unknown))
    cells = [dict(zip(header, record, strict=True)) for record in body]
    meant = [all(row[column] in values for column, values in wanted.items()) for row in cells]
    out = {row["case_id"]: row for row, gone in zip(cells, meant, strict=True) if gone}
    if not out or all(meant):
        raise InputError(f"{'every' if out else 'no'} row is meant", file=csv_file, field="COLUMN=VALUE")
    halved = {row["case_id"] for row, gone in zip(cells, meant, strict=True) if not gone} & set(out)
    if halved:  # counters have a row for each kind of step
        raise InputError("some rows of a case are meant and others not", file=csv_file, field="COLUMN=VALUE",
                         value=", ".join(sorted(halved)))  # fmt: skip
    manifest: dict[str, Any] = json.loads(manifest_file.read_text(encoding="utf-8"))
    manifest["case_ids"] = [case for case in manifest["case_ids"] if case not in out]
    manifest["statuses"] = dict(
        Counter(manifest["statuses"]) - Counter(row.get("status", "ok") for row in out.values())
    )
    manifest.setdefault("left_out", []).append({"case_ids": list(out), "why": why})
    kept = [list(row.values()) for row in cells if row["case_id"] not in out]
    with results.replacing(csv_file) as temporary, temporary.open("w", encoding="utf-8", newline="") as rewritten:
        csv.writer(rewritten, lineterminator="\n").writerows([header, *kept])
    results.write_text(manifest_file, json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    return list(out)


def main(argv: Sequence[str] | None = None) -> int:
    """Take out the rows and print their case ids."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("where", metavar="COLUMN=VALUE", nargs="+")
    parser.add_argument("--why", required=True, help="what the manifest says of them")
    parser.add_argument("--directory", type=Path, default=MEASURED, help="default: perfkit/profiles/measured")
    given = parser.parse_args(argv)
    try:
        print("\n".join(leave_out(given.name, conditions(given.where), given.why, given.directory)))
    except PerfkitError as error:
        print(f"leave_out: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
