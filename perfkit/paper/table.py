"""A published figure beside ours: each cell compared, misses first, and the lines of its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from perfkit.paper.commands import missing_commands
from perfkit.paper.formulas import formula_value
from perfkit.paper.ours import Compared, Ours, Predicted, compared, differences
from perfkit.paper.predicted import predicted_cause, predicted_value
from perfkit.paper.rows import Rows, kernel_value
from perfkit.profiles import load_model
from perfkit.profiles.published import PaperCell, PaperTable

WHOLE_MODEL = "not measured; outputs of whole models, which perfkit does not run"
TWO_PRECISIONS = "not measured; kernels that read a second, lower-precision checkpoint are not there yet"
NOT_STATED = "not measured; the publication does not say of which kernels"

COLUMNS = ("what", "model", "B", "T", "L", "a", "published", "ours", "unit", "ours is", "ratio", "verdict")
_MAY_BE_COMMON = ("model", "B", "T", "L", "a", "unit", "ours is")


def compare_table(table: PaperTable, rows: Rows) -> list[Compared]:
    """Return each cell with ours: misses first, then what agrees, is not comparable, not there, not published."""
    items: dict[int, Compared] = {}
    wanting: list[PaperCell] = []
    for cell in table.cells:
        if cell.kind == "kernel":
            ours = kernel_value(cell, rows)
        else:
            ours = formula_value(cell) if cell.kind == "formula" and cell.lost is None else None
        guess = predicted_value(cell) if _is_predicted(cell, ours, rows) else None
        if isinstance(guess, Predicted):
            items[id(cell)] = _predicted(cell, guess, ours)
            continue
        absent = None if ours else guess or _absent(cell)
        if ours is None and absent is None:
            wanting.append(cell)
        items[id(cell)] = compared(cell, ours, absent)
    commands = missing_commands(table.name, wanting)
    for cell in wanting:
        items[id(cell)] = compared(cell, None, f"not measured; {commands[cell]} makes it on a GPU")
    return sorted((items[id(cell)] for cell in table.cells), key=lambda item: item.order)


def _is_predicted(cell: PaperCell, ours: Ours | None, rows: Rows) -> bool:
    """Say whether the model speaks for a cell: of whole steps, and of others' kernels that nobody ran here."""
    if cell.lost is not None:
        return False
    if cell.kind == "step":
        return True
    return cell.quantity == "kernel_us" and rows.kind == "recorded" and (ours is None or bool(differences(cell, ours)))


def _predicted(cell: PaperCell, guess: Predicted, own: Ours | None) -> Compared:
    """Return a cell beside the model's number; what perfkit's own kernels take is said with it."""
    basis = guess.basis
    if own is not None:
        basis = f"{basis}; perfkit's own kernel, {_origin(own)}: {_number(own)}"
    found = Compared(cell=cell, ours=guess.of(cell), absent=None, reasons=guess.reasons, basis=basis)
    return replace(found, cause=predicted_cause(cell, guess)) if found.verdict == "miss" else found


def _absent(cell: PaperCell) -> str | None:
    """Return why there is none of ours, where no command of perfkit makes it; None where one does."""
    if cell.kind == "model":
        return WHOLE_MODEL
    if cell.kind == "step":
        return "the published number is lost"
    if cell.kind == "formula":
        return "the published number is lost, and so is what it was of"
    if cell.quantity == "kernel_nonflush_speedup" or cell.read_dtype not in (None, cell.state_dtype):
        return TWO_PRECISIONS
    return NOT_STATED if cell.method is None else None


@dataclass(frozen=True, slots=True)
class Text:
    """A table to print.

    Attributes:
        columns: those of :data:`COLUMNS` in which lines differ, and those that always stand there.
        lines: the cells of each line.
        common: what all lines have in common, in words; empty if nothing.
        notes: what the last column refers to by number.
    """

    columns: tuple[str, ...]
    lines: tuple[tuple[Any, ...], ...]
    common: str
    notes: tuple[str, ...]


