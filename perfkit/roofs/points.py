"""What is measured of a GPU's roofs, in which order, and what each measurement comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from perfkit.errors import DeviceError
from perfkit.kernels import l2, stream
from perfkit.kernels.stream import STREAMS, Stream
from perfkit.measure import Series
from perfkit.method import Config
from perfkit.stats import Interval

MIB = 1 << 20
#: The kind of a point of L2, beside those of perfkit.kernels.stream.STREAMS.
L2 = "l2"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        sizes: bytes moved, reads and writes together, of kinds that read and write one place at most.
        mix_sizes: of those of several places: for each a whole number of places, in no more memory than above. Small
            ones are left out to save time: below these the model takes the shape of updates in place.
        l2_shares: working sets, in units of L2.
        rate_s: seconds that each kind of matrix product is timed.
    """

    sizes: tuple[int, ...] = tuple(n * MIB for n in (1, 4, 16, 64, 256, 1024, 2048))
    mix_sizes: tuple[int, ...] = tuple(n * MIB for n in (90, 270, 1080, 2160))
    l2_shares: tuple[float, ...] = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
    rate_s: float = 1.0


FULL = Plan()
QUICK = Plan(tuple(n * MIB for n in (1, 16, 256)), (270 * MIB,), (1 / 4,), 0.3)


@dataclass(frozen=True, slots=True)
class Point:
    """Bandwidth at one size.

    Attributes:
        kind: one of :data:`perfkit.kernels.stream.STREAMS`, or L2.
        moved: bytes, reads and writes together; of L2 those of the working set, which is read once in this time.
        time_us: of the fastest configuration, median and 95 % interval.
        config: that configuration.
        dropped: throttled samples of all configurations; None where the driver does not say.
        clock_mhz: SM clock after the samples, median.
    """

    kind: str
    moved: int
    time_us: Interval
    config: Config
    dropped: int | None = 0
    clock_mhz: float | None = None

    @property
    def bandwidth_gb_s(self) -> Interval:
        """Bytes moved per time, 10^9 bytes per second."""
        rate = self.moved / 1e3
        return Interval(rate / self.time_us.value, rate / self.time_us.hi, rate / self.time_us.lo)


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of one kind of matrix product, sustained.

    Attributes:
        kind: bf16, tf32 or fp32.
        size: of the square matrices.
        tflops: 10^12 floating-point operations per second, median and 95 % interval.
        clock_mhz: SM clock, median.
        power_w: the driver's last reading while it ran, which may itself be a mean over a second.
        capped: share of the samples at the GPU's power cap, where the cap is the roof; None where it does not say.
        dropped: samples that throttled for another reason; None where the driver does not say.
    """

    kind: str
    size: int
    tflops: Interval
    clock_mhz: float | None = None
    power_w: float | None = None
    capped: float | None = 0.0
    dropped: int | None = 0


@dataclass(frozen=True, slots=True)
class Costs:
    """What starting costs, in microseconds: a launch from Python, a node of a graph, a graph of one empty node."""

    launch_us: float
    graph_node_us: float
    graph_us: float


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that one run measured; ``l2_bytes`` is what "cold" was measured by."""

    costs: Costs
    points: tuple[Point, ...]
    l2: tuple[Point, ...]
    rates: tuple[Rate, ...]
    l2_bytes: int


class Bench(Protocol):
    """What times; tests have one of their own."""

    l2_bytes: int

    def largest(self) -> int:
        """Return the most bytes of memory that a launch may touch."""
        ...

    def stream(self, stream: Stream, moved: int, configs: Sequence[Config]) -> dict[Config, Series]:
        """Return samples of one launch over ``moved`` bytes, in microseconds, for each configuration."""
        ...

    def l2_read(self, held: int, configs: Sequence[Config]) -> dict[Config, Series]:
        """Return samples of reading ``held`` bytes, which lie in L2, once, in microseconds, for each configuration."""
        ...

    def kinds_of_products(self) -> Sequence[str]:
        """Return the kinds of matrix products that this GPU is timed with."""
        ...

    def product(self, kind: str, seconds: float) -> Rate:
        """Return the rate of one of them, sustained for ``seconds``."""
        ...

    def costs(self) -> Costs:
        """Return what launches and graphs cost."""
        ...


