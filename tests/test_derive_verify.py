"""Verify steps: what a step moves on average over the tokens that steps commit, against simulation and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from perfkit import cases, derive, registry, results
from perfkit.method import Case, Step
from perfkit.profiles import load_gpu
from perfkit.roofline import acceptance_pmf, roofs_for
from perfkit.shape import Shape
from perfkit.tree import Tree

SUPER = Shape("mamba2", 128, 8, 64, 128)
H200 = load_gpu("h200")
STATE, RECORD, BATCH = 100_000, 100, 10
TREE = "0,0,1,1,2,2,3"  # eight nodes, four on the longest path


class Stub:
    """What the models of methods read of one."""

    family, phase, source, windowed, trees = "mamba2", "verify", "by hand", False, True

    def supports(self, case: Case) -> str | None:
        return None

    def memory_per_request(self, case: Case) -> int:
        return STATE

    def paper(self, shape, point) -> Step:
        return Step(0, 0, 0)


class Replay(Stub):
    """A state and h records read, T records written, the state written at a flush."""

    key, windowed = "replay", True

    def step(self, shape, point, h, flush) -> Step:
        flush = np.asarray(flush)
        return Step(point.batch * (STATE + h * RECORD), point.batch * (point.draft_len * RECORD + flush * STATE), 0)


class Snapshot(Stub):
    """A state read, T written."""

    key = "snapshot"

    def step(self, shape, point, h, flush) -> Step:
        return Step(point.batch * STATE, point.batch * point.draft_len * STATE, 0, serial=point.draft_len)


class FusedRecovery(Stub):
    """Replays what the step before committed, or nothing where that was all of it."""

    key, trees = "fused_recovery", False

    def step(self, shape, point, h, flush) -> Step:
        replayed = np.where(np.asarray(h) < point.draft_len, h, 0)
        return Step(point.batch * (STATE + replayed * RECORD), 2 * point.batch * STATE, 0,
                    serial=point.draft_len + replayed)  # fmt: skip


@pytest.fixture(autouse=True)
def stubs(monkeypatch: pytest.MonkeyPatch):
    known = [*registry.methods("mamba2", "decode"), Snapshot(), FusedRecovery(), Replay()]
    monkeypatch.setattr(registry, "_all_methods", lambda: tuple(known))


def model(method: str, acceptance: str, **point) -> derive.Model:
    point = {"batch": BATCH, "draft_len": 4, "window": 16 if method == "replay" else None} | point
    return derive.model_case(Case(SUPER, method, acceptance=acceptance, **point), None, None)


@pytest.mark.parametrize(
    ("acceptance", "mean_h", "flushes"),
    [("1", 7, 1 / 13), ("3", 9, 1 / 5), ("T", 10, 1 / 4)],  # L = 16, T = 4: floor(12 / a) + 1 steps from h = a
)
def test_bytes_of_replay_from_all_rejected_to_all_accepted(acceptance: str, mean_h: float, flushes: float):
    step = model("replay", acceptance).step
    assert step.bytes_read == pytest.approx(BATCH * (STATE + mean_h * RECORD))
    assert step.bytes_write == pytest.approx(BATCH * (4 * RECORD + flushes * STATE))


@pytest.mark.parametrize(
    ("acceptance", "replayed"), [("1", 1), ("3", 3), ("T", 0), ("p:.88,.62,.40", 0.12 + 2 * 0.26 + 3 * 0.22)]
)
def test_fused_recovery_is_dearest_at_all_but_one(acceptance: str, replayed: float):
    step = model("fused_recovery", acceptance).step
    assert step.bytes_read == pytest.approx(BATCH * (STATE + replayed * RECORD))
    assert step.serial == pytest.approx(4 + replayed)
    assert step.bytes_write == 2 * BATCH * STATE


@pytest.mark.parametrize("acceptance", ["1", "3", "T", "mean:2.5"])
def test_snapshots_do_not_depend_on_acceptance(acceptance: str):
    step = model("snapshot", acceptance).step
    assert (step.bytes_read, step.bytes_write, step.serial) == (BATCH * STATE, 4 * BATCH * STATE, 4)


def simulate(window: int, depth: int, pmf: np.ndarray, steps: int = 200_000) -> np.ndarray:
    """h and flush of each step of one row, by the rule of the page on trees: flush where h + depth > L."""
    drawn = np.random.default_rng(3).choice(np.arange(1, depth + 1), size=steps, p=pmf)
    found, h = np.zeros((steps, 2)), 0
    for step, accepted in enumerate(drawn):
        flush = h + depth > window
        found[step] = h, flush
        h = accepted if flush else h + accepted
    return found[1000:]


@pytest.mark.parametrize(
    ("tree", "window", "acceptance"), [(TREE, 16, "mean:2.5"), (TREE, 5, "p:.8,.5,.1"), ("0,0,0,0", 7, "mean:1.3")]
)
def test_a_tree_flushes_by_its_longest_path(tree: str, window: int, acceptance: str):
    nodes = Tree.parse(tree)
    h, flush = simulate(window, nodes.depth, acceptance_pmf(acceptance, nodes.depth)).mean(axis=0)
    found = model("replay", acceptance, draft_len=len(nodes), tree=tree, window=window)
    assert found.step.bytes_read == pytest.approx(BATCH * (STATE + h * RECORD), rel=1e-4)
    assert found.step.bytes_write == pytest.approx(BATCH * (len(nodes) * RECORD + flush * STATE), rel=0.01)
    assert found.accepted == pytest.approx(acceptance_pmf(acceptance, nodes.depth) @ np.arange(1, nodes.depth + 1))


def test_useful_bytes_are_never_more_than_the_snapshots():
    assert model("replay", "T").useful == pytest.approx(BATCH * (STATE + 14 * RECORD + STATE / 4))
    assert model("fused_recovery", "3").useful == pytest.approx(BATCH * (3 * STATE + 3 * RECORD))
    # At T = 2 fused recovery moves as many states as snapshots, and its cached inputs on top.
    assert model("fused_recovery", "1", draft_len=2).useful == 3 * BATCH * STATE


def test_rows_of_a_verify_sweep():
    roofs = roofs_for(H200)
    spec = cases.parse_spec(batch="256", window="8,16", draft="4", accepted="1,T-1,mean:2.5")
    groups = cases.build_groups(SUPER, spec)
    table = {case.id: case for group in groups for case in group.cases}
    times = [500.0] + 3 * [1400.0, 1200.0, 420.0, 350.0]
    rows = [results.make_row(case, model="m", gpu="h200", gpu_uuid="GPU-1", source="measured", status="ok",
                             time_us=time) for case, time in zip(table.values(), times, strict=True)]  # fmt: skip
    out = derive.derive(rows, table, H200, roofs)
    assert [row["accepted"] for row in out[1::4]] == pytest.approx([1, 3, 2.5])
    assert [row["conventional_steps"] for row in out[:5]] == pytest.approx([1, 2.8, 2.4, 0.84, 0.7])
    assert [row["speedup"] for row in out[1:5]] == pytest.approx([1, 1400 / 1200, 1400 / 420, 4])
    assert all(row["predicted_us"] > 0 and row["roof_gb_s"] > 0 for row in out)
    assert out[8]["tokens_per_s"] == pytest.approx(256 * 3 / 350e-6)


def test_window_cost_of_a_tree_is_the_models_time():
    case = Case(SUPER, "replay", 256, 16, 8, "mean:2.5", tree=TREE)
    roofs = roofs_for(H200)
    cost = derive.window_cost(case, H200, roofs)
    found = derive.model_case(case, H200, roofs)
    assert found.time is not None
    # Rows out of step: a batch is the mean of its rows.
    assert cost(np.array([8, 16, 32]))[1] == pytest.approx(found.time.us / found.accepted, rel=1e-12)
    assert cost(np.array([4])) > 0


def test_only_constant_acceptance_keeps_rows_in_step():
    assert derive.in_step(Case(SUPER, "replay", 4, 16, 4, "T"))
    assert derive.in_step(Case(SUPER, "replay", 4, 16, 8, "T", tree=TREE))
    assert derive.in_step(Case(SUPER, "replay", 4, 16, 4, "mean:4"))
    assert not derive.in_step(Case(SUPER, "replay", 4, 16, 4, "mean:3"))
    assert not derive.in_step(Case(SUPER, "replay", 4, 16, 4, "T", flush_phase="staggered"))
    assert derive.case_chain(
        Case(SUPER, "conventional", 4), registry.get_method("mamba2", "conventional")
    ).h.tolist() == [0]


def test_the_row_of_a_tree_has_the_mean_of_its_path():
    row = results.make_row(Case(SUPER, "snapshot", 4, None, 8, "T", tree=TREE), source="measured", status="skipped")
    assert (row["accepted"], row["draft_len"], row["tree"]) == (4.0, 8, TREE)
