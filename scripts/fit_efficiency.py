#!/usr/bin/env python3
"""Fit what kernels reach of their roofs to the shipped rows, and write profiles/measured/efficiency.yaml.

    scripts/fit_efficiency.py [--directory DIR] [--check]

Run it after shipping rows or roofs, then ship the rows again with --rederive, so that their predictions are by the new
fit. With --check nothing is written: exit 1 if the file is not what the rows give.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perfkit import refit, results
from perfkit.errors import PerfkitError
from perfkit.profiles import measured_files
from perfkit.profiles.measured import EFFICIENCY, MEASURED, window_files
from perfkit.roofline import shipped_roofs


def document(directory: Path = MEASURED) -> str:
    """Return the file's text, fitted anew to the rows in ``directory``."""
    found = refit.refit(refit.load_fitted(directory), shipped_roofs)
    files = [*measured_files(directory).values(), *window_files(directory).values()]
    texts = {path.name: path.read_text(encoding="utf-8") for path in files}
    sources, dates = {}, {}
    for key, rows in found.timed.rows.items():
        ids = [f",{row['case_id']}," for row in rows]
        sources[key] = [name for name, text in texts.items() if any(one in text for one in ids)]
        sources[key].append(f"{key[3]}-roofs.yaml")
        dates[key] = max(str(row["manifest"]["ended"])[:10] for row in rows)
    return refit.document(found, sources, dates)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=MEASURED, help="default: perfkit/profiles/measured")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file would change")
    given = parser.parse_args(argv)
    file = given.directory / EFFICIENCY
    try:
        text = document(given.directory)
        if given.check:
            same = file.is_file() and file.read_text(encoding="utf-8") == text
            print(f"{file}: {'is' if same else 'is not'} what the rows give")
            return 0 if same else 1
        results.write_text(file, text)
    except PerfkitError as error:
        print(f"fit_efficiency: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(file)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