_METHODS: Mapping[str, str] = MappingProxyType(
    {
        "kernel_speedup": "kernel {baseline} over {method}",
        "kernel_cost": "kernel {method} over {baseline}",
        "kernel_steps": "kernel {method} over {baseline}",
        "kernel_us": "kernel {method}",
        "kernel_default_us": "kernel {method}, default configuration",
        "kernel_tuning_gain": "kernel {method}, default over tuned",
        "kernel_nonflush_speedup": "kernel {method}, {read} read, no flush",
        "kernel_bandwidth_share": "DRAM bandwidth of {method}",
        "kernel_best_window": "best window of {method}",
        "step_crossover_tokens": "crossover of state and attention in a step",
        "step_speedup": "whole step, {baseline} over {method}",
        "serving_speedup": "serving, {method} over {baseline}",
        "serving_tokens_per_s": "serving, {method}",
        "layer_state_mib": "bytes",
        "step_state_mib": "bytes",
        "batch_state_gb": "bytes",
        "layer_kv_kib": "bytes",
        "state_kv_tokens": "context",
        "crossover_tokens": "crossover of state and attention by bytes",
        "traffic_ratio": "bytes of {method} over {baseline}",
        "traffic_gain": "bytes, {baseline} over {method}",
        "intensity": "intensity of {method}",
        "balance_fp32": "machine balance",
        "balance_bf16": "machine balance",
        "state_records": "bytes",
        "formula_window": "best window by Eq. 16",
        "record_factor": "FLOPs of the record term, {baseline} over output-only",
        "output_only_factor": "FLOPs of verify, {baseline} over output-only",
        "write_ratio": "ratio",
        "n_ssm_layers": "state-space layers",
        "n_attn_layers": "attention layers",
        "n_k_heads": "key heads",
        "n_v_heads": "value heads",
        "step_state_gb": "state bytes of {method}",
        "state_reads": "reads of the state by {method}",
        "state_writes": "writes of the state by {method}",
        "accuracy_change": "accuracy",
        "request_mb": "memory of a request, {method}",
        "request_ratio": "memory of a request, {baseline} over {method}",
        "requests": "requests that fit, {method}",
    }
)


def text(items: Sequence[Compared]) -> Text:
    """Return the lines of compared cells; what would repeat in them is a note, ``[1]``."""
    notes: list[str] = []

    def note(words: str) -> str:
        if words not in notes:
            notes.append(words)
        return f"[{notes.index(words) + 1}]"

    lines = []
    for item in items:
        cell, verdict = item.cell, str(item.verdict)
        reasons = [item.absent] if item.absent and not (cell.lost and cell.kind == "step") else []
        reasons += ["not comparable: " + "; ".join(item.reasons)] if item.reasons else []
        if item.verdict in ("not measured", "not predicted"):
            verdict = (item.absent or verdict).split(";")[0]
        reasons = [words for words in reasons if words and words != verdict]
        reasons += [f"not published: {cell.lost}"] if cell.lost else []
        reasons += [words for words in (item.basis, item.cause, cell.note) if words]
        lines.append((
            _what(cell), _models(cell), _several(cell.batches), _several(cell.draft_lens), _several(cell.windows),
            _several(cell.acceptances), _published(cell), _number(item.ours), cell.unit, _origin(item.ours),
            _ratio(item.ratio), " ".join([verdict, *map(note, reasons)]),
        ))  # fmt: skip
    same = [at for at, name in enumerate(COLUMNS) if name in _MAY_BE_COMMON and len({line[at] for line in lines}) == 1]
    kept = [at for at in range(len(COLUMNS)) if at not in same]
    common = "; ".join(f"{COLUMNS[at]} {lines[0][at]}" for at in same if lines[0][at] is not None)
    return Text(tuple(COLUMNS[at] for at in kept), tuple(tuple(line[at] for at in kept) for line in lines), common,
                tuple(notes))  # fmt: skip


def _what(cell: PaperCell) -> str:
    template = _METHODS.get(cell.quantity, cell.quantity.replace("_", " "))
    words = template.format(method=cell.method or cell.implementation, baseline=cell.baseline, read=cell.read_dtype)
    extra = [cell.label, cell.step, f"{cell.state_dtype} state" if cell.state_dtype == "float16" else None]
    return ", ".join([words, *(part for part in extra if part)])


def _models(cell: PaperCell) -> str | None:
    """Return the model's short name and the published GPU: ``nemotron-nano, h100-sxm``."""
    keys = [load_model(key) for key in cell.models]
    names = (
        f"{len(keys)} models"
        if len(keys) > 1
        else keys[0].aliases[0]
        if keys and keys[0].aliases
        else (keys[0].key if keys else None)
    )
    return ", ".join(part for part in (names, cell.gpu) if part) or None


def _several(values: Sequence[object]) -> str | None:
    return ",".join(map(str, values)) or None


def _published(cell: PaperCell) -> str:
    if cell.lost is not None:
        return "not published"
    if cell.low is None or cell.high is None:
        return f"at least {_short(cell.low)}" if cell.low is not None else f"at most {_short(cell.high)}"
    return _short(cell.low) if cell.low == cell.high else f"{_short(cell.low)}..{_short(cell.high)}"


def _number(ours: Ours | None) -> str | None:
    if ours is None:
        return None
    low, high = _short(ours.low), _short(ours.high)
    return low if low == high else f"{low}..{high}"


def _origin(ours: Ours | None) -> str | None:
    if ours is None:
        return None
    return ours.kind if ours.kind == "model" else f"{ours.kind} {ours.date}, {ours.gpu}"


def _ratio(ratio: tuple[float, float] | None) -> str | None:
    if ratio is None:
        return None
    low, high = (f"{end:.2f}" for end in ratio)
    return low if low == high else f"{low}..{high}"


def _short(value: float | None) -> str:
    """Return a number in up to four digits; whole ones from a thousand on in full."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
