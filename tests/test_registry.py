"""Methods are found by family, key and phase, in folders and in files; what is wrong with a file is one line."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from perfkit import registry
from perfkit.errors import InputError
from perfkit.method import Case, Method
from perfkit.roofline import STATE_TRAFFIC
from perfkit.shape import Shape

PLANTED = Path(__file__).with_name("planted_methods.py")
SUPER = Shape("mamba2", 128, 8, 64, 128)

VERIFY = ["activation_replay", "fused_recovery", "joint_attainment", "replay", "snapshot", "stree", "stree_released"]

OTHER_FAMILY = """
from perfkit.kernels.mamba2.conventional_decode import ConventionalDecode
class Other(ConventionalDecode):
    family = "gdn"
METHOD = Other()
"""


def line(error: pytest.ExceptionInfo[InputError]) -> str:
    text = str(error.value)
    assert "\n" not in text and error.value.exit_code == 2
    return text


def test_shipped_methods_the_control_first() -> None:
    assert [method.key for method in registry.methods("mamba2", "decode")] == ["conventional", "replay"]
    assert [method.key for method in registry.methods("mamba2", "verify")] == VERIFY
    for name in ("gdn", "kda"):
        assert [method.key for method in registry.methods(name, "verify")] == [
            "activation_replay", "fused_recovery", "replay", "snapshot"]  # fmt: skip
    assert registry.methods("gdn", "decode")[0].key == "conventional"
    assert [method.key for method in registry.methods("kda", "decode")] == ["conventional", "replay"]
    assert "mamba2" in registry.families()
    for method in registry.methods():
        assert method.source.startswith("paper")
        assert registry.get_method(method.family, method.key, method.phase) is method


def test_unknown_keys_name_what_there_is() -> None:
    with pytest.raises(InputError) as error:
        registry.get_method("mamba2", "replai")
    assert line(error) == ("--method: 'replai': no such method for mamba2 decode (allowed: conventional, replay)")
    with pytest.raises(InputError) as error:
        registry.get_method("mamba2", "conventional", "verify")
    assert line(error).endswith(f"no such method for mamba2 verify (allowed: {', '.join(VERIFY)})")
    with pytest.raises(InputError) as error:
        registry.get_method("kda", "stree")
    assert "no such method for kda decode (allowed: " in line(error)
    with pytest.raises(InputError) as error:
        registry.family("nope")
    assert "family: 'nope': no kernels for this family (allowed: gdn, kda, mamba2" in line(error)


def test_what_a_family_has_no_kernels_for_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each strategy of App. A.1 is either there or said to be absent, in one sentence that result lines do not cut."""
    strategies = {key for key in STATE_TRAFFIC if key != "conventional"}
    for name in registry.families():
        there = {method.key for method in registry.methods(name, "verify")}
        absent = {item.key: item for item in registry.absent(name, "verify")}
        assert there | set(absent) == strategies and not there & set(absent)
        assert sorted(absent) == ([] if name == "mamba2" else ["joint_attainment", "stree", "stree_released"])
        for item in absent.values():
            assert item.supports(Case(Shape(name, 2, 2, 16, 16), item.key, 1, None, 4)) == item.reason
            assert 40 < len(item.reason) <= 120 and ". " not in item.reason
            with pytest.raises(InputError) as error:
                registry.get_method(name, item.key, "verify")
            assert line(error) == f"--method: '{item.key}': there is none for {name} verify: {item.reason}"
    assert "by the state before it" in {item.key: item.reason for item in registry.absent("kda")}["stree"]
    assert registry.absent(phase="decode") == []
    # What an installed package offers is there.
    brought = copy.copy(registry.get_method("mamba2", "stree", "verify"))
    brought.family = "gdn"
    every = (*registry.methods(), brought)
    monkeypatch.setattr(registry, "_all_methods", lambda: every)
    assert [item.key for item in registry.absent("gdn")] == ["joint_attainment", "stree_released"]
    assert registry.get_method("gdn", "stree", "verify") is brought


