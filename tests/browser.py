"""Opening a page in Chromium and noting everything that it should not do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ARGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
)  # fmt: skip


@dataclass
class Watched:
    """A page, what it wrote to the console, the errors it threw and the requests it made beyond its own file."""

    page: Any
    console: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def browser(executable: str) -> Iterator[Any]:
    """Start Chromium; skips the test where Playwright is not installed."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=list(ARGS))
        try:
            yield started
        finally:
            started.close()


SCROLL_THROUGH = """async () => {
  for (const item of document.querySelectorAll('details')) item.open = true;
  for (const plot of document.querySelectorAll('.plot')) {
    plot.scrollIntoView();
    while (!plot.matches('.js-plotly-plot')) await new Promise(requestAnimationFrame);
  }
  scrollTo(0, 0);
}"""


@contextmanager
def opened(
    started: Any, path: Path, *, scheme: str = "light", width: int = 1200, height: int = 900, scroll: bool = True
) -> Iterator[Watched]:
    """Open a report; ``scroll`` goes through it, so that all its figures are drawn and not only the near ones."""
    context = started.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
    )
    try:
        page = context.new_page()
        seen = Watched(page)
        address = path.resolve().as_uri()

        def note(request: Any) -> None:
            if request.url.split("#")[0] != address and not request.url.startswith(("data:", "blob:")):
                seen.requests.append(request.url)

        page.on("console", lambda message: seen.console.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.on("request", note)
        page.goto(address)
        page.wait_for_selector("body[data-drawn]", timeout=20_000)
        if scroll:
            page.evaluate(SCROLL_THROUGH)
        yield seen
    finally:
        context.close()


#: True once every figure that was drawn has the width of its place and the colours of the scheme.
SETTLED = """(background) => [...document.querySelectorAll('.js-plotly-plot')].every((plot) =>
  plot.layout.width === plot.clientWidth && plot.querySelector('.main-svg').style.background === background)"""
BACKGROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 30)"}


def settle(page: Any, width: int, scheme: str) -> None:
    """Give an open page another width and scheme, and wait until its figures have both."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_function(SETTLED, arg=BACKGROUNDS[scheme])


#: Labels of figures that touch each other.
OVERLAPS = """() => {
  const hits = [];
  for (const plot of document.querySelectorAll('.plot')) {
    const boxes = [...plot.querySelectorAll('.annotation-text-g')].map(
      (g) => [g.textContent, g.getBoundingClientRect()]);
    for (let i = 0; i < boxes.length; i++) for (let j = 0; j < i; j++) {
      const [a, b] = [boxes[i][1], boxes[j][1]];
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
        hits.push(`${plot.id}: ${boxes[i][0]} / ${boxes[j][0]}`);
    }
  }
  return hits;
}"""
