"""The roofs of a GPU as a person reads them: tables over bytes moved, then a line for each other kind of roof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfkit.cli.common import print_table
from perfkit.cli.roofline_run import datasheet, differ_text
from perfkit.progress import count
from perfkit.roofline.latency import L2_OVER_DRAM

if TYPE_CHECKING:
    from perfkit.cli.roofline_run import Answer, Request
    from perfkit.roofs import Difference

MIB = 1 << 20
#: Kinds of each table; kinds of several places were measured at sizes of their own.
SINGLE = ("read", "inplace", "copy", "write")
MIXES = ("4r1w", "2r1w", "1r2w", "1r4w", "1r8w")
PRODUCT_NAMES = {"bf16": "BF16 tensor", "tf32": "TF32 tensor", "fp32": "FP32"}
COST_NAMES = {"launch_us": "launch from Python", "graph_node_us": "node of a graph", "graph_us": "graph of one node"}
#: Differences that a comparison lists.
MAX_LINES = 5


def show(answer: Answer, request: Request) -> None:
    """Print the roofs of an answer on stdout."""
    data = answer.data
    print(_head(answer))
    _table(data["points"], SINGLE, "DRAM: GB/s by bytes moved, reads and writes together, cold")
    _table(data["points"], MIXES, "DRAM, mixes: N reads for a write (Nr1w), N writes for a read (1rNw)")
    products = _products(answer)
    lines = [("L2", _l2(answer)), ("products", products[0]), *(("", text) for text in products[1:]),
             ("costs", _costs(data)), ("datasheet", _stated(answer))]  # fmt: skip
    if answer.agreement is not None:
        lines.append(("runs", differ_text(answer.agreement, request.tolerance)))
    if answer.comparison is not None:
        lines.append(("compared", f"with {request.compare}: {differ_text(answer.comparison, request.tolerance)}"))
        worst = sorted((one for one in answer.comparison.roofs if one.size), key=lambda one: -one.size)[:MAX_LINES]
        lines += [("", _change(one.name, one)) for one in worst]
        lines += [("", f"{_change(COST_NAMES[one.name], one)}, not judged") for one in answer.comparison.costs]
    lines.append(("roofs", _whose(answer)))
    for name, text in lines:
        print(f"{name:<9} {text}")


def _change(name: str, one: Difference) -> str:
    return f"{name}: {one.base:.4g} -> {one.new:.4g} {one.unit} ({one.change:+.2%})"


def _head(answer: Answer) -> str:
    data = answer.data
    word = "MEASURED" if answer.measured else answer.roofs.origin.upper() if answer.roofs.calibrated else "DATASHEET"
    word = {"HERE": "YOUR OWN"}.get(word, word)
    parts = [f"{word:<9} {answer.gpu.name}"]
    if data.get("driver"):
        parts.append(f"driver {data['driver']}")
    if data.get("sm_clock_mhz"):
        parts.append(f"SM {data['sm_clock_mhz']:.0f} MHz")
    if data.get("power_limit_w"):
        parts.append(f"power limit {data['power_limit_w']:.0f} W")
    if answer.measured or data.get("throttled"):
        dropped = data.get("throttled")
        parts.append("throttled samples unknown: the driver does not say" if dropped is None else
                     f"{count(dropped, 'throttled sample')} dropped")  # fmt: skip
    return ", ".join(parts)


def _table(points: Sequence[Mapping[str, Any]], kinds: Sequence[str], title: str) -> None:
    there = [kind for kind in kinds if any(point["kind"] == kind for point in points)]
    if not there:
        return
    rates = {(point["kind"], point["bytes"]): point["bandwidth_gb_s"] for point in points}
    sizes = sorted({size for kind, size in rates if kind in there})
    rows = [[f"{size / MIB:.4g} MiB", *(_whole(rates.get((kind, size))) for kind in there)] for size in sizes]
    print(title)  # a table's own title would be folded to its width
    print_table(["moved", *("in place" if kind == "inplace" else kind for kind in there)], rows)
    print()


def _whole(rate: float | None) -> int | None:
    return None if rate is None else round(rate)


def _l2(answer: Answer) -> str:
    points = answer.data["l2"]
    if not points:
        return f"not measured; {L2_OVER_DRAM:g} times DRAM stands in"
    return "reads " + ", ".join(
        f"{point['bandwidth_gb_s']:,.0f} GB/s in {point['bytes'] / MIB:.4g} MiB" for point in points
    )


def _products(answer: Answer) -> list[str]:
    """Return a line for each kind of product, or one that says what stands in for them."""
    stated = datasheet(answer.gpu)
    found = [_product(rate, stated.get(f"{rate['kind']}_tflops")) for rate in answer.data["rates"]]
    return found or ["not measured; the datasheet stands in"]


def _product(rate: Mapping[str, Any], stated: float | None) -> str:
    text = f"{PRODUCT_NAMES[rate['kind']]} {rate['tflops']:.4g} TFLOP/s"
    about = [f"{rate['tflops'] / stated:.0%} of the datasheet"] if stated else []
    if rate.get("sm_clock_mhz"):
        about.append(f"{rate['sm_clock_mhz']:.0f} MHz")
    if rate.get("power_w"):
        about.append(f"{rate['power_w']:.0f} W")
    if rate.get("capped"):
        about.append("at the power cap" if rate["capped"] == 1 else f"{rate['capped']:.0%} at the power cap")
    return f"{text} ({', '.join(about)})" if about else text


def _costs(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{words} {data[name]:.3g} us" for name, words in COST_NAMES.items() if data.get(name))


def _stated(answer: Answer) -> str:
    stated = datasheet(answer.gpu)
    rates = ", ".join(f"{PRODUCT_NAMES[kind]} {stated[f'{kind}_tflops']:g}" for kind in PRODUCT_NAMES
                      if stated[f"{kind}_tflops"])  # fmt: skip
    return f"{stated['bandwidth_gb_s']:,g} GB/s; {rates} TFLOP/s; L2 {stated['l2_mib']:g} MiB"


def _whose(answer: Answer) -> str:
    if answer.saved is not None and answer.roofs.origin == "here":
        return f"{answer.roofs.described}: every later command goes by {answer.saved}"
    if answer.saved is not None:
        return f"saved to {answer.saved}; `perfkit roofline` without --out makes every later command go by its roofs"
    if answer.measured:
        return str(answer.unsaved)
    where = answer.roofs.file or (answer.data["source"] if not answer.roofs.calibrated else None)
    return f"{answer.roofs.described}: {where}" if where and answer.roofs.origin != "file" else answer.roofs.described
