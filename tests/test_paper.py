"""What was published, as data: every cell says what it must, and the numbers are those of the sources, typed here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfkit.errors import InputError
from perfkit.profiles import load_gpu, load_model
from perfkit.profiles.published import PaperCell, load_paper, paper_names

NANO, SUPER = "nemotron-3-nano-4b", "nemotron-3-super-120b-a12b"
QWEN4, QWEN122 = "qwen3.5-4b", "qwen3.5-122b-a10b"
METHODS = {"conventional", "snapshot", "replay", "fused_recovery", "activation_replay", "joint_attainment", "stree",
           "stree_released"}  # fmt: skip


def cells(name: str, **wanted: Any) -> list[PaperCell]:
    """The cells of a table that have these values."""
    return [
        cell for cell in load_paper(name).cells if all(getattr(cell, key) == value for key, value in wanted.items())
    ]


@pytest.mark.parametrize("name", paper_names())
def test_every_cell_has_what_it_needs(name: str) -> None:
    table = load_paper(name)
    assert table.title and table.cells
    for cell in table.cells:
        assert (cell.low is None and cell.high is None) == (cell.lost is not None)
        assert cell.source.startswith(("ReplaySSM (arXiv 2610.13778)", "vLLM pull request ")) and cell.where
        assert cell.gpu is None or load_gpu(cell.gpu).key == cell.gpu
        assert [load_model(key).key for key in cell.models] == list(cell.models)
        assert cell.method is None or cell.method in METHODS
        if cell.kind == "kernel":
            assert cell.models and cell.batches and cell.draft_lens and cell.routing is None and cell.state_dtype
            assert cell.gpu or len(cell.models) > 1  # a range over models is of two GPUs
            assert (cell.baseline is not None) == (
                cell.unit in ("x", "conventional steps")
            ) or "tuning" in cell.quantity
            if cell.method == "replay":
                assert cell.windows
        if cell.quantity == "step_speedup":
            assert cell.routing == "identical" and cell.baseline
        if cell.quantity.startswith("serving"):
            assert cell.routing == "independent" and cell.draft_lens


@pytest.mark.parametrize(
    ("name", "wanted", "low", "high"),
    [
        ("table6", {"models": (NANO,), "batches": (512,), "state_dtype": "float16",
                    "baseline": "conventional, default"}, 1.86, 1.86),
        ("table6", {"models": (SUPER,), "batches": (512,), "state_dtype": "float32",
                    "baseline": "conventional, tuned"}, 1.72, 1.72),
        ("table6", {"models": (QWEN122,), "batches": (64,)}, 1.11, 1.11),
        ("table6", {"models": (QWEN4,), "batches": (256,), "state_dtype": "float16"}, 1.07, 1.07),
        ("table7", {"models": (NANO,), "batches": (256,), "state_dtype": "float32",
                    "baseline": "conventional, tuned"}, 1.80, 1.80),
        ("table7", {"models": (SUPER,), "batches": (128,), "state_dtype": "float32",
                    "baseline": "conventional, default"}, 1.68, 1.68),
        ("table7", {"models": (QWEN122,), "implementation": "ReplaySSM in CuTe DSL", "state_dtype": "float32"}, 1.66,
         1.66),
        ("table9", {"batches": (256,), "draft_lens": (8,), "baseline": "speculative decoding with snapshots"}, 2.09,
         2.09),
        ("table9", {"batches": (32,), "draft_lens": (4,), "baseline": "standard decoding"}, 2.08, 2.08),
        ("table8", {"batches": (512,), "draft_lens": (8,)}, 2.34, 2.34),
        ("fig4", {"method": "snapshot", "draft_lens": (8,)}, 4.66, 4.66),
        ("fig4", {"acceptances": ("T",)}, 1.21, 1.21),
        ("fig7", {"method": "stree", "quantity": "kernel_us"}, 1085, 1085),
        ("fig7", {"method": "fused_recovery", "quantity": "kernel_default_us"}, 2261, 2261),
        ("fig7", {"baseline": "fused_recovery, tuned", "acceptances": ("1",)}, 2.3, 5.1),
        ("fig8", {"quantity": "kernel_bandwidth_share", "batches": (1,)}, 21.6, 21.6),
        ("fig10", {"draft_lens": (2, 4)}, 0.83, 0.95),
        ("fig11", {"models": (QWEN122,), "read_dtype": "float8_e4m3fn"}, 2.48, 2.48),
        ("fig12", {"baseline": "FP32 recurrence"}, None, 1.25),
        ("fig3", {"quantity": "serving_tokens_per_s", "method": "replay"}, 19707, 19707),
        ("table12", {"models": (NANO,), "label": "shared NVFP4+SR, Math-L5"}, -41.7, -41.7),
        ("table12", {"models": (SUPER,), "label": "NVFP4 / FP8+SR, MMLU-Pro, 90th percentile"}, 10500, 10500),
        ("table12", {"models": (QWEN122,), "label": "FP32 state, GPQA-Diamond"}, 82.7, 82.7),
        ("table5", {"models": (NANO,), "quantity": "n_ssm_layers"}, 21, 21),
        ("capacity", {"models": (QWEN122,), "method": "replay", "quantity": "requests"}, 702, 702),
        ("appc", {"quantity": "output_only_factor"}, 4, None),
    ],
)  # fmt: skip
def test_published_numbers(name: str, wanted: dict[str, Any], low: float | None, high: float | None) -> None:
    (found,) = cells(name, **wanted)
    assert (found.low, found.high, found.lost) == (low, high, None)


def test_what_was_not_published_has_no_number() -> None:
    assert [cell.lost for cell in cells("table9", batches=(512,), draft_lens=(6,))] == [
        "the engine did not start with snapshots", "not given"]  # fmt: skip
    assert [cell.lost for cell in cells("table7", batches=(256,), state_dtype="float16")] == ["not seen"] * 4
    (bars,) = cells("fig4", draft_lens=(2, 4, 6))
    assert bars.lost == "the plot is an image" and bars.low is None and bars.high is None


def test_names_are_in_order() -> None:
    names = paper_names()
    assert names[:3] == ["fig1", "fig2", "fig3"] and names.index("fig9") + 1 == names.index("fig10")
    assert names[-2:] == ["appc", "capacity"]


GOOD = ("quantity: kernel_us, unit: us, source: s, where: w, gpu: null, implementation: i, baseline: null, "
        "model: null, batch: 1, draft_len: 1, window: null, acceptance: null, routing: null")  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (GOOD, "must have a value, or low and high, or say why it is lost"),
        (f"{GOOD}, value: 1, lost: x", "must have a value"),
        (f"{GOOD}, low: 2, high: 1", "low is above high"),
        (f"{GOOD}, value: many", "cells[0].value: 'many': must be a number"),
        (f"{GOOD}, value: 1, colour: red", "colour: unknown field"),
        (GOOD.replace("routing: null", "value: 1"), "cells[0].routing: missing; say null where there is none"),
        (GOOD.replace("unit: us", "unit: ms") + ", value: 1", "unit: 'ms': unknown value (allowed: us)"),
        (GOOD.replace("kernel_us", "speed") + ", value: 1", "quantity: 'speed': unknown value"),
        (GOOD.replace("batch: 1", "batch: 0") + ", value: 1", "batch: 0: must be at least 1"),
        (GOOD.replace("implementation: i", "implementation: null") + ", value: 1", "implementation: must not be empty"),
    ],
)
def test_a_damaged_file_is_refused(cell: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "fig1.yaml"
    path.write_text(f"title: t\ngroups:\n  - cells:\n      - {{{cell}}}\n")
    with pytest.raises(InputError) as caught:
        load_paper("fig1", tmp_path)
    assert str(caught.value).startswith(str(path)) and words in str(caught.value)
    path.write_text("title: t\ngroups: []\n")
    with pytest.raises(InputError, match="groups: must be a list of at least one"):
        load_paper("fig1", tmp_path)


def test_a_name_that_is_none_lists_those_that_are() -> None:
    with pytest.raises(InputError, match=r"'fig99': is not among the published figures \(allowed: fig1, fig2"):
        load_paper("fig99")
