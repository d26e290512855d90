"""Lists, ranges, presets and flags to groups of cases."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from perfkit import cases
from perfkit.errors import InputError
from perfkit.method import Case
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
        (
            {"preset": "enormous"},
            "--preset: 'enormous': no such preset (allowed: default, quick, verify, windows, FILE.yaml)",
        ),
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

    key, family, phase, windowed, trees = "replay", "mamba2", "verify", True, False

    def supports(self, case):
        return None


def test_a_draft_longer_than_the_window_is_skipped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cases.registry, "methods", lambda family=None, phase=None: [Verify()])
    groups = cases.build_groups(SUPER, spec(batch="4", window="2,8", draft="4"))
    assert [[(case.acceptance, case.window) for case in group.cases] for group in groups] == [
        [("1", 8)], [("3", 8)], [("T", 8)]]  # fmt: skip
    group = groups[-1]
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
    (group,) = cases.build_groups(SUPER, spec(batch="4", window="8", draft="16", method="snapshot", accepted="T"))
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


class Trees(Snapshot):
    """A method of verify that takes draft trees."""

    trees = True


class Replay(Verify):
    """One that does, and has a window."""

    trees = True


class Chains(Snapshot):
    """One that does not."""

    key = "fused_recovery"


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch):
    """Stand-ins for the methods of verify beside the decode methods that there are."""
    stubs = [Trees(), Chains(), Replay()]
    decode = cases.registry.methods("mamba2", "decode")
    every = {"decode": decode, "verify": stubs, None: [*decode, *stubs]}
    monkeypatch.setattr(cases.registry, "methods", lambda family=None, phase=None: every[phase])


def labels(groups: list[cases.Group]) -> list[list[str]]:
    return [[cases.label(case) for case in group.cases] for group in groups]


def test_a_verify_sweep_has_a_group_for_each_acceptance_and_one_decode_step(verify):
    groups = cases.build_groups(SUPER, spec(batch="4", window="8", draft="2,4"))
    assert labels(groups) == [
        ["B4 conventional"],
        ["B4 T2 a1 snapshot", "B4 T2 a1 fused_recovery", "B4 T2 a1 L8 replay"],
        ["B4 T2 aT snapshot", "B4 T2 aT fused_recovery", "B4 T2 aT L8 replay"],
        ["B4 T4 a1 snapshot", "B4 T4 a1 fused_recovery", "B4 T4 a1 L8 replay"],
        ["B4 T4 a3 snapshot", "B4 T4 a3 fused_recovery", "B4 T4 a3 L8 replay"],
        ["B4 T4 aT snapshot", "B4 T4 aT fused_recovery", "B4 T4 aT L8 replay"],
    ]  # fmt: skip
    assert [group.label for group in groups[:3]] == ["B4 float32 state", "B4 T2 a1 float32 state",
                                                     "B4 T2 aT float32 state"]  # fmt: skip
    assert len({group.group_id for group in groups}) == 6


def test_the_decode_step_is_the_recorded_one_whatever_the_sweep(verify):
    plain = cases.build_groups(SUPER, spec(batch="4", window="8"))[0].cases[0]
    for flags in ({"flush_phase": "staggered"}, {"self_check": True}, {"method": "replay"}, {"accepted": "mean:2.5"}):
        unit = cases.build_groups(SUPER, spec(batch="4", window="8", draft="4", **flags))[0]
        assert [case.id for case in unit.cases] == [plain.id]
    groups = cases.build_groups(SUPER, spec(batch="4,8", window="8", draft="4", accepted="T", state_dtype="fp32,bf16"))
    assert [(len(group.cases), group.cases[0].method) for group in groups] == [(1, "conventional")] * 4 + [
        (3, "snapshot")] * 4  # fmt: skip


def test_with_decode_in_the_sweep_no_step_is_added(verify):
    groups = cases.build_groups(SUPER, spec(batch="4", window="8", draft="1,4", accepted="T"))
    assert labels(groups) == [["B4 conventional", "B4 L8 replay"],
                              ["B4 T4 aT snapshot", "B4 T4 aT fused_recovery", "B4 T4 aT L8 replay"]]  # fmt: skip
    groups = cases.build_groups(SUPER, spec(batch="4", window="8", draft="1,4", accepted="T", method="fused_recovery"))
    assert labels(groups) == [["B4 conventional"], ["B4 T4 aT snapshot", "B4 T4 aT fused_recovery"]]
    with pytest.raises(InputError, match="'magic': unknown mamba2 decode or verify method"):
        cases.build_groups(SUPER, spec(batch="4", draft="1,4", method="magic"))


@pytest.mark.parametrize(
    ("accepted", "found"),
    [
        ("T", ["aT"]),
        ("4,T,T-1", ["aT", "a3"]),
        ("mean:3.5,2.0", ["a3.5", "a2"]),
        ("p:.88,.62,.40", ["a2.9p"]),
        ("p:.88,.62,.40;p:.9;1", ["a2.9p", "a1"]),
    ],
)
def test_acceptances_of_a_sweep(verify, accepted, found):
    drafts = "2,4" if "p:.9;" in accepted else "4"
    groups = cases.build_groups(SUPER, spec(batch="4", window="8", draft=drafts, accepted=accepted))
    assert [group.label.split()[2] for group in groups if " T4 " in group.label] == found


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"accepted": "9"}, "accepted: 9: out of range at T = 4 (allowed: 1..4)"),
        ({"accepted": "mean:3.5", "draft": "2,4"}, "accepted: 'mean:3.5': mean out of range at T = 2"),
        ({"accepted": "1,p:.9,.8,.7"}, "accepted: '1,p:.9,.8,.7': not rates; a list with p: in it has ; between"),
        ({"accepted": "p:.9,.8,.7,T"}, "accepted: 'p:.9,.8,.7,T': not rates; a list with p: in it has ; between"),
        ({"accepted": "1,T-2"}, "accepted: 'T-2': not an acceptance"),
        ({"accepted": "p:.9;T"}, "accepted: 'p:.9': 1 rates, but T = 4 has 3 drafts"),
        ({"accepted": "p:.9,.8;T", "draft": "2,4"}, "accepted: 'p:.9,.8': 2 rates, but T = 4 has 3 drafts"),
        ({"draft": "1", "accepted": "T-1"}, "--accepted: 'T-1': a decode step commits its one token"),
        ({"tree": ["0,0,5"]}, "--tree: '5': the parent of node 3 must come before it (allowed: 0..2)"),
        ({"tree": ["0,x"]}, "--tree: '0,x': not a list of parents"),
        ({"tree": ["0,0,1"], "draft": "8"}, "--draft: '8': a tree has as many positions as nodes"),
        ({"tree": ["0,0,1", "0,0"], "draft": "4"}, "--draft: '4': a tree has as many positions as nodes"),
        ({"tree": ["0,1,2,3"], "draft": None, "window": "4"}, "--tree: '0,1,2,3': longest path does not fit in any"),
    ],
)  # fmt: skip
def test_bad_acceptances_and_trees(verify, flags, line):
    flags = {"batch": "4", "window": "8", "draft": None if "tree" in flags else "4"} | flags
    with pytest.raises(InputError) as error:
        cases.build_groups(SUPER, spec(**flags))
    assert str(error.value).startswith(line), str(error.value)
    assert "\n" not in str(error.value)


def test_trees(verify):
    groups = cases.build_groups(SUPER, spec(batch="4", window="3,8", tree=["0,0,1,1,2,2,3;0, 0,0", "0,0,0"]))
    assert labels(groups) == [
        ["B4 conventional"],
        ["B4 tree8 a1 snapshot", "B4 tree8 a1 L8 replay"],
        ["B4 tree8 a3 snapshot", "B4 tree8 a3 L8 replay"],
        ["B4 tree8 aT snapshot", "B4 tree8 aT L8 replay"],  # the longest path has four nodes: 0, 1, 3, 7
        ["B4 tree4 a1 snapshot", "B4 tree4 a1 L3 replay", "B4 tree4 a1 L8 replay"],  # T - 1 is 1
        ["B4 tree4 aT snapshot", "B4 tree4 aT L3 replay", "B4 tree4 aT L8 replay"],
    ]  # fmt: skip
    case = groups[3].cases[0]
    assert (case.draft_len, case.tree, case.depth, case.acceptance) == (8, "0,0,1,1,2,2,3", 4, "T")
    reasons = {cases.label(case): reason for case, reason in groups[3].skipped}
    assert reasons == {
        "B4 tree8 aT fused_recovery": "takes no draft tree",
        "B4 tree8 aT L3 replay": "longest path of the tree = 4 does not fit in the window L = 3",
    }
    same = cases.build_groups(SUPER, spec(batch="4", window="8", tree=["0,0,0"], draft="4", accepted="T"))
    assert labels(same)[1:] == [["B4 tree4 aT snapshot", "B4 tree4 aT L8 replay"]]


@pytest.mark.parametrize("family", ["gdn", "kda"])
def test_what_a_family_has_no_kernels_for_is_skipped_with_the_reason(family: str):
    shape = Shape(family, 32, 32, 128, 128)
    absent = {item.key: item.reason for item in cases.registry.absent(family)}
    _, group = cases.build_groups(shape, spec(batch="4", window="8", draft="4", accepted="T"))
    assert [case.method for case in group.cases] == ["snapshot", "activation_replay", "fused_recovery", "replay"]
    assert {case.method: reason for case, reason in group.skipped} == absent
    assert {(case.window, case.group_id) for case, _ in group.skipped} == {(None, group.group_id)}
    flags = {"draft": "4", "accepted": "T", "method": "joint_attainment"}
    _, alone = cases.build_groups(shape, spec(batch="4", window="8", **flags))
    assert [case.method for case in alone.cases] == ["snapshot"]
    assert [(case.method, reason) for case, reason in alone.skipped] == [
        ("joint_attainment", absent["joint_attainment"])]  # fmt: skip
    # It needs no window, so any draft is planned; and it is no method of decode.
    long = cases.build_groups(shape, spec(batch="4", window="8", draft="16", accepted="T", method="stree"))
    assert [(case.method, reason) for case, reason in long[-1].skipped] == [("stree", absent["stree"])]
    with pytest.raises(InputError, match=f"unknown {family} decode method"):
        cases.build_groups(shape, spec(batch="4", window="8", method="stree"))
    assert "joint_attainment" not in [
        case.method for group in cases.build_groups(shape, spec(batch="4", window="8")) for case in group.cases
    ]


def test_a_method_says_itself_why_it_takes_no_tree():
    shape = Shape("gdn", 32, 16, 128, 128)
    groups = cases.build_groups(shape, spec(batch="4", window="8", tree=["0,0,1"], accepted="T"))
    reasons = {case.method: reason for case, reason in groups[-1].skipped}
    assert reasons["fused_recovery"].startswith("draft trees: the end state is the state after one path")
    assert reasons["activation_replay"].startswith("draft trees: the scan in place holds one state a row")
    assert "takes no draft tree" not in reasons.values()


def test_only_its_unit_can_run_is_no_sweep(verify, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Verify, "supports", lambda self, case: "no")
    with pytest.raises(InputError, match=r"^no point of this sweep can run: B4 T4 a1 snapshot: no"):
        cases.build_groups(SUPER, spec(batch="4", window="8", draft="4"))


def test_the_verify_preset(verify):
    groups = cases.build_groups(SUPER, spec(preset="verify"))
    assert [group.label for group in groups] == [f"B256 {point}float32 state" for point in (
        "", "T2 a1 ", "T2 aT ", "T4 a1 ", "T4 a3 ", "T4 aT ", "T6 a1 ", "T6 a5 ", "T6 aT ", "T8 a1 ", "T8 a7 ",
        "T8 aT ")]  # fmt: skip
    assert {case.window for group in groups for case in group.cases} == {None, 16}
    assert cases.build_groups(SUPER, spec(preset="verify", draft="1"))[0].cases[0].acceptance == "1"


@pytest.mark.parametrize("family", ["mamba2", "gdn", "kda"])
@pytest.mark.parametrize(
    ("drafts", "decode", "verify"),
    [
        ({}, {"conventional", "replay"}, {"snapshot", "replay"}),
        ({"draft": "1"}, {"conventional", "replay"}, set()),
        ({"draft": "4"}, {"conventional"}, {"snapshot", "replay"}),  # conventional is the unit, asked for or not
        ({"tree": ["0,0,1"]}, {"conventional"}, {"snapshot", "replay"}),
        ({"draft": "1,4"}, {"conventional", "replay"}, {"snapshot", "replay"}),
    ],
)
def test_methods_of_a_preset_that_fit_no_draft_are_left_out(family, drafts, decode, verify):
    groups = cases.build_groups(Shape(family, 32, 32, 128, 128), spec(preset="windows", **drafts))
    planned = [case for group in groups for case in (*group.cases, *(case for case, _ in group.skipped))]
    assert {case.method for case in planned if case.phase == "decode"} == decode
    assert {case.method for case in planned if case.phase == "verify"} == verify
    windows = {case.window for case in planned if case.method == "replay"}
    assert windows == {2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 40, 48, 64}


@pytest.mark.parametrize("preset", ["default", "quick", "verify"])
@pytest.mark.parametrize("draft", ["1", "4"])
def test_presets_of_every_method_take_any_draft(preset, draft):
    groups = cases.build_groups(SUPER, spec(preset=preset, draft=draft))
    assert {"replay", "snapshot" if draft == "4" else "conventional"} <= {
        case.method for group in groups for case in group.cases
    }


PLANTED = Path(__file__).with_name("planted_methods.py")


@pytest.mark.parametrize(
    ("methods", "drafts", "found"),
    [
        ("conventional,snapshot,replay", {"draft": "4", "method": "conventional,snapshot"}, "'conventional': unknown"),
        ("conventional,snapshot,replay", {"draft": "1", "method": "snapshot"}, "'snapshot': unknown"),
        ("conventional", {"draft": "4"}, "'conventional': unknown mamba2 verify method (allowed: "),  # nothing is left
        ("snapshot,stree", {"draft": "1"}, "'snapshot': unknown mamba2 decode method (allowed: "),
        ("conventional,magic,replay", {"draft": "4"}, "'magic': unknown mamba2 verify method (allowed: "),
        ("conventional,replay\ndrafts: 4", {}, "'conventional': unknown mamba2 verify method"),  # its own drafts
        (f"snapshot,{PLANTED}:RIGHT", {"draft": "4", "method": f"{PLANTED}:RIGHT"}, "is for mamba2 decode, not"),
        ("conventional,snapshot", {"draft": "16"}, ["conventional", "snapshot"]),  # beyond L, which neither has
        (f"snapshot,{PLANTED}:RIGHT", {"draft": "4"}, ["conventional", "snapshot"]),
        (f"snapshot,{PLANTED}:RIGHT", {"draft": "1"}, ["conventional", f"{PLANTED}:RIGHT"]),
    ],
)
def test_what_a_user_names_is_never_left_out_in_silence(tmp_path: Path, methods, drafts, found):
    file = tmp_path / "mine.yaml"
    file.write_text(f"batches: 4\nwindows: 8\naccepted: T\nmethods: {methods}\n")
    if isinstance(found, list):
        groups = cases.build_groups(SUPER, spec(preset=str(file), **drafts))
        assert [case.method for group in groups for case in group.cases] == found
        return
    with pytest.raises(InputError) as error:
        cases.build_groups(SUPER, spec(preset=str(file), **drafts))
    assert str(error.value).startswith("--method: ") and found in str(error.value)


def test_a_preset_with_trees(tmp_path: Path, verify):
    file = tmp_path / "mine.yaml"
    file.write_text("batches: 4\nwindows: 8\ntrees: ['0,0,1', '0,0']\naccepted: ['p:.9,.8', T]\n")
    groups = cases.build_groups(SUPER, spec(preset=str(file)))
    assert [group.label.split(" float")[0] for group in groups] == [
        "B4", "B4 tree4 a2.7p", "B4 tree4 aT", "B4 tree3 aT"]  # fmt: skip
    chains = spec(preset=str(file), draft="3")
    assert (chains.trees, chains.drafts) == ((), (3,))


def test_rows_that_do_not_flush_together_are_said_to_be_staggered() -> None:
    from perfkit.cases import label
    from perfkit.lastlines import case_text

    case = Case(Shape("mamba2", 2, 1, 16, 16), "replay", 256, 16, 4, acceptance="1", flush_phase="staggered")
    assert label(case) == "B256 T4 a1 L16 replay staggered"
    row = {"batch": 256, "draft_len": 4, "acceptance": "1", "tree": None, "window": 16, "method": "replay",
           "state_dtype": "float32", "flush_phase": "staggered"}  # fmt: skip
    assert case_text(row) == "B256 T4 a1 L16 replay staggered"
    assert case_text(row | {"flush_phase": "aligned"}) == "B256 T4 a1 L16 replay"
