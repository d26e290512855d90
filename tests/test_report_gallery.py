"""The gallery has a page of each measurement that ships, and an index that says what each page says first."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


def test_gallery_has_pages_and_an_index(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("gallery_script", root / "scripts" / "gallery.py")
    assert spec is not None and spec.loader is not None
    gallery = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(gallery)
    files = gallery.measured_files()
    name = "nemotron-super-verify-t16-h200"
    assert {"nemotron-3-super-120b-a12b", "nemotron-3-nano-4b"} <= set(gallery.shipped())
    monkeypatch.setattr(gallery, "measured_files", lambda: {name: files[name]})
    monkeypatch.setattr(gallery, "PAPER", ("nemotron-super",))
    gallery.main(tmp_path / "gallery")
    index = (tmp_path / "gallery" / "index.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in (tmp_path / "gallery").iterdir()) == ["index.html", f"{name}.html"]
    assert f'<a href="{name}.html">' in index and "Replay at L = " in index
    assert "recorded" in (tmp_path / "gallery" / f"{name}.html").read_text(encoding="utf-8")


def test_example_is_small_and_linked(root: Path) -> None:
    example = root / "docs" / "example-report.html"
    assert example.stat().st_size < 6e6 and (root / "docs" / "report.png").stat().st_size < 3e5
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert "docs/example-report.html" in readme and "docs/report.png" in readme
