"""Checks pass on what is right, at odd shapes and in every dtype, and fail on everything that is planted."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from perfkit import check, registry, samples
from perfkit.check import Outcome, check_case
from perfkit.checker import Checker, Wrong
from perfkit.errors import DeviceError
from perfkit.method import Case, Config
from perfkit.session import Session
from perfkit.shape import Shape

PLANTED = Path(__file__).with_name("planted_methods.py")
METHODS = registry.methods(phase="decode")
CASES = [case for method in METHODS for case in samples.interpreter_cases(method)]
SMALL = Shape("mamba2", 2, 1, 16, 16)


def case_name(case: Case) -> str:
    shape = case.shape
    return (f"{shape.family}-{case.method}-B{case.batch}-L{case.window}-{shape.n_v_heads}x{shape.n_k_heads}x"
            f"{shape.d_v}x{shape.d_k}-{case.input_dtype}-{case.state_dtype}-{case.option('config')}")  # fmt: skip


def planted(name: str, window: int | None = 4, **changes: Any) -> Case:
    given = {"input_dtype": "float32", **changes}
    return Case(SMALL, f"{PLANTED}:{name}", 3, window, **given)


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_shipped_kernels_agree_with_the_oracle(case: Case) -> None:
    outcome = check_case(case, "cpu", Config.parse(case.option("config")))
    assert outcome.reason is None
    assert 0 <= outcome.rel_error < 2e-6
    assert outcome.steps == 3 * max(case.window or 0, 3)
    assert "bytes" in outcome.covered


def test_samples_are_as_odd_as_they_should_be() -> None:
    assert len(CASES) == len({case.id for case in CASES})
    for method in METHODS:
        own = [case for case in CASES if (case.shape.family, case.method) == (method.family, method.key)]
        assert {1, 3} <= {case.batch for case in own}
        assert {80} <= {case.shape.d_v for case in own}
        assert {"float32", "float16", "bfloat16"} == {case.state_dtype for case in own}
        assert {"float32", "float16"} == {case.input_dtype for case in own}
        assert {1} < {case.shape.n_k_heads for case in own}
        shared = [case for case in own if case.shape.n_v_heads > case.shape.n_k_heads > 1]
        assert bool(shared) == (method.family != "kda")  # whose heads share no key
        assert any(case.shape.n_v_heads == case.shape.n_k_heads > 1 for case in own)
        assert all(case.batch * case.shape.n_v_heads <= 12 for case in own)
    assert {1, 2, 3, 5, 17} <= {case.window for case in CASES}
    method = registry.get_method("mamba2", "replay")
    base = Case(Shape("mamba2", 16, 2, 64, 128), "replay", 5, 8)
    wanted = {str(config) for config in samples.all_configs(method, base)}
    assert wanted <= {case.option("config") for case in samples.gpu_cases(method)}
    assert "bfloat16" in {case.input_dtype for case in samples.gpu_cases(method)}


@pytest.mark.parametrize("name", ["RIGHT"])
def test_a_plugin_that_is_right_passes(name: str) -> None:
    assert check_case(planted(name), "cpu").reason is None


@pytest.mark.parametrize(
    ("name", "finding"),
    [
        ("FORGETS_CURSOR_BYTES", "bytes read"),
        ("KEYS_PER_VALUE_HEAD", "bytes read"),
        ("FLUSHES_LATE", "bytes read"),
        ("FLUSHES_EARLY", "checkpoint of a row that does not flush was written"),
        ("KEEPS_OLD_RECORDS", "bytes read"),
        ("ROUNDS_DT", "state error"),
    ],
)
def test_a_windowed_method_with_a_fault_is_incorrect(name: str, finding: str) -> None:
    outcome = check_case(planted(name), "cpu")
    assert not outcome.ok
    assert outcome.reason is not None and finding in outcome.reason


@pytest.mark.parametrize(
    ("name", "finding"),
    [
        ("SKIPS_A_LAUNCH", "step 1: output error inf"),
        ("NO_LAUNCH", "no launch"),
        ("CLOBBERS_SPARE_SLOT", "a slot that no row owns changed"),
        ("SERVES_PADDED_ROWS", "output of a row without a slot was written"),
        ("FORGETS_SKIP", "output error"),
        ("RETURNS_NAN", "step 0: output error inf"),
        ("CACHES", "step 1: output error"),
    ],
)
def test_a_method_without_a_window_with_a_fault_is_incorrect(name: str, finding: str) -> None:
    outcome = check_case(planted(name, None), "cpu", count_bytes=False)
    assert not outcome.ok
    assert outcome.reason is not None and finding in outcome.reason


@pytest.mark.parametrize(
    ("name", "finding"),
    [("FLUSHES_LATE", "a row that is due did not write its checkpoint"),
     ("FLUSHES_EARLY", "checkpoint of a row that does not flush was written"),
     ("KEEPS_OLD_RECORDS", "error inf")],
)  # fmt: skip
def test_cursors_are_seen_without_counting_bytes(name: str, finding: str) -> None:
    """As on a GPU, where there is nothing to count with."""
    assert finding in str(check_case(planted(name), "cpu", count_bytes=False).reason)


@pytest.mark.parametrize(
    ("name", "buffer"), [("DEAF_X", "x_ring"), ("DEAF_K", "k_ring"), ("DEAF_DT", "dt_ring"), ("DEAF_STATE", "state")]
)
def test_outputs_that_do_not_depend_on_a_buffer_are_incorrect(name: str, buffer: str) -> None:
    outcome = check_case(planted(name), "cpu", count_bytes=False)
    assert outcome.reason == f"outputs do not change when {buffer} is perturbed"


@pytest.mark.parametrize("name", ["state", "x_ring", "k_ring", "dt_ring"])
def test_each_perturbed_buffer_shows(name: str) -> None:
    checker = Checker(Case(SMALL, "replay", 3, 3, input_dtype="float16"), "cpu")
    assert checker.remembered() == ["state", "x_ring", "k_ring", "dt_ring"]
    for _ in range(4):  # in steps that flush and in steps that do not
        assert checker.sees(name)
    checker.step()  # what was changed has become true


def test_a_window_of_one_has_no_records_to_perturb() -> None:
    assert Checker(Case(SMALL, "replay", 1, 1, input_dtype="float16"), "cpu").remembered() == ["state"]


def test_rows_fall_out_of_step_and_one_is_padded() -> None:
    checker = Checker(Case(SMALL, "replay", 4, 3, input_dtype="float16"), "cpu", seed=3)
    assert checker.live.tolist() == [True, True, False, True]
    for index in range(3):
        checker.step(checker.desynchronize(index, 3))
    assert len(set(checker.h[checker.live].tolist())) > 1
    checker.h[:] = 1
    assert checker.desynchronize(2, 3).tolist() == [False, False, False, True]


def test_a_check_is_the_same_again_and_other_with_another_seed() -> None:
    case = Case(SMALL, "conventional", 3, input_dtype="float32")
    first, again, other = (check_case(case, "cpu", seed=seed, count_bytes=False) for seed in (0, 0, 1))
    assert first == again
    assert first.rel_error != other.rel_error


def test_progress_counts_every_step() -> None:
    told: list[tuple[int, int]] = []
    check_case(Case(SMALL, "conventional", 1, input_dtype="float32"), "cpu", count_bytes=False,
               progress=lambda done, total: told.append((done, total)))  # fmt: skip
    assert told == [(step, 9) for step in range(1, 10)]


def test_bf16_inputs_of_steps_that_do_not_flush() -> None:
    """The interpreter's matrix product is wrong on BF16; without a flush there is none."""
    checker = Checker(Case(SMALL, "replay", 3, 8), "cpu")
    for _ in range(4):
        checker.step(count_bytes=True)
    assert 0 <= checker.worst < 2e-6
    assert checker.h[checker.live].tolist() == [4, 4]


