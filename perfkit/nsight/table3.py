"""The paper's Table 3 with our counters: bytes by the paper's count, as published, by the exact count, by DRAM.

Source: paper, App. A.1, Table 3. Its Nsight cells are lost, so nothing of the paper's is left to hold these against
but its count; the released STree path's copies, which the paper took from its model, are kernels here and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfkit.nsight.table import method_name, ordered, state_units
from perfkit.nsight.verdict import judge
from perfkit.profiles.published import PaperCell, PaperTable

COLUMNS = ("T", "method", "step", "R+W", "paper GB", "published", "exact GB", "DRAM read", "DRAM write", "DRAM GB",
           "DRAM / paper", "counters")  # fmt: skip


#: The batch of the published table.
BATCH = 256


def table3(rows: Sequence[Mapping[str, Any]], published: PaperTable) -> list[dict[str, Any]]:
    """Return a row for each counted step at the published batch, in the paper's order of methods.

    Each has ``draft_len, method, window, acceptance, step, h, state_units, paper_gb, published_gb`` (None where the
    cell is lost, or of another model), ``exact_gb, dram_read_gb, dram_write_gb, dram_gb, ratio`` (DRAM over the
    paper's count) and ``verdict``.
    """
    out = []
    for row in ordered([row for row in rows if row["batch"] == BATCH and row["tree"] is None]):
        paper = (row["bytes_read_paper"] + row["bytes_write_paper"]) / 1e9
        dram = (row["bytes_read_dram"] + row["bytes_write_dram"]) / 1e9
        known = next((cell.low for cell in published.cells if row["draft_len"] > 1 and _is_of(row, cell)), None)
        out.append({
            "draft_len": row["draft_len"], "method": row["method"], "window": row["window"],
            "acceptance": row["acceptance"], "step": row["step"], "h": row["h"], "state_units": state_units(row),
            "paper_gb": paper, "published_gb": known,
            "exact_gb": (row["bytes_read_model"] + row["bytes_write_model"]) / 1e9,
            "dram_read_gb": row["bytes_read_dram"] / 1e9, "dram_write_gb": row["bytes_write_dram"] / 1e9,
            "dram_gb": dram, "ratio": dram / paper if paper else None, "verdict": judge(row),
        })  # fmt: skip
    return out


def _is_of(row: Mapping[str, Any], cell: PaperCell) -> bool:
    return (cell.quantity, cell.method, cell.step) == ("step_state_gb", row["method"], row["step"]) and (
        row["model"] in cell.models and cell.draft_lens in ((), (row["draft_len"],))
    )


def line(row: Mapping[str, Any]) -> list[Any]:
    """Return a row of :func:`table3` under :data:`COLUMNS`."""
    names = ("draft_len", "method", "step", "state_units", "paper_gb", "published_gb", "exact_gb", "dram_read_gb",
             "dram_write_gb", "dram_gb", "ratio", "verdict")  # fmt: skip
    return [method_name(row) if name == "method" else row[name] for name in names]
