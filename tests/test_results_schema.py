"""Columns, rows and their types."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from perfkit import results
from perfkit.errors import ExitCode, InputError
from perfkit.method import Case
from perfkit.shape import Shape

# The published order of columns; scripts of other people read them.
CONTRACT = """
schema_version case_id group_id model family gpu gpu_uuid method phase batch n_layers window draft_len accepted
acceptance tree flush_phase input_dtype state_dtype read_dtype source status reason checked time_us time_us_lo
time_us_hi time_p99_us n_samples n_throttled stop_reason time_nonflush_us time_flush_us tokens_per_s launches
bytes_read_model bytes_write_model bytes_read_paper bytes_write_paper bytes_read_dram bytes_write_dram
flops_model intensity bandwidth_gb_s roof_gb_s roof_source roof_fraction limit predicted_us predicted_lo
predicted_hi prediction_error baseline speedup conventional_steps launch_config registers l2_state rel_error
""".split()  # noqa: SIM905

SUPER = Shape("mamba2", n_v_heads=128, n_k_heads=8, d_v=64, d_k=128)
CASE = Case(SUPER, "replay", batch=256, window=16)


def test_columns_begin_with_the_contract_in_its_order():
    assert list(results.COLUMNS[: len(CONTRACT)]) == CONTRACT
    assert len(set(results.COLUMNS)) == len(results.COLUMNS)


def test_every_column_has_a_type_and_a_description():
    for column in results.SCHEMA.values():
        assert column.type in (str, int, float)
        assert column.description and not column.description.endswith(".")
        assert column.allowed is None or column.type is str
    table = results.columns_table()
    assert table.count("\n") == len(results.COLUMNS) + 2
    assert "| `window` | int or empty | L in committed tokens; empty for methods without a replay buffer |" in table


def test_statuses():
    assert set(results.STATUSES) == {"ok", "skipped", "oom", "crashed", "timeout", "error", "incorrect", "throttled"}
    assert results.FINISHED == ("ok", "skipped", "incorrect")
    assert set(results.INCOMPLETE) == {"oom", "crashed", "timeout", "error", "throttled"}


def test_row_is_filled_from_the_case():
    row = results.make_row(CASE, status="ok", source="measured")
    assert list(row) == list(results.COLUMNS)
    assert row["schema_version"] == 1
    assert (row["case_id"], row["group_id"]) == (CASE.id, CASE.group_id)
    assert (row["family"], row["method"], row["phase"]) == ("mamba2", "replay", "decode")
    assert (row["batch"], row["window"], row["draft_len"], row["accepted"]) == (256, 16, 1, 1.0)
    assert (row["input_dtype"], row["state_dtype"], row["read_dtype"]) == ("bfloat16", "float32", "float32")
    assert (row["n_v_heads"], row["n_k_heads"], row["d_v"], row["d_k"]) == (128, 8, 64, 128)
    assert (row["checked"], row["options"], row["time_us"]) == ("no", None, None)


def test_row_of_a_verify_case_with_options():
    case = Case(SUPER, "replay", 8, window=16, draft_len=4, acceptance="mean:3.5", read_dtype="bfloat16",
                options=(("alias", "b"),))  # fmt: skip
    row = results.make_row(case, status="ok", source="predicted")
    assert (row["phase"], row["acceptance"], row["read_dtype"]) == ("verify", "mean:3.5", "bfloat16")
    assert row["accepted"] == pytest.approx(3.5)
    assert json.loads(row["options"]) == {"alias": "b"}
    constant = results.make_row(Case(SUPER, "snapshot", 8, draft_len=4, acceptance="T"), status="ok", source="measured")
    assert (constant["accepted"], constant["window"]) == (4.0, None)


def test_nothing_but_json_in_a_row():
    row = results.make_row(CASE, status="ok", source="measured", time_us=np.float32(2.5), n_samples=np.int64(60),
                           time_us_lo=math.nan, time_us_hi=np.inf, registers=64.0)  # fmt: skip
    assert (row["time_us"], row["n_samples"], row["registers"]) == (2.5, 60, 64)
    assert (row["time_us_lo"], row["time_us_hi"]) == (None, None)
    assert {type(value) for value in row.values()} <= {str, int, float, type(None)}
    json.dumps(row, allow_nan=False)
    assert results.clean({"a": (1, np.array([1.5, np.nan])), 2: np.bool_(True)}) == {"a": [1, [1.5, None]], "2": True}
    with pytest.raises(TypeError, match="not JSON data: object"):
        results.clean(object())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"time_uss": 1.0}, "unknown column 'time_uss', did you mean 'time_us'"),
        ({"time_uss": None}, "unknown column 'time_uss'"),
        ({"status": "fine"}, "status: 'fine' is not one of ok, skipped"),
        ({"source": None}, "source: must not be empty"),
        ({"n_samples": 1.5}, "n_samples: 1.5 is not int"),
        ({"n_samples": "60"}, "n_samples: '60' is not int"),
        ({"time_us": True}, "time_us: True is not float"),
        ({"launch_config": 3}, "launch_config: 3 is not str"),
        ({"limit": "dram"}, "limit: 'dram' is not one of DRAM"),
        ({"status": "incorrect", "time_us": 3.0}, "an incorrect kernel gets no time"),
    ],
)
def test_bad_columns_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        results.make_row(CASE, **{"status": "ok", "source": "measured", **columns})


def test_bad_acceptance_is_bad_input():
    with pytest.raises(InputError, match="accepted: 9"):
        results.make_row(Case(SUPER, "replay", 1, 16, draft_len=4, acceptance="9"), status="ok", source="measured")


def test_empty_row():
    row = results.empty_row()
    assert list(row) == list(results.COLUMNS)
    assert {name: value for name, value in row.items() if value is not None} == {"schema_version": 1}


def test_exit_codes():
    assert results.exit_code(["ok", "skipped"]) == ExitCode.OK
    assert results.exit_code([]) == ExitCode.OK
    for status in ("oom", "crashed", "timeout", "error", "throttled"):
        assert results.exit_code(["ok", status]) == ExitCode.INCOMPLETE
    assert results.exit_code(["oom", "incorrect", "ok"]) == ExitCode.FAILED