def events(cases: list[Case], monkeypatch: pytest.MonkeyPatch, outcome: Outcome) -> list[dict[str, Any]]:
    seen: list[Any] = []

    def fake(case: Case, device: str, config: Config, **options: Any) -> Outcome:
        seen.append((case.method, device, str(config), options["seed"]))
        return outcome

    monkeypatch.setattr(check, "check_case", fake)
    found: list[dict[str, Any]] = []
    check.run_group({"cases": [case.to_dict() for case in cases], "settings": {"seed": 5}}, found.append)
    return [*found, {"seen": seen}]


def test_one_result_a_case_in_the_configuration_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Case(SMALL, "conventional", 1)
    named = samples.with_config(plain, Config.of(rows=8, warps=1))
    odd = Case(Shape("mamba2", 2, 1, 16, 24), "conventional", 1)
    found = events([plain, named, odd], monkeypatch, Outcome(1e-8, None, 9, ("outputs",)))
    results = [event for event in found if event.get("event") == "result"]
    assert [event["case_id"] for event in results] == [plain.id, named.id, odd.id]
    assert [event["status"] for event in results] == ["ok", "ok", "skipped"]
    assert results[1]["row"] == {"checked": "interpreter", "launch_config": "rows=8 warps=1", "rel_error": 1e-8,
                                 "steps": 9, "covered": ["outputs"]}  # fmt: skip
    assert "d_k = 24 is not a power of two" in results[2]["reason"]
    default = str(registry.get_method("mamba2", "conventional").configs(plain)[0])
    assert found[-1]["seen"] == [("conventional", "cpu", default, 5), ("conventional", "cpu", "rows=8 warps=1", 5)]