def measure(bench: Bench, plan: Plan = FULL, tell: Callable[[str, str, int], None] | None = None) -> Found:
    """Measure everything that memory holds.

    Args:
        bench: what times.
        plan: what to measure.
        tell: called after each measurement with its name, what came out, and how many there are in all.

    Raises:
        DeviceError: the GPU throttled during every sample of a point, or memory holds no size.
    """
    tasks = list(_tasks(bench, plan))
    found: list[Costs | Point | Rate] = []
    for name, task in tasks:
        one = task()
        found.append(one)
        if tell is not None:
            tell(name, text(one), len(tasks))
    points = [one for one in found if isinstance(one, Point)]
    (costs,) = (one for one in found if isinstance(one, Costs))
    return Found(
        costs,
        tuple(point for point in points if point.kind != L2),
        tuple(point for point in points if point.kind == L2),
        tuple(one for one in found if isinstance(one, Rate)),
        bench.l2_bytes,
    )


def _tasks(bench: Bench, plan: Plan) -> Iterator[tuple[str, Callable[[], Costs | Point | Rate]]]:
    """Yield what is to be done, with its name. Products come last: they warm the GPU up to its power cap."""
    yield "launches", bench.costs
    pairs = [(one, moved) for moved in plan.sizes for one in STREAMS.values() if one.places == 1]
    pairs += [(one, moved) for moved in plan.mix_sizes for one in STREAMS.values() if one.places > 1]
    fitting = [(one, moved) for one, moved in pairs if one.footprint(moved) <= bench.largest()]
    if not {"read", "inplace"} <= {one.kind for one, _ in fitting}:
        raise DeviceError(f"too little free GPU memory for a stream of {min(plan.sizes) / MIB:.0f} MiB")
    for one, moved in fitting:
        yield _name(one.kind, moved), partial(_stream_point, bench, one, moved)
    for share in plan.l2_shares:
        held = l2.whole_tiles(round(share * bench.l2_bytes))
        if held:
            yield _name(L2, held), partial(_l2_point, bench, held)
    for kind in bench.kinds_of_products():
        yield f"{kind} products", partial(bench.product, kind, plan.rate_s)


def _stream_point(bench: Bench, one: Stream, moved: int) -> Point:
    return best_point(one.kind, moved, bench.stream(one, moved, stream.CONFIGS))


def _l2_point(bench: Bench, held: int) -> Point:
    return best_point(L2, held, bench.l2_read(held, l2.CONFIGS))


def _name(kind: str, moved: int) -> str:
    return f"{kind} {moved / MIB:.4g} MiB"


def text(one: Costs | Point | Rate) -> str:
    """Return what a measurement came to, for a line of progress."""
    if isinstance(one, Point):
        rate = one.bandwidth_gb_s
        return f"{rate.value:.0f} GB/s [{rate.lo:.0f},{rate.hi:.0f}], {one.config}"
    if isinstance(one, Rate):
        clock = f" at {one.clock_mhz:.0f} MHz" if one.clock_mhz is not None else ""
        power = f", {one.power_w:.0f} W" if one.power_w is not None else ""
        return f"{one.tflops.value:.4g} TFLOP/s{clock}{power}"
    return f"{one.launch_us:.2f} us, node of a graph {one.graph_node_us:.2f} us, graph {one.graph_us:.1f} us"


def best_point(kind: str, moved: int, series: Mapping[Config, Series]) -> Point:
    """Return the point of the fastest configuration; those without two quiet samples do not count.

    Raises:
        DeviceError: none has.
    """
    quiet = {config: one for config, one in series.items() if len(one.times) >= 2}
    dropped = sum(len(one.throttled) for one in series.values())
    if not quiet:
        reasons = sorted({reason for one in series.values() for reason in one.reasons})
        raise throttled(_name(kind, moved), dropped, reasons)
    config, found = min(quiet.items(), key=lambda item: item[1].interval().value)
    known = all(one.known for one in series.values())
    return Point(kind, moved, found.interval(), config, dropped if known else None, found.clock_mhz)


def throttled(what: str, dropped: int, reasons: Sequence[str]) -> DeviceError:
    """Return the error for samples that are all spoiled."""
    return DeviceError(f"the GPU throttled during all {dropped} samples of {what} ({', '.join(reasons)}): "
                       "let it cool down, or raise its power limit")  # fmt: skip
