#!/usr/bin/env python3
"""Compute what shipped rows say of roofs and predictions again, with the roofs and fits that ship now.

    scripts/rederive_shipped.py [--directory DIR] [--check]

Run it after new roofs or scripts/fit_efficiency.py. Times stay as they were measured, and so does the byte model: rows
whose declared bytes have changed are refused, since they were measured with other kernels. With --check nothing is
written: exit 1 if a file would change.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from ship_run import ROOF_COLUMNS, read_rows, refuse_other_bytes

from perfkit import results
from perfkit.derive import derive
from perfkit.errors import PerfkitError
from perfkit.profiles import load_gpu, measured_files
from perfkit.profiles.measured import MEASURED, window_files
from perfkit.refit import case_of
from perfkit.roofline import shipped_roofs

Row = dict[str, Any]


def rederive(file: Path) -> str:
    """Return the text of a shipped CSV with its roof and prediction columns computed again."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(file, Path(folder) / "results.csv")
        rows = read_rows(Path(folder))
        cases = {row["case_id"]: case_of(row) for row in rows}
        gpu = load_gpu(rows[0]["gpu"])
        fresh = derive(rows, cases, gpu, shipped_roofs(gpu))
        refuse_other_bytes(rows, fresh)
        out = Path(folder) / "out.csv"
        results.write_csv(
            out, [old | {name: new[name] for name in ROOF_COLUMNS} for old, new in zip(rows, fresh, strict=True)]
        )
        return out.read_text(encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """Rewrite every shipped CSV that would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--directory", type=Path, default=MEASURED, help="default: perfkit/profiles/measured, and windows beside it"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file would change")
    given = parser.parse_args(argv)
    changed = 0
    os.environ["PERFKIT_ROOFS"] = os.devnull  # no folder, so neither roofs nor fits of the user's own
    try:
        for file in (*measured_files(given.directory).values(), *window_files(given.directory).values()):
            text = rederive(file)
            if text != file.read_text(encoding="utf-8"):
                changed += 1
                print(file)
                if not given.check:
                    results.write_text(file, text)
    except PerfkitError as error:
        print(f"rederive_shipped: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 1 if given.check and changed else 0


if __name__ == "__main__":
    raise SystemExit(main())