def test_an_incorrect_case_has_its_reason_and_no_error_number(monkeypatch: pytest.MonkeyPatch) -> None:
    result = events([Case(SMALL, "conventional", 1)], monkeypatch, Outcome(0.5, "step 3: output error 5.0e-01", 3))[1]
    assert (result["status"], result["reason"]) == ("incorrect", "step 3: output error 5.0e-01")
    assert result["row"]["rel_error"] is None


def test_restart_leaves_the_other_rows_alone() -> None:
    checker = Checker(Case(SMALL, "replay", 3, 4, input_dtype="float32"), "cpu")
    for _ in range(2):
        checker.step()
    before = checker.committed()
    checker.restart(0)
    after = checker.committed()
    assert torch.equal(before[2], after[2]) and not torch.equal(before[0], after[0])
    assert checker.h.tolist()[0] == 0 and checker.h.tolist()[2] == 2
    assert np.isnan(checker.tensors["x_ring"][int(checker.home[0])].numpy()).all()
    for _ in range(4):
        checker.step()


def test_captured_steps_serve_rows_out_of_step_and_a_late_flush_still_shows() -> None:
    def stepped(method: str) -> Checker:
        checker = Checker(Case(Shape("mamba2", 2, 1, 16, 16), method, 3, 3, input_dtype="float32"), "cpu")
        for index in range(3):
            checker.step(checker.desynchronize(index, 3))
        checker.capture()
        for _ in range(6):
            checker.step()
        return checker

    checker = stepped("replay")
    checker.finish()
    assert len(set(checker.h[checker.live].tolist())) > 1
    with pytest.raises(Wrong, match="did not write its checkpoint"):
        stepped(f"{PLANTED}:FLUSHES_LATE")  # in the eager steps or in the replayed ones: either way it shows


