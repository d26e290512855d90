"""Names beside the points of two logarithmic axes: every case has one, and none touches another, a point or a line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.reports import theme
from perfkit.reports.figures.base import AREA_PX, add_annotations
from perfkit.reports.text import integer, plot_text

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from numpy.typing import NDArray

#: Widths of the plot area for which a name must find a free place; on narrower ones the page leaves the names out.
WIDTHS = (560, 940)
#: Points of a method that are nearer than this to each other, in pixels, share a name.
NEAR = (20, 11)
#: More names than this are no help.
MAX_NAMES = 60
_HEIGHT, _CHARACTER = 13, 6.3
Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Point:
    """A case: where it stands, in the units of the axes, and what tells it from the others of its method."""

    x: float
    y: float
    method: str
    window: float | None
    batch: float
    step: str


def label_points(
    figure: go.Figure, points: Sequence[Point], lines: Sequence[tuple[float, float]],
    x_range: tuple[float, float], y_range: tuple[float, float],
) -> None:  # fmt: skip
    """Write the names; ``lines`` are places that lines run through, the ranges are the axes', as powers of ten."""

    def to_pixels(width: int) -> Callable[[float, float], tuple[float, float]]:
        def pixel(x: float, y: float) -> tuple[float, float]:
            across = (math.log10(x) - x_range[0]) / (x_range[1] - x_range[0]) * width
            return across, (math.log10(y) - y_range[0]) / (y_range[1] - y_range[0]) * AREA_PX

        return pixel

    scales = [to_pixels(width) for width in WIDTHS]
    taken = [
        np.array([*_thinned(_around(*pixel(point.x, point.y), 7, 6) for point in points),
                  *_thinned(_around(*pixel(*place), 2, 3) for place in lines)])
        for pixel in scales
    ]  # fmt: skip
    names = []
    for cluster in clusters(points, scales[0])[:MAX_NAMES]:
        text = name(cluster, points)
        at = cluster[len(cluster) // 2]
        boxes = [_boxes(*pixel(at.x, at.y), len(text) * _CHARACTER) for pixel in scales]
        free = np.logical_and(*map(_are_free, boxes, taken, WIDTHS))
        if not free.any():
            continue
        first = int(free.argmax())
        taken = [np.vstack([old, new[first]]) for old, new in zip(taken, boxes, strict=True)]
        names.append(_annotation(at, text, *_PLACES[first]))
    add_annotations(figure, names)


def _thinned(boxes: Iterable[Box]) -> Iterable[Box]:
    """Of boxes of one size leave out those within two pixels of another."""
    return {(box[0] // 2, box[1] // 2): box for box in boxes}.values()


def clusters(points: Sequence[Point], pixel: Callable[[float, float], tuple[float, float]]) -> list[list[Point]]:
    """Put points of one method that nearly touch into one cluster, from its lowest to its highest."""
    found: list[list[tuple[float, float, Point]]] = []
    reachable: dict[str, list[list[tuple[float, float, Point]]]] = {}
    for point in sorted(points, key=lambda point: (point.y, point.x)):
        px, py = pixel(point.x, point.y)
        mine = [cluster for cluster in reachable.get(point.method, []) if py - cluster[-1][1] < NEAR[1]]
        cluster = next((cluster for cluster in mine if _is_near(cluster, px, py, point)), None)
        if cluster is None:
            cluster = []
            mine.append(cluster)
            found.append(cluster)
        cluster.append((px, py, point))
        reachable[point.method] = mine
    return [[point for *_, point in cluster] for cluster in found]


def _is_near(cluster: Sequence[tuple[float, float, Point]], px: float, py: float, point: Point) -> bool:
    """True if a point of the cluster with the same batch or the same window nearly touches this one."""
    return any(
        abs(px - x) < NEAR[0] and abs(py - y) < NEAR[1] and (other.batch == point.batch or other.window == point.window)
        for x, y, other in reversed(cluster)
    )


def name(cluster: Sequence[Point], points: Sequence[Point]) -> str:
    """Name the cases of a cluster: ``L = 8–32, B = 64–512``, of a method without windows the method.

    What all ``points`` share is left out.
    """
    windows = sorted({point.window for point in cluster if point.window is not None})
    first = f"L = {_span(windows)}" if windows else cluster[0].method
    steps = list(dict.fromkeys(point.step for point in cluster))
    more = steps[0] if len(steps) == 1 else f"{len(steps)} kinds of step"
    parts = [first, more if len({point.step for point in points}) > 1 else ""]
    if len({point.batch for point in points}) > 1:
        parts.append(f"B = {_span(sorted({point.batch for point in cluster}))}")
    return ", ".join(filter(None, parts))


def _span(values: Sequence[float]) -> str:
    return integer(values[0]) if len(values) == 1 else f"{integer(values[0])}–{integer(values[-1])}"


def _places() -> Iterator[tuple[float, float, str]]:
    near = [(10, 0), (10, -13), (10, 13), (22, -26), (22, 26)]
    far = [(right, up) for right in (34, 64, 104, 154, 214, 284) for up in range(-12 * 15, 12 * 15 + 1, 15)]
    for right, up in [*near, *sorted(far, key=lambda place: math.hypot(*place))]:
        yield right, up, "left"
        yield -right, up, "right"


#: Where a name may stand, the nearest first: pixels to the right and upwards, and which end of it stands there.
_PLACES = tuple(_places())


def _around(px: float, py: float, width: float, height: float) -> Box:
    return px - width, py - height, px + width, py + height


def _boxes(px: float, py: float, width: float) -> NDArray[np.float64]:
    """Return the box of a name at each of the places: left, bottom, right, top."""
    left = [px + right - (width if anchor == "right" else 0) for right, _, anchor in _PLACES]
    middle = [py + up for _, up, _ in _PLACES]
    return np.array([(x, y - _HEIGHT / 2, x + width, y + _HEIGHT / 2) for x, y in zip(left, middle, strict=True)])


def _are_free(boxes: NDArray[np.float64], taken: NDArray[np.float64], width: int) -> NDArray[np.bool_]:
    """Say of each box whether it is inside the plot area and touches nothing."""
    inside = (boxes[:, 0] >= 0) & (boxes[:, 2] <= width) & (boxes[:, 1] >= 0) & (boxes[:, 3] <= AREA_PX)
    mine, other = boxes[:, None, :], taken[None, :, :]
    hits = (mine[..., 0] < other[..., 2]) & (other[..., 0] < mine[..., 2])
    hits &= (mine[..., 1] < other[..., 3]) & (other[..., 1] < mine[..., 3])
    return np.asarray(inside & ~hits.any(axis=1))


def _annotation(at: Point, text: str, dx: float, dy: float, anchor: str) -> dict[str, Any]:
    colour = theme.method_style(at.method).light
    # An annotation with an arrow stands at the arrow's tail; near ones need none.
    led = {"showarrow": True, "ax": dx, "ay": -dy, "arrowhead": 0, "arrowwidth": 0.8, "arrowcolor": colour,
           "standoff": 5}  # fmt: skip
    where = led if max(abs(dx), abs(dy)) > 15 else {"showarrow": False, "xshift": dx, "yshift": dy}
    return {"x": math.log10(at.x), "y": math.log10(at.y), "text": plot_text(text), "xanchor": anchor,
            "yanchor": "middle", "font": {"size": 11, "color": colour}, "name": "point-label", **where}  # fmt: skip
