"""Lists, ranges, presets and flags to groups of cases."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from perfkit import cases
from perfkit.errors import InputError
from perfkit.profiles import load_gpu
from perfkit.shape import Shape

SUPER = Shape("mamba2", 128, 8, 64, 128)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,8,64", (1, 8, 64)),
        ("7", (7,)),
        (" 4 , 2 ", (4, 2)),
        ("3..6", (3, 4, 5, 6)),
        ("5..5", (5,)),
        ("2..6:+2", (2, 4, 6)),
        ("2..7:+2", (2, 4, 6)),  # the end only if it is hit
        ("1..512:x2", (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
        ("1..511:x2", (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        ("3..100:x3", (3, 9, 27, 81)),
        ("8,1..3,8,2", (8, 1, 2, 3)),  # each once, where it came first
    ],
)
def test_parse_ints(text, values):
    assert cases.parse_ints(text, field="--batch") == values


@pytest.mark.parametrize(
    ("text", "item"),
    [("0", "'0'"), ("4,0", "'0'"), ("", "''"), ("1,,2", "''"), ("1,a", "'a'"), ("1.5", "'1.5'"), ("-3", "'-3'"),
     ("8..4", "'8..4'"), ("1..8:x1", "'1..8:x1'"), ("1..8:+0", "'1..8:+0'"), ("1..8:*2", "'1..8:*2'"),
     ("0..4", "'0..4'"), ("1..999999999", "'1..999999999'"), ("1..", "'1..'"), ("1e3", "'1e3'"), ("²", "'²'")],
)  # fmt: skip
def test_bad_list_names_flag_and_item(text, item):
    with pytest.raises(InputError) as error:
        cases.parse_ints(text, field="--batch")
    assert str(error.value).startswith(f"--batch: {item}: ")
    assert error.value.exit_code == 2


def spec(**flags) -> cases.SweepSpec:
    return cases.parse_spec(**flags)


def test_default_preset_is_the_papers_sweep():
    default = spec()
    assert default.batches == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    assert default.windows == (8, 16, 32)
    assert default.drafts == (1,)
    groups = cases.build_groups(SUPER, default)
    assert len(groups) == 10
    assert [cases.label(case) for case in groups[8].cases] == [
        "B256 conventional", "B256 L8 replay", "B256 L16 replay", "B256 L32 replay"]  # fmt: skip
    assert {case.group_id for case in groups[8].cases} == {groups[8].group_id}
    assert len({case.id for group in groups for case in group.cases}) == 40


def test_order_of_groups_and_axes():
    groups = cases.build_groups(SUPER, spec(batch="4,1", window="8", state_dtype="fp32,bf16"))
    assert [(group.cases[0].state_dtype, group.cases[0].batch) for group in groups] == [
        ("float32", 4), ("float32", 1), ("bfloat16", 4), ("bfloat16", 1)]  # fmt: skip


def test_the_control_is_always_there_and_first():
    (group,) = cases.build_groups(SUPER, spec(batch="4", window="8", method="replay"))
    assert [case.method for case in group.cases] == ["conventional", "replay"]
    (alone,) = cases.build_groups(SUPER, spec(batch="4", window="8", method="conventional"))
    assert [case.method for case in alone.cases] == ["conventional"]


def test_self_check_times_the_control_twice():
    (group,) = cases.build_groups(SUPER, spec(batch="4", window="8", self_check=True))
    assert [cases.label(case) for case in group.cases] == [
        "B4 conventional/A", "B4 conventional/B", "B4 L8 replay"]  # fmt: skip
    assert len({case.id for case in group.cases}) == 3
    assert len({case.group_id for case in group.cases}) == 1


def test_state_dtype_is_the_models_unless_said():
    assert spec(model_state_dtype="bfloat16").state_dtypes == ("bfloat16",)
    assert spec(model_state_dtype="bfloat16", state_dtype="fp32").state_dtypes == ("float32",)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"batch": "0"}, "--batch: '0': must be at least 1"),
        ({"window": "8,0"}, "--window: '0': must be at least 1"),
        ({"draft": "x"}, "--draft: 'x': not a whole number"),
        ({"layers": 0}, "--layers: 0: must be at least 1"),
        ({"flush_phase": "both"}, "--flush-phase: 'both': unknown flush phase (allowed: aligned, staggered)"),
        ({"input_dtype": "int8"}, "--input-dtype: 'int8': unknown dtype (allowed: float32, float16, bfloat16)"),
        ({"state_dtype": "fp33"}, "--state-dtype: 'fp33': unknown dtype (allowed: float32, float16, bfloat16)"),
        ({"state_dtype": "fp32,fp8"}, "--state-dtype: 'fp8': unknown dtype (allowed: float32, float16, bfloat16)"),
        ({"state_dtype": "float64"}, "--state-dtype: 'float64': unknown dtype (allowed: float32, float16, bfloat16)"),
        ({"input_dtype": "fp64"}, "--input-dtype: 'fp64': unknown dtype (allowed: float32, float16, bfloat16)"),
        ({"preset": "enormous"}, "--preset: 'enormous': no such preset (allowed: default, quick, FILE.yaml)"),
    ],
)
def test_bad_flags(flags, line):
    with pytest.raises(InputError) as error:
        spec(**flags)
    assert str(error.value).startswith(line)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"method": "magic"}, "--method: 'magic': unknown mamba2 decode method (allowed: conventional, replay"),
        ({"method": "nowhere.py:M"}, "--method: "),
        ({"accepted": "3.5"}, "--accepted: '3.5': a decode step commits its one token"),
    ],
)
def test_bad_points(flags, line):
    with pytest.raises(InputError) as error:
        cases.build_groups(SUPER, spec(**flags))
    assert str(error.value).startswith(line)


def test_points_that_cannot_run_are_kept_with_their_reason():
    odd = Shape("mamba2", 4, 1, 16, 24)  # d_k is not a power of two
    with pytest.raises(InputError, match=r"^no point of this sweep can run: B1 conventional: .*d_k"):
        cases.build_groups(odd, spec())


class Verify:
    """Stands in for a method of verify, which has a window."""

    key, family, phase, windowed = "replay", "mamba2", "verify", True

    def supports(self, case):
        return None


def test_a_draft_longer_than_the_window_is_skipped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cases.registry, "methods", lambda family=None, phase=None: [Verify()])
    (group,) = cases.build_groups(SUPER, spec(batch="4", window="2,8", draft="4"))
    assert [case.window for case in group.cases] == [8]
    assert group.cases[0].acceptance == "T"
    ((case, reason),) = group.skipped
    assert (case.window, reason) == (2, "draft length T = 4 does not fit in the window L = 2")
    with pytest.raises(InputError, match=r"^--draft: '4': draft length T does not fit in any window of --window 2: "):
        cases.build_groups(SUPER, spec(batch="4", window="2", draft="4"))
    with pytest.raises(InputError, match=r"9"):
        cases.build_groups(SUPER, spec(batch="4", window="8", draft="4", accepted="9"))


def test_a_draft_that_fits_no_window_is_said_before_whether_there_are_methods(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cases.registry, "methods", lambda family=None, phase=None: [])
    with pytest.raises(InputError) as error:
        cases.build_groups(SUPER, spec(window="2,3", draft="4,8"))
    assert str(error.value) == ("--draft: '4,8': draft length T does not fit in any window of --window 2,3: "
                                "T must be at most L (allowed: 1..3)")  # fmt: skip


class Snapshot(Verify):
    """A method of verify without a window."""

    key, windowed = "snapshot", False


def test_a_method_without_a_window_takes_any_draft(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cases.registry, "methods", lambda family=None, phase=None: [Snapshot(), Verify()])
    (group,) = cases.build_groups(SUPER, spec(batch="4", window="8", draft="16", method="snapshot"))
    assert [case.method for case in group.cases] == ["snapshot"]
    with pytest.raises(InputError, match="--window 8"):
        cases.build_groups(SUPER, spec(batch="4", window="8", draft="16", method="snapshot,replay"))


def test_preset_file(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("batches: [1, 64]\nwindows: 8..16:+8\nstate_dtypes: bf16\nlayers: 2\n")
    mine = spec(preset=str(file))
    assert (mine.batches, mine.windows, mine.state_dtypes, mine.n_layers) == ((1, 64), (8, 16), ("bfloat16",), 2)
    assert spec(preset=str(file), batch="3").batches == (3,)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[1, 2]", ": must be a mapping of fields, not a list"),
        ("batches: 1\nwindows: 8\ncolour: red\n", ": colour: unknown field (allowed: "),
        ("windows: 8\n", ": batches: is missing"),
        ("batches: 0\nwindows: 8\n", ": batches: '0': must be at least 1"),
        ("batches: 1\nwindows: {a: 1}\n", ": windows: {'a': 1}: must be a number, a text or a list of them"),
        ("batches: true\nwindows: 8\n", ": batches: True: must be a number"),
        ("batches: 1\nwindows: []\n", ": windows: []: must be"),
        ("batches: [1\n", ": line 2: not valid YAML: "),
        ("batches: 1\nbatches: 2\n", ": line 2: not valid YAML: duplicate key"),
    ],
)
def test_bad_preset_file(tmp_path: Path, text, line):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        spec(preset=str(file))
    assert str(error.value).startswith(f"{file}{line}")
    assert "\n" not in str(error.value)


def test_memory_of_a_case_counts_states_and_rings():
    (group,) = cases.build_groups(SUPER, spec(batch="256", window="16"))
    conventional, replay = (cases.case_memory(case) for case in group.cases)
    assert conventional >= 256 * 128 * 64 * 128 * 4  # 1.07 GB of states
    ring = 256 * 16 * (128 * 64 + 8 * 128) * 2
    assert replay - conventional >= ring


def test_cases_that_do_not_fit_a_gpu_are_skipped_with_both_sizes():
    h200 = load_gpu("h200")
    assert h200.usable_mib is not None
    groups = cases.fit_memory(cases.build_groups(SUPER, spec(batch="256,1048576", window="16")), h200)
    assert [(len(group.cases), len(group.skipped)) for group in groups] == [(2, 0), (0, 2)]
    assert groups[1].group_id == groups[1].skipped[0][0].group_id
    has = int(h200.usable_mib * 2**20 / 1e9)
    reason = groups[1].skipped[0][1]
    # 2^20 states of 4 MiB are 4,398 GB; inputs come on top.
    assert reason == f"needs {-(-cases.case_memory(groups[1].skipped[0][0]) // 10**9):,} GB, h200-sxm has {has} GB"
    assert reason.startswith("needs 4,4")
    with pytest.raises(InputError, match=r"^no point of this sweep can run: B1048576 conventional: needs 4,4\d\d GB"):
        cases.fit_memory(cases.build_groups(SUPER, spec(batch="1048576", window="16")), h200)


def test_without_a_known_usable_memory_the_datasheets_counts():
    (group,) = cases.build_groups(SUPER, spec(batch="4", window="16", method="conventional"))
    (case,) = group.cases
    gpu = dataclasses.replace(load_gpu("h200"), usable_mib=None, mem_capacity_gb=cases.case_memory(case) / 1e9)
    assert cases.memory_reason(case, gpu) is None
    small = dataclasses.replace(gpu, mem_capacity_gb=gpu.mem_capacity_gb * 0.99)
    assert cases.memory_reason(case, small) == "needs 1 GB, h200-sxm has 0 GB"


def test_all_layers_that_take_turns_count():
    groups = cases.build_groups(SUPER, spec(batch="8192", window="16", method="conventional"))
    assert cases.memory_reason(groups[0].cases[0], load_gpu("h200")) is None
    groups = cases.build_groups(SUPER, spec(batch="8192", window="16", method="conventional", layers=8))
    assert str(cases.memory_reason(groups[0].cases[0], load_gpu("h200"))).startswith("needs 2")