def test_captured_steps_take_launches_of_both_parities(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = Checker(Case(Shape("mamba2", 1, 1, 16, 16), "conventional", 1, input_dtype="float32"), "cpu")
    seen: list[int] = []
    step = checker.session.step
    monkeypatch.setattr(checker.session, "step", lambda index=0, copy=0: (seen.append(index % 2), step(index, copy))[1])
    checker.step()
    checker.capture()
    for _ in range(4):
        checker.step()
    assert seen == [0, 1, 0, 1, 0]


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of a check on a GPU: a method is asked for launches in the first part and twice more, never again."""

    class Recorded:
        def __init__(self, launches: list[Any]) -> None:
            self.launches = launches

        def replay(self) -> None:
            for launch in self.launches:
                launch()

    class Graphed(Checker):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.interprets = False

    def capture(self: Session, steps: list[int]) -> Recorded:
        return Recorded([one for step in steps for one in self.method.launches(self.case, self.config, self.tensors,
                                                                               step)])  # fmt: skip

    monkeypatch.setattr(check, "make_checker", Graphed)
    monkeypatch.setattr(Session, "capture", capture)


@pytest.mark.usefixtures("replays")
@pytest.mark.parametrize(
    ("name", "window", "finding"),
    [
        ("RIGHT", 4, None),
        ("KEEPS_OLD_RECORDS", 4, "error inf"),
        ("DEAF_STATE", 4, "outputs do not change when state is perturbed"),
        ("SKIPS_A_LAUNCH", None, "output error inf"),
        ("CLOBBERS_SPARE_SLOT", None, "a slot that no row owns changed"),
    ],
)
def test_faults_show_when_most_steps_are_replays(name: str, window: int | None, finding: str | None) -> None:
    outcome = check_case(planted(name, window), "cpu")
    if finding is None:
        assert (outcome.reason, outcome.steps) == (None, 4 * 4)
        assert "one graph" in outcome.covered and "bytes" not in outcome.covered
    else:
        assert outcome.reason is not None and finding in outcome.reason


@pytest.mark.usefixtures("replays")
@pytest.mark.parametrize(
    ("batch", "finding"),
    [
        (1, r"step 3: output error \d\.\de\+00 > 2e-06"),
        (16, "step 3: output error inf > 2e-06; NaN or inf in 1 of 7 outputs"),  # of the row that sat step 2 out
    ],
)
def test_a_cache_by_version_shows_in_replays(batch: int, finding: str) -> None:
    """Graphs are captured before the next step's inputs are written, when torch saw no change since the step before."""
    case = replace(planted("CACHES_BY_VERSION", None), batch=batch)
    vars(registry.load_method(case.method)).update(calls=0, kept={})
    assert re.fullmatch(finding, str(check_case(case, "cpu").reason))


def test_a_step_that_cannot_be_captured_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    checker = Checker(Case(SMALL, "conventional", 1, input_dtype="float32"), "cpu")

    def refuse(steps: Any) -> Any:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(checker.session, "capture", refuse)
    with pytest.raises(
        DeviceError, match=r"captured in a CUDA graph: CUDA error: operation not permitted .* capturing$"
    ):
        checker.capture()


def test_what_was_right_is_not_checked_again_for_another_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Case] = []
    outcomes = iter([Outcome(1.0, "output error", 1), Outcome(1e-7, None, 24), Outcome(1e-7, None, 24)])

    def checked(case: Case, *rest: object, **named: object) -> Outcome:
        done.append(case)
        return next(outcomes)

    monkeypatch.setattr(check, "check_case", checked)
    case = Case(Shape("mamba2", 2, 1, 16, 16), "snapshot", 3, draft_len=4, acceptance="1")
    config = Config.of(rows=16, warps=1)
    assert not check.check_once(case, "cpu", config).ok  # what is wrong is not remembered
    assert check.check_once(case, "cpu", config).ok
    assert check.check_once(replace(case, acceptance="T", flush_phase="staggered"), "cpu", config).ok
    assert len(done) == 2
    check.check_once(case, "cpu", Config.of(rows=8, warps=1))
    assert len(done) == 3
