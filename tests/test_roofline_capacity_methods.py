"""What a request keeps, by formula, against the buffers that the kernels declare: every method of every family."""

from __future__ import annotations

import pytest

from perfkit import registry
from perfkit.errors import InputError
from perfkit.method import Case, Method
from perfkit.roofline.footprint import HOLDINGS, checkpoint_bytes, conv_bytes, footprint
from perfkit.shape import Shape

SUPER = Shape("mamba2", 128, 8, 64, 128)
QWEN = Shape("gdn", 64, 16, 128, 128)
SHAPES = {
    "mamba2": (SUPER, Shape("mamba2", 6, 2, 80, 128)),
    "gdn": (QWEN, Shape("gdn", 6, 3, 32, 64)),
    "kda": (Shape("kda", 32, 32, 128, 128), Shape("kda", 3, 3, 64, 32)),
}
KEPT = ("state", "record", "cursor", "scratch")


def _declared(method: Method, case: Case, batch: int) -> int:
    buffers = method.buffers(Case(**{**_fields(case), "batch": batch}))
    return sum(buffer.nbytes for buffer in buffers.values() if buffer.role in KEPT)


def _fields(case: Case) -> dict[str, object]:
    return {name: getattr(case, name) for name in case.__slots__}


@pytest.mark.parametrize("method", registry.methods(), ids=lambda m: f"{m.family}-{m.key}-{m.phase}")
def test_formulas_are_the_bytes_of_one_row_more(method: Method) -> None:
    """Batch 2 less batch 1 is one request; the convolution is no part of these kernels."""
    for shape in SHAPES[method.family]:
        for draft in (1,) if method.phase == "decode" else (2, 4, 7):
            for state, inputs in (("float32", "bfloat16"), ("float16", "float16"), ("float32", "float32")):
                window = 12 if method.windowed else None
                case = Case(shape, method.key, 1, window, draft, state_dtype=state, input_dtype=inputs)
                held = footprint(shape, method.key, draft_len=draft, window=window, state_dtype=state,
                                 input_dtype=inputs)  # fmt: skip
                row = _declared(method, case, 2) - _declared(method, case, 1)
                assert held.kept - held.conv + held.scratch == row, (shape, draft, state, inputs)


def test_every_method_that_ships_has_a_formula() -> None:
    assert {method.key for method in registry.methods()} == set(HOLDINGS)


def test_by_hand() -> None:
    """Super: 4 MiB a state, records of 18,944 bytes; paper, App. C.2 and C.3."""
    replay = footprint(SUPER, "replay", draft_len=4, window=16)
    assert (replay.state, replay.records, replay.conv, replay.cursors) == (4_194_304, 20 * 18_944, 122_880, 516)
    assert replay.kept == 4_194_304 + 378_880 + 122_880 + 516
    snapshots = footprint(SUPER, "snapshot", draft_len=4)
    assert (snapshots.slots, snapshots.state, snapshots.records, snapshots.conv) == (4, 16_777_216, 0, 4 * 122_880)
    assert footprint(SUPER, "conventional").conv == conv_bytes(SUPER, 4, 1) == 61_440
    assert footprint(SUPER, "replay", draft_len=4, window=16, ring_slots=16).records == 16 * 18_944


def test_formats_of_a_checkpoint() -> None:
    """FP8 has an FP32 scale per 128 elements of a row, NVFP4 an FP8 scale per 16 and an FP32 one per state (E.4)."""
    elements = 128 * 64 * 128
    assert checkpoint_bytes(SUPER, "float16") == 2 * elements
    assert checkpoint_bytes(SUPER, "float8_e4m3fn") == elements + 128 * 64 * 4
    assert checkpoint_bytes(SUPER, "float4_e2m1") == elements // 2 + elements // 16 + 128 * 4


def test_a_second_checkpoint() -> None:
    one = footprint(SUPER, "replay", window=16)
    two = footprint(SUPER, "replay", window=16, state_dtype="fp16", read_dtype="nvfp4")
    assert (one.read, two.state, two.read) == (0, one.state // 2, checkpoint_bytes(SUPER, "float4_e2m1"))
    assert two.records == one.records
    assert footprint(SUPER, "replay", window=16, read_dtype="fp32") == one


def test_delta_rules_keep_v_and_beta_beside_two_checkpoints() -> None:
    """A record then takes 4 d_v + 2 d_k + 8 bytes in place of 2 d_v + 2 d_k + 4 (App. B.4), keys once a group."""
    one = footprint(QWEN, "replay", window=15)
    two = footprint(QWEN, "replay", window=15, read_dtype="fp8")
    assert (two.records - one.records) / 16 == 64 * (2 * 128 + 4)


def test_bad_input_gets_one_line() -> None:
    with pytest.raises(InputError, match="ring_slots: 8: fewer slots than the window has records"):
        footprint(SUPER, "replay", window=16, ring_slots=8)
    with pytest.raises(InputError, match="state_dtype: 'int32': unknown dtype"):
        footprint(SUPER, "snapshot", state_dtype="int32")
    with pytest.raises(InputError, match="input_dtype: 'fp8': unknown dtype"):
        footprint(SUPER, "snapshot", input_dtype="fp8")