def test_a_file_s_method_is_loaded_once_and_known_by_its_spec() -> None:
    spec = f"{PLANTED}:RIGHT"
    method = registry.load_method(spec)
    assert isinstance(method, Method)
    assert method.key == spec and method.windowed
    assert registry.get_method("mamba2", spec) is method
    assert registry.get_method("mamba2", "replay") is not method
    case = Case(SUPER, spec, 8, 16)
    assert method.supports(case) is None
    assert Case.from_dict(case.to_dict()) == case


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("import no_such_module\n", "METHOD", "cannot import: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f(:\n", "METHOD", "cannot import: SyntaxError"),
        ("raise ValueError('two\\nlines')\n", "METHOD", "cannot import: ValueError: two lines"),
        ("METHOD = 3\n", "METHOD", "METHOD is not a perfkit.method.Method, nor is anything else in this file"),
        ("", "METHOD", "there is no METHOD in it, nor any perfkit.method.Method"),
    ],
)
def test_a_file_that_is_wrong_is_one_line(tmp_path: Path, text: str, name: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as error:
        registry.load_method(f"{path}:{name}")
    assert message in line(error)
    assert str(path) in line(error) and "--method" in line(error)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        registry.load_method(f"{tmp_path}/none.py:METHOD")
    assert line(error).endswith("none.py:METHOD': no such file") or "no such file" in line(error)


def test_a_wrong_name_lists_the_methods_of_the_file() -> None:
    with pytest.raises(InputError) as error:
        registry.load_method(f"{PLANTED}:NOT_A_METHOD")
    assert "NOT_A_METHOD is not a perfkit.method.Method (allowed: RIGHT, " in line(error)
    with pytest.raises(InputError) as error:
        registry.load_method(f"{PLANTED}:ABSENT")
    assert "there is no ABSENT in it (allowed: RIGHT, " in line(error)


def test_a_method_of_another_family_or_phase_is_refused(tmp_path: Path) -> None:
    spec = f"{write(tmp_path, OTHER_FAMILY)}:METHOD"
    with pytest.raises(InputError) as error:
        registry.get_method("mamba2", spec)
    assert "is for gdn decode, not mamba2 decode" in line(error)
    with pytest.raises(InputError) as error:
        registry.get_method("mamba2", f"{PLANTED}:RIGHT", "verify")
    assert "is for mamba2 decode, not mamba2 verify" in line(error)


def test_case_ids_do_not_change() -> None:
    """Journals, manifests and shipped measurements name cases by them."""
    case = Case(SUPER, "replay", 256, 16)
    assert (case.id, case.group_id) == ("7fe88028293b", "c5908580091f")
    assert Case(SUPER, "conventional", 256).id == "86e215855ab7"
    assert Case(SUPER, "conventional", 256).group_id == case.group_id
    assert Case.from_dict(case.to_dict()).id == case.id


def test_everything_that_changes_a_case_changes_its_id() -> None:
    base = Case(SUPER, "replay", 256, 16)
    changed = [
        Case(SUPER, "replay", 255, 16), Case(SUPER, "replay", 256, 17), Case(SUPER, "conventional", 256, 16),
        Case(Shape("mamba2", 128, 8, 64, 64), "replay", 256, 16), Case(SUPER, "replay", 256, 16, draft_len=2),
        Case(SUPER, "replay", 256, 16, state_dtype="bfloat16"), Case(SUPER, "replay", 256, 16, input_dtype="float16"),
        Case(SUPER, "replay", 256, 16, options=(("alias", "A"),)),
    ]  # fmt: skip
    assert len({case.id for case in [base, *changed]}) == 9
    assert base.group_id == changed[1].group_id == changed[2].group_id == changed[7].group_id != changed[0].group_id


@pytest.mark.parametrize(("key", "value"), [("colour", 1), ("shape", {"family": "mamba2"}), ("options", 3)])
def test_a_case_that_is_not_one_is_refused(key: str, value: object) -> None:
    data = Case(SUPER, "replay", 256, 16).to_dict() | {key: value}
    with pytest.raises(InputError) as error:
        Case.from_dict(data)
    assert "case" in line(error)
