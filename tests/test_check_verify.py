"""Checks of verify steps pass on what is right, chains and trees, and fail on everything that is planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planted_verify import FAULTS, TREE

from perfkit import check, checking, registry, samples
from perfkit.check import check_case
from perfkit.checker import Checker
from perfkit.method import Case, Config
from perfkit.session import Session
from perfkit.shape import Shape
from perfkit.tree import Tree
from perfkit.verify_checker import UNTOUCHED, VerifyChecker, make_checker

PLANTED = Path(__file__).with_name("planted_verify.py")
METHODS = registry.methods(phase="verify")
#: What is made of kernels that others have too is stepped at every third sample: recovery of the second delta rule, and
#: STree as released, which adds copies to STree.
IN_COMMON = (("kda", "fused_recovery"), ("kda", "activation_replay"), ("mamba2", "stree_released"))
CASES = [
    case
    for method in METHODS
    for index, case in enumerate(samples.interpreter_cases(method))
    if not ((method.family, method.key) in IN_COMMON and index % 3)
]
SMALL = Shape("mamba2", 2, 1, 16, 16)


def case_name(case: Case) -> str:
    shape, config = case.shape, case.option("config")
    return (f"{shape.family}-{case.method}-B{case.batch}-T{case.draft_len}-{case.tree}-L{case.window}-"
            f"{shape.n_v_heads}x{shape.n_k_heads}x{shape.d_v}x{shape.d_k}-"
            f"{case.input_dtype}-{case.state_dtype}-{config}")  # fmt: skip


def planted(name: str, window: int | None = None, **changes: Any) -> Case:
    given = {"input_dtype": "float32", **changes}
    return Case(SMALL, f"{PLANTED}:{name}", 3, window, 5, **given)


def small(method: str, draft_len: int = 4, window: int | None = None, batch: int = 3, **changes: Any) -> Case:
    return Case(SMALL, method, batch, window, draft_len, **{"input_dtype": "float32", **changes})


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_shipped_kernels_agree_with_the_oracle(case: Case) -> None:
    outcome = check_case(case, "cpu", Config.parse(case.option("config")))
    assert outcome.reason is None
    assert 0 <= outcome.rel_error < 2e-6
    assert outcome.steps == (case.option("steps") or 12)
    assert {"bytes", "acceptance", "hand-over"} <= set(outcome.covered)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.family}-{method.key}")
def test_samples_are_as_odd_as_they_should_be(method: Any) -> None:
    own = samples.interpreter_cases(method)
    assert len(own) == len({case.id for case in own}) == len({checking.describe(case) for case in own})
    assert {1, 2, 3} <= {case.batch for case in own}
    assert {2, 3, 4, 5, 7, 8, 16} <= {case.draft_len for case in own}
    assert 80 in {case.shape.d_v for case in own}
    assert {"float32", "float16", "bfloat16"} == {case.state_dtype for case in own}
    assert {"float32", "float16"} == {case.input_dtype for case in own}
    shared = [case for case in own if case.shape.n_v_heads > case.shape.n_k_heads > 1]
    assert bool(shared) == (method.family != "kda")  # whose heads share no key
    assert all(case.batch * case.shape.n_v_heads <= 8 for case in own)
    assert len({case.tree for case in own}) == (4 if method.trees else 1)
    assert sum((case.option("steps") or 0) >= 40 for case in own) == 1 + method.trees
    if method.windowed:
        assert {0, 1, 2} <= {case.window - case.depth for case in own}
    on_gpu = samples.gpu_cases(method)
    assert len({checking.describe(case) for case in on_gpu}) == len(on_gpu)
    assert {"float32", "float16", "bfloat16"} == {case.input_dtype for case in on_gpu}
    case = samples.Case(
        samples.layer_shape(method.family, 16, 2, 64, 128), method.key, 5, 16 if method.windowed else None, 4
    )
    wanted = {str(config) for config in samples.all_configs(method, case)}
    assert wanted <= {case.option("config") for case in on_gpu if case.input_dtype == "bfloat16"}


def test_small_cases_keep_drafts_and_tree() -> None:
    shape = Shape("mamba2", 128, 8, 64, 128)
    found = samples.small_case(Case(shape, "replay", 256, 16, 6, "T", tree="0,0,1,1,2"))
    assert (found.draft_len, found.tree, found.window, found.acceptance) == (6, "0,0,1,1,2", 5, "T")
    assert samples.small_case(Case(shape, "replay", 256, 16, 16)).window == 18
    assert samples.small_case(Case(shape, "snapshot", 256, None, 3)).window is None


def test_compiled_cases_have_a_tree_where_there_can_be_one() -> None:
    for method in METHODS:
        cases = samples.compile_cases(method, samples.layer_shape(method.family, 128, 8, 64, 128))
        assert [case.tree for case in cases] == [None, None, *(["0,0,1"] if method.trees else [])]
        assert {case.draft_len for case in cases} == {4}


# What is drawn.


def drawn(checker: VerifyChecker, steps: int) -> list[tuple[int, int, int, int]]:
    """(row, drafts, accepted, path) of every step of every live row."""
    found = []
    for _ in range(steps):
        checker._prepare(checker.live)
        checker._advance(checker.live, np.zeros(checker.case.batch, dtype=bool))
        checker.index += 1
        found += [(int(row), int(checker.drafts[row]), int(checker.pending[row]), int(checker.paths[row]))
                  for row in np.flatnonzero(checker.live)]  # fmt: skip
    return found


@pytest.mark.parametrize("draft_len", [2, 5, 8])
def test_all_acceptances_occur(draft_len: int) -> None:
    seen = drawn(VerifyChecker(small("snapshot", draft_len), "cpu"), 42)
    assert all(1 <= accepted <= drafts <= draft_len for _, drafts, accepted, _ in seen)
    full = {accepted for _, drafts, accepted, _ in seen if drafts == draft_len}
    assert {1, draft_len - 1, draft_len} <= full
    assert {drafts for _, drafts, _, _ in seen} == set(range(1, draft_len + 1))
    assert sum(drafts == draft_len for _, drafts, _, _ in seen) > len(seen) / 2


def test_accepted_nodes_of_a_tree_are_a_path_among_those_that_a_row_has() -> None:
    text = "0,0,1,1,2,0"
    tree = Tree.parse(text)
    seen = drawn(VerifyChecker(small("snapshot", 7, tree=text), "cpu"), 60)
    for _, drafts, accepted, path in seen:
        assert path in tree.ancestors and path.bit_length() <= drafts and path.bit_count() == accepted
    assert {path for _, _, _, path in seen} == set(tree.ancestors)


def test_what_a_step_must_not_read_is_poisoned() -> None:
    checker = VerifyChecker(small("snapshot", 4, batch=4), "cpu")
    for index in range(6):
        checker.index = index
        idle = np.array([index % 2 == 1, False, False, False])
        checker._prepare(checker.live & ~idle)
        for row in range(4):
            served = int(checker.drafts[row]) if checker.live[row] and not idle[row] else 0
            for name in ("packed", "dt", "x"):
                values = checker.tensors[name][row]
                assert values[:served].isfinite().all() and values[served:].isnan().all()
        assert (checker.tensors["out"] == UNTOUCHED).all()
        accepted = checker.tensors["accepted"].numpy()
        assert (accepted[index] == checker.pending).all() and (accepted[index + 1 :] != checker.pending).all()
        checker._advance(checker.live & ~idle, np.zeros(4, dtype=bool))


def test_rows_that_sit_out_keep_what_they_accepted() -> None:
    checker = VerifyChecker(small("snapshot", 4), "cpu")
    checker.step()
    pending, drafts = checker.pending.copy(), checker.last_drafts.copy()
    checker.step(np.array([True, False, False]))
    assert checker.pending[0] == pending[0] and checker.last_drafts[0] == drafts[0]
    checker.step()
    checker.restart(2)
    assert checker.pending[2] == checker.paths[2] == checker.h[2] == 0
    checker.step()
    assert checker.pending[2] > 0


def test_the_flush_rule_takes_the_depth_of_a_rows_tree() -> None:
    checker = VerifyChecker(small("replay", 5, 6, tree=TREE), "cpu")
    checker.h[:] = 4
    for drafts, flushes in ((1, False), (2, False), (3, False), (4, True), (5, True)):  # depths 1, 2, 2, 3, 3
        checker.drafts[:] = drafts
        assert checker.flushes().tolist() == [flushes] * 3
    chain = VerifyChecker(small("replay", 3, 6), "cpu")
    chain.h[:] = (3, 4, 0)
    assert chain.flushes().tolist() == [False, True, False]
    assert not VerifyChecker(small("snapshot"), "cpu").flushes().any()


def test_rereads_leave_out_the_state_that_a_step_starts_from() -> None:
    checker = VerifyChecker(small("snapshot", 5, tree=TREE), "cpu")  # the walk comes back to nodes 0 and 1
    for drafts, path, rereads in ((5, 0, 1), (5, 0b1, 1), (5, 0b11, 1), (5, 0b101, 2), (4, 0b101, 2), (3, 0b101, 1),
                                  (2, 0b101, 0), (2, 0b1, 0)):  # fmt: skip
        checker.drafts[0], checker.paths[0] = drafts, path
        point = checker._point(0)
        assert (point.rereads, point.draft_len, point.tree, point.batch) == (rereads, drafts, True, 1)
    chain = VerifyChecker(small("snapshot", 5), "cpu")._point(0)
    assert (chain.rereads, chain.tree) == (0, False)


def test_each_phase_has_its_checker() -> None:
    decode = make_checker(Case(SMALL, "conventional", 1, input_dtype="float32"), "cpu")
    assert type(decode) is Checker
    assert type(make_checker(small("snapshot"), "cpu")) is VerifyChecker


# Half precision: what is stored is rounded, and only that.


@pytest.mark.parametrize("method", ["snapshot", "stree", "replay"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounded_states_are_allowed_for(method: str, dtype: str) -> None:
    case = small(method, 5, 6 if method == "replay" else None, tree=TREE, state_dtype=dtype)
    assert check_case(case, "cpu", count_bytes=False).reason is None


# Faults.


@pytest.mark.parametrize("tree", [None, TREE])
def test_a_plugin_that_is_right_passes(tree: str | None) -> None:
    outcome = check_case(planted("RIGHT", tree=tree), "cpu")
    assert outcome.reason is None and "bytes" in outcome.covered


@pytest.mark.parametrize(("name", "window", "tree", "finding"), FAULTS)
def test_a_method_with_a_fault_is_incorrect(name: str, window: int | None, tree: str | None, finding: str) -> None:
    """As on a GPU, where there is nothing to count with."""
    outcome = check_case(planted(name, window, tree=tree), "cpu", count_bytes=False)
    assert outcome.reason is not None and finding in outcome.reason


@pytest.mark.parametrize(
    ("name", "tree", "difference"),
    [("FORGETS_FOUR_BYTES", None, 4), ("FORGETS_FOUR_BYTES", TREE, 8), ("FORGETS_REREADS", TREE, 8192),
     ("READS_ALL_POSITIONS", None, 528), ("READS_ALL_POSITIONS", TREE, 536)],
)  # fmt: skip
def test_bytes_that_are_not_declared_are_found(name: str, tree: str | None, difference: int) -> None:
    reason = str(check_case(planted(name, tree=tree), "cpu").reason).split()
    assert reason[3:5] == ["bytes", "read"]
    assert int(reason[2]) - int(reason[reason.index("declared") + 1]) == difference


def test_a_half_precision_checkpoint_is_not_rounded_further() -> None:
    outcome = check_case(planted("ROUNDS_TWICE", state_dtype="float16"), "cpu", count_bytes=False)
    assert outcome.reason is not None and "error" in outcome.reason


@pytest.mark.parametrize(
    ("name", "window", "finding"),
    [
        ("RIGHT", None, None),
        ("FORGETS_IDLE_ROWS", None, "output error"),
        ("KEEPS_OLD_RECORDS", 7, "error inf"),
        ("FLUSHES_LATE", 7, "did not write its checkpoint"),
        ("DEAF_X", None, "outputs do not change when x_cache is perturbed"),
    ],
)
def test_faults_show_when_most_steps_are_replays(
    name: str, window: int | None, finding: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of a check on a GPU: a method is asked for launches in the first part and twice more, never again."""

    class Recorded:
        def __init__(self, launches: list[Any]) -> None:
            self.launches = launches

        def replay(self) -> None:
            for launch in self.launches:
                launch()

    class Graphed(VerifyChecker):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.interprets = False

    def capture(self: Session, steps: list[int]) -> Recorded:
        return Recorded([one for step in steps for one in self.method.launches(self.case, self.config, self.tensors,
                                                                               step)])  # fmt: skip

    monkeypatch.setattr(check, "make_checker", Graphed)
    monkeypatch.setattr(check, "GPU_VERIFY_STEPS", 4)
    monkeypatch.setattr(Session, "capture", capture)
    outcome = check_case(planted(name, window), "cpu")
    if finding is None:
        assert (outcome.reason, outcome.steps) == (None, 16)
        assert "one graph" in outcome.covered and "bytes" not in outcome.covered
    else:
        assert outcome.reason is not None and finding in outcome.reason


def test_a_check_is_the_same_again_and_other_with_another_seed() -> None:
    first, again, other = (check_case(small("snapshot"), "cpu", seed=seed, count_bytes=False) for seed in (0, 0, 1))
    assert first == again
    assert first.rel_error != other.rel_error


def test_the_oracle_takes_each_path_of_a_tree_by_itself() -> None:
    """Outputs of a tree's leaf are those of the chain of its ancestors, run one token at a time."""
    checker = VerifyChecker(small("snapshot", 5, tree=TREE, batch=1), "cpu")
    checker._prepare(checker.live)
    states, outs = checker._walk(checker.anchor, {})
    inputs = checker._inputs()
    for path in ((0, 1, 3), (0, 1, 4), (0, 2)):
        state = checker.anchor
        for node in path:
            state, out = checker.family.reference(state, checker.family.token(inputs, node))
        assert torch.equal(out, outs[:, path[-1]]) and torch.equal(state, states[:, path[-1]])
