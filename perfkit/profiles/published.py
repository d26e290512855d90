"""What the paper and its authors published, one YAML file a figure or table in ``paper/``, to hold results against.

A file has a title, groups of cells, and ``all``: fields of every cell. A group's fields hold for its cells, a cell's go
before them. Every cell must say all of :data:`STATED`, ``null`` where there is no such thing, and either a value, a
range (``low``, ``high`` or both), or why it has none (``lost``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfkit.errors import InputError
from perfkit.profiles.fields import items, mapping, number, plain_text, refuse_unknown, whole
from perfkit.profiles.yamlfile import read_yaml
from perfkit.shape import dtype_name

PAPER = Path(__file__).parent / "paper"

#: What is published, by what it takes to have it here: rows of a sweep, a formula, a whole step of a model, a model's
#: outputs. Each with its unit.
QUANTITIES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        # Of one state-space layer. kernel_speedup: the baseline's time over the method's; kernel_cost: the inverse.
        "kernel_speedup": ("kernel", "x"),
        "kernel_cost": ("kernel", "x"),
        "kernel_steps": ("kernel", "conventional steps"),
        "kernel_us": ("kernel", "us"),
        "kernel_default_us": ("kernel", "us"),
        "kernel_tuning_gain": ("kernel", "x"),
        "kernel_nonflush_speedup": ("kernel", "x"),
        "kernel_bandwidth_share": ("kernel", "% of peak"),
        "kernel_best_window": ("kernel", "tokens"),
        "n_ssm_layers": ("formula", "layers"),
        "n_attn_layers": ("formula", "layers"),
        "n_k_heads": ("formula", "heads"),
        "n_v_heads": ("formula", "heads"),
        "d_k": ("formula", "elements"),
        "d_v": ("formula", "elements"),
        "step_state_gb": ("formula", "GB"),
        "state_reads": ("formula", "R"),
        "state_writes": ("formula", "W"),
        "traffic_ratio": ("formula", "x"),
        "traffic_gain": ("formula", "x"),
        "write_ratio": ("formula", "x"),
        "intensity": ("formula", "FLOP/byte"),
        "balance_fp32": ("formula", "FLOP/byte"),
        "balance_bf16": ("formula", "FLOP/byte"),
        "layer_state_mib": ("formula", "MiB"),
        "step_state_mib": ("formula", "MiB"),
        "batch_state_gb": ("formula", "GB"),
        "layer_kv_kib": ("formula", "KiB"),
        "state_kv_tokens": ("formula", "tokens"),
        "crossover_tokens": ("formula", "tokens"),
        "state_records": ("formula", "x"),
        "formula_window": ("formula", "tokens"),
        "record_factor": ("formula", "x"),
        "output_only_factor": ("formula", "x"),
        "request_mb": ("formula", "MB"),
        "request_ratio": ("formula", "x"),
        "requests": ("formula", "requests"),
        "step_speedup": ("step", "x"),
        "step_crossover_tokens": ("step", "tokens"),
        "serving_speedup": ("step", "x"),
        "serving_tokens_per_s": ("step", "tok/s"),
        "kl": ("model", "nat"),
        "kl_ratio": ("model", "x"),
        "accuracy": ("model", "%"),
        "accuracy_change": ("model", "pp"),
        "output_tokens": ("model", "tokens"),
        "probability": ("model", "1"),
        "share": ("model", "%"),
        "acceptance_difference": ("model", "tokens"),
        "count": ("model", "1"),
    }
)
#: What every cell must say.
STATED = ("quantity", "unit", "source", "where", "gpu", "implementation", "baseline", "model", "batch", "draft_len",
          "window", "acceptance", "routing")  # fmt: skip
_MAY = ("method", "state_dtype", "read_dtype", "step", "context", "engine", "label", "note")
_VALUES = ("value", "low", "high", "lost")
_FILE = ("title", "all", "groups")
#: How requests of a whole step chose experts: one prompt sent B times, or as many prompts.
ROUTINGS = ("identical", "independent")
STEPS = ("nonflush", "flush")
_NEGATIVE = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperCell:
    """One published number, or a range, or the place of one that is not published.

    Attributes:
        quantity: a key of :data:`QUANTITIES`.
        unit: its unit.
        low: the number, or the lower end of a range; None where there is none.
        high: the number, or the upper end.
        lost: why there is no number; None where there is one.
        source: the document.
        where: table, figure, equation or section in it.
        gpu: key of the GPU's profile; None for what no GPU decides.
        implementation: whose kernels or formula.
        baseline: ``METHOD, tuned`` or ``METHOD, default`` for a ratio of kernels' times, free words otherwise; None
            where the number is not relative.
        models: keys of profiles; a range goes over all of them.
        batches, draft_lens, windows, acceptances: the points that it is of; empty where there are none, or where they
            are not stated.
        routing: how requests chose experts; None where nothing does.
        method: the method it is of.
        state_dtype: dtype of the recurrence's state.
        read_dtype: dtype of the checkpoint that most steps read.
        step: flush or nonflush; None for the mean over whole periods.
        context: tokens of a request.
        engine: whose allocation.
        label: what tells it from its neighbours.
        note: what else a reader should know.
    """

    quantity: str
    unit: str
    low: float | None
    high: float | None
    lost: str | None
    source: str
    where: str
    gpu: str | None
    implementation: str
    baseline: str | None
    models: tuple[str, ...]
    batches: tuple[int, ...]
    draft_lens: tuple[int, ...]
    windows: tuple[int, ...]
    acceptances: tuple[str, ...]
    routing: str | None
    method: str | None = None
    state_dtype: str | None = None
    read_dtype: str | None = None
    step: str | None = None
    context: int | None = None
    engine: str | None = None
    label: str | None = None
    note: str | None = None

    @property
    def kind(self) -> str:
        """What it takes to have it here: kernel, formula, step or model."""
        return QUANTITIES[self.quantity][0]

    @property
    def is_range(self) -> bool:
        """Whether the two ends differ, or one is open."""
        return self.lost is None and self.low != self.high


@dataclass(frozen=True, slots=True)
class PaperTable:
    """One figure, table or set of equations: its name, its title, its cells in order."""

    name: str
    title: str
    cells: tuple[PaperCell, ...]


def paper_names(directory: Path | None = None) -> list[str]:
    """Return the names of what is there: figures, tables, then the rest, each by number."""

    def order(name: str) -> tuple[int, int, str]:
        head = name.rstrip("0123456789")
        kind = ("fig", "table").index(head) if head in ("fig", "table") else 2
        return kind, int(name[len(head) :] or 0), name

    return sorted((path.stem for path in (directory or PAPER).glob("*.yaml")), key=order)


def load_paper(name: str, directory: Path | None = None) -> PaperTable:
    """Return one figure or table.

    Raises:
        InputError: no such name, an unknown or missing field, or a value that is refused.
    """
    names = paper_names(directory)
    if name not in names:
        raise InputError("is not among the published figures", field="NAME", value=name, allowed=names)
    path = (directory or PAPER) / f"{name}.yaml"
    data = read_yaml(path)
    refuse_unknown(data, _FILE, path, "")
    title = plain_text(data.get("title"), path, "title")
    shared = mapping(data.get("all", {}), path, "all")
    cells = []
    for group, at in items(data.get("groups"), path, "groups", "group"):
        fields = dict(mapping(group, path, at))
        for item, where in items(fields.pop("cells", None), path, f"{at}.cells", "cell"):
            cells.append(_cell({**shared, **fields, **mapping(item, path, where)}, path, where))
    return PaperTable(name, title, tuple(cells))


def _cell(data: Mapping[str, Any], path: Path, where: str) -> PaperCell:
    refuse_unknown(data, (*STATED, *_MAY, *_VALUES), path, f"{where}.")
    for name in STATED:
        if name not in data:
            raise InputError("missing; say null where there is none", file=path, field=f"{where}.{name}")

    def text(name: str, allowed: Sequence[str] | None = None) -> str | None:
        if data.get(name) is None:
            return None
        value = plain_text(data[name], path, f"{where}.{name}")
        if allowed is not None and value not in allowed:
            raise InputError("unknown value", file=path, field=f"{where}.{name}", value=value, allowed=allowed)
        return value

    def needed(name: str, allowed: Sequence[str] | None = None) -> str:
        value = text(name, allowed)
        if value is None:
            raise InputError("must not be empty", file=path, field=f"{where}.{name}")
        return value

    def several(name: str) -> list[Any]:
        value = data.get(name)
        return [] if value is None else value if isinstance(value, list) else [value]

    def wholes(name: str) -> tuple[int, ...]:
        return tuple(whole(one, file=path, field=f"{where}.{name}", minimum=1) for one in several(name))

    def texts(name: str) -> tuple[str, ...]:
        return tuple(plain_text(one, path, f"{where}.{name}") for one in several(name))

    def dtype(name: str) -> str | None:
        value = text(name)
        return None if value is None else dtype_name(value, field=f"{path}: {where}.{name}")

    quantity = needed("quantity", list(QUANTITIES))
    low, high, lost = _ends(data, path, where)
    return PaperCell(
        quantity=quantity, unit=needed("unit", [QUANTITIES[quantity][1]]), low=low, high=high, lost=lost,
        source=needed("source"), where=needed("where"), gpu=text("gpu"), implementation=needed("implementation"),
        baseline=text("baseline"), models=texts("model"), batches=wholes("batch"), draft_lens=wholes("draft_len"),
        windows=wholes("window"), acceptances=texts("acceptance"), routing=text("routing", ROUTINGS),
        method=text("method"), state_dtype=dtype("state_dtype"), read_dtype=dtype("read_dtype"),
        step=text("step", STEPS), engine=text("engine"), label=text("label"), note=text("note"),
        context=whole(data["context"], file=path, field=f"{where}.context", minimum=1) if "context" in data else None,
    )  # fmt: skip


def _ends(data: Mapping[str, Any], path: Path, where: str) -> tuple[float | None, float | None, str | None]:
    """Return the lower and the upper end, or why there is none."""
    there = [name for name in _VALUES if data.get(name) is not None]
    if there not in (["value"], ["low"], ["high"], ["low", "high"], ["lost"]):
        raise InputError("must have a value, or low and high, or say why it is lost", file=path, field=where,
                         value=", ".join(there) or "none")  # fmt: skip
    if there == ["lost"]:
        return None, None, plain_text(data["lost"], path, f"{where}.lost")
    ends = {name: float(number(data[name], file=path, field=f"{where}.{name}", minimum=_NEGATIVE)) for name in there}
    low, high = ends.get("value", ends.get("low")), ends.get("value", ends.get("high"))
    if low is not None and high is not None and low > high:
        raise InputError("low is above high", file=path, field=where, value=f"{low:g} > {high:g}")
    return low, high, None
