#!/usr/bin/env python3
"""Build a report of every measurement that ships, and of the paper's models without any.

    scripts/gallery.py [FOLDER]

A page per measurement and an index by model, by default in gallery/. A model without measurements is predicted on the
GPU of the others by `perfkit sweep`, and its page says so.
"""

from __future__ import annotations

import html
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perfkit.profiles import load_model, measured_files
from perfkit.reports.output import write_text
from perfkit.reports.page import answers, render
from perfkit.reports.runs import Run, load, load_all

#: Source: paper, section 5.
PAPER = ("nemotron-super", "nemotron-nano", "qwen3.5-122b", "qwen3.5-4b")
GPU = "h200-sxm"
INDEX = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>perfkit: gallery</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 760px; margin: 24px auto; padding: 0 16px; }}</style>
<h1>Reports of what ships with perfkit</h1>
{}
</html>
"""


def shipped() -> dict[str, list[Run]]:
    """Return the shipped measurements by the key of their model, in the order of their names."""
    found: dict[str, list[Run]] = {}
    for name in measured_files():
        run = load(Path(name))
        found.setdefault(str(run.frame["model"].iloc[0]), []).append(run)
    return found


def predicted(model: str) -> list[Run]:
    """Return the run of a sweep without a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / f"{model}-{GPU}"
        command = ["sweep", "--model", model, "--gpu", GPU, "--out", str(run)]
        subprocess.run([sys.executable, "-m", "perfkit", *command], check=True, stdout=subprocess.DEVNULL)
        return load_all([run])


def entry(name: str, run: Run) -> str:
    """Return a page's lines of the index: the link, and what it says first."""
    lines = [": ".join(filter(None, (said["workload"], said["headline"]))) for said in answers([run])]
    listed = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f'<p><a href="{html.escape(name)}.html">{html.escape(name)}</a></p>\n<ul>{listed}</ul>'


def main(folder: Path) -> None:
    """Write the pages and the index."""
    folder.mkdir(parents=True, exist_ok=True)
    known = shipped()
    entries = []
    for key in dict.fromkeys([*(load_model(key).key for key in PAPER), *known]):
        entries.append(f"<h2>{html.escape(key)}</h2>")
        for run in known.get(key) or predicted(key):
            print(write_text(render([run]), folder / f"{run.name}.html"), flush=True)
            entries.append(entry(run.name, run))
    print(write_text(INDEX.format("\n".join(entries)), folder / "index.html"))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "gallery"))
