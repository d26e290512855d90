"""Fitted efficiencies: the shipped file, its fit anew, models left out, and what predictions say with and without."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from perfkit import derive
from perfkit.errors import InputError
from perfkit.method import Case, Step
from perfkit.profiles import load_efficiency, load_gpu, load_measured, load_model
from perfkit.profiles.measured import EFFICIENCY, MEASURED
from perfkit.roofline import efficiency_for, predict, roofs_for
from perfkit.roofline.efficiency import Efficiency, Observation, covered, errors, fit, tile_of
from perfkit.roofline.roof import datasheet_roofs

ROOT = Path(__file__).resolve().parents[1]
H200 = load_gpu("h200-sxm")
ROOFS = roofs_for(H200)
KEY = ("mamba2", "replay", "decode", "h200-sxm")
METHODS = ("conventional", "replay")
SUPER, NANO, KIMI = load_model("nemotron-super"), load_model("nemotron-nano"), load_model("kimi-linear")
#: An outlier: slower than its neighbours by 2 to 3 us, and timed with another tile than they.
OUTLIER = (SUPER.key, 4, 32)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_efficiency", ROOT / "scripts" / "fit_efficiency.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def seen(script: ModuleType) -> dict[str, list[Observation]]:
    found = script.observations(load_measured(gpu_key="h200-sxm"))
    return {key[1]: one for key, one in found.items() if key[0] == "mamba2" and key[2] == "decode"}


def known(method: str) -> Efficiency:
    found = efficiency_for("mamba2", method, "decode", "h200-sxm")
    assert found is not None
    return found


def test_shipped_file_is_what_the_rows_give(script: ModuleType) -> None:
    assert (MEASURED / EFFICIENCY).read_text(encoding="utf-8") == script.document()


def test_shipped_parameters_are_physical() -> None:
    conventional, replay = known("conventional"), known("replay")
    assert conventional.overhead_us == pytest.approx(1.0, abs=0.15)  # one or two trips to memory
    assert conventional.efficiency == pytest.approx(0.974, abs=0.01)
    assert replay.walk_us == pytest.approx(0.85, abs=0.15)  # per tile of 16 rows
    assert replay.efficiency == pytest.approx(0.916, abs=0.03)
    assert 0.001 < replay.record_share < 0.005
    for entry in load_efficiency():
        assert len(entry["parameters"]) <= 3
        for item in entry["parameters"].values():
            assert item["lo"] < item["value"] < item["hi"]


@pytest.mark.parametrize("method", METHODS)
def test_errors_over_all_shipped_rows(seen: dict[str, list[Observation]], method: str) -> None:
    error = errors(known(method), seen[method])
    for one, value in zip(seen[method], error, strict=True):
        point = (one.model, one.batch, one.window)
        bound = 0.20 if one.batch < 4 or point == OUTLIER else 0.12
        assert abs(value) < bound, point
    assert np.mean(np.abs(error) < 0.10) >= 0.9
    assert abs(np.median(error)) < 0.03  # no longer low throughout
    assert covered(known(method), seen[method]) >= 0.9


@pytest.mark.parametrize(("method", "off", "width"), [("conventional", 0.03, 0.07), ("replay", 0.13, 0.34)])
def test_fits_to_one_model_of_another_family_say_how_wide_they_are(
    script: ModuleType, method: str, off: float, width: float
) -> None:
    seen = script.observations(load_measured(KIMI.key, "h200-sxm"))["kda", method, "decode", "h200-sxm"]
    found = efficiency_for("kda", method, "decode", "h200-sxm")
    assert found is not None and found.width < width
    error = errors(found, seen)
    assert float(np.max(np.abs(error))) < off and abs(np.median(error)) < 0.03
    assert covered(found, seen) == 1.0
    # Verify steps were timed at one batch: no fit.
    assert all(efficiency_for("kda", one, "verify") is None for one in ("snapshot", "replay", "fused_recovery"))


@pytest.mark.parametrize("left_out", [SUPER.key, NANO.key])
@pytest.mark.parametrize("method", METHODS)
def test_a_model_left_out_is_inside_the_interval(
    seen: dict[str, list[Observation]], method: str, left_out: str
) -> None:
    found = fit("mamba2", method, "decode", "h200-sxm", [one for one in seen[method] if one.model != left_out])
    rest = [one for one in seen[method] if one.model == left_out]
    error = errors(found, rest)
    assert covered(found, rest) >= 0.9
    assert float(np.sqrt(np.mean(error**2))) < (0.03 if method == "conventional" else 0.08)
    assert float(np.max(np.abs(error))) < (0.06 if method == "conventional" else 0.17)
    assert found.width < 0.17  # not bought with a wide interval
    (said,) = (one for entry in load_efficiency() if entry["method"] == method
               for one in entry["left_out"] if one["model"] == left_out)  # fmt: skip
    assert said["worst"] == pytest.approx(float(error[np.argmax(np.abs(error))]), abs=1e-3)


def test_shipped_rows_hold_these_predictions(seen: dict[str, list[Observation]]) -> None:
    for row in load_measured(gpu_key="h200-sxm"):
        if row["method"] in METHODS and row["phase"] == "decode":
            assert row["predicted_us"] / row["time_us"] - 1 == pytest.approx(row["prediction_error"], abs=1e-9)
            case = Case(load_model(row["model"]).shape, row["method"], row["batch"], window=row["window"])
            model = derive.model_case(case, H200, ROOFS)
            assert model.time is not None
            assert row["predicted_us"] == pytest.approx(model.time.us, rel=1e-9)
            assert row["roof_fraction"] == pytest.approx(model.roof_us / row["time_us"], rel=1e-9)


@pytest.mark.parametrize("model", [SUPER, NANO])
def test_predicted_break_even_is_where_it_was_measured(model: Any) -> None:
    def speedup(batch: int) -> float:
        times = [derive.model_case(Case(model.shape, method, batch, window=window), H200, ROOFS).time
                 for method, window in (("conventional", None), ("replay", 16))]  # fmt: skip
        assert times[0] is not None and times[1] is not None
        return float(times[0].us / times[1].us)

    assert speedup(1) < 0.8
    assert speedup(2) < 1 < speedup(5)
    assert 1.7 < speedup(256) < 1.9


def test_roofs_know_nothing_of_efficiency(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(SUPER.shape, "replay", 16, window=16)
    with_fit = derive.model_case(case, H200, ROOFS)
    monkeypatch.setattr(derive, "efficiency_for", lambda *args: None)
    bare = derive.model_case(case, H200, ROOFS)
    assert bare.roof_us == with_fit.roof_us
    assert bare.time is not None and with_fit.time is not None
    assert bare.time.us < with_fit.time.us
    assert bare.time.lo == pytest.approx(bare.time.us)


def test_without_a_fit_the_interval_starts_at_the_bound_and_holds_every_shipped_row(
    seen: dict[str, list[Observation]],
) -> None:
    step = Step(64 * 2**20, 64 * 2**20, 1e6)
    bare = predict(H200, ROOFS, step)
    assert bare.lo == bare.us == pytest.approx(ROOFS.graph_node_us + ROOFS.time_us(64 * 2**20, 64 * 2**20))
    from perfkit.roofline.latency import UNFITTED_FACTOR, UNFITTED_US

    for one in (one for method in METHODS for one in seen[method]):
        bound = one.launch_us + one.body_us
        assert bound < one.time_us < bound * UNFITTED_FACTOR + UNFITTED_US
    uncalibrated = predict(H200, datasheet_roofs("x", 4800.0), step)
    assert uncalibrated.lo < uncalibrated.us < uncalibrated.hi


def test_the_form() -> None:
    found = Efficiency("mamba2", "replay", "decode", "g", overhead_us=1.0, walk_us=0.5, record_share=0.01,
                       efficiency=0.8, width=0.1)  # fmt: skip
    assert found.time_us(2.0, 8.0) == pytest.approx(2 + 1 + 10)
    assert found.time_us(2.0, 8.0, d_v=80) == pytest.approx(2 + 1 + 2.5 + 10)  # five tiles of 16 rows
    assert found.time_us(2.0, 8.0, d_v=81, window=16) == pytest.approx(2 + 1.16 * (1 + 3 + 10))
    assert list(tile_of(np.array([1, 2, 3, 16, 17]))) == [1, 2, 4, 16, 32]
    step = Step(256e6, 0, 1e6)
    known_, bare = predict(H200, ROOFS, step, efficiency=found), predict(H200, ROOFS, step)
    body = bare.us - ROOFS.graph_node_us
    assert known_.us == pytest.approx(ROOFS.graph_node_us + 1 + body / 0.8)
    assert (known_.hi, known_.lo) == pytest.approx((known_.us * 1.1, known_.us / 1.1))
    rough = predict(H200, datasheet_roofs("x", 4800.0), step, efficiency=found)
    assert rough.hi / rough.us == pytest.approx(math.exp(math.hypot(math.log(1.1), math.log(1.35))))
    assert predict(H200, ROOFS, Step(1e6, 0, 1e3), efficiency=found, d_v=128).limit == "chain"


def test_a_fit_finds_what_made_the_times() -> None:
    truth = Efficiency("mamba2", "replay", "decode", "g", walk_us=0.7, record_share=0.004, efficiency=0.85)
    rng = np.random.default_rng(0)
    made = [
        Observation(float(truth.time_us(0.5, 2.0 * batch, d_v, window) * np.exp(rng.normal(0, 0.03))), 0.5,
                    2.0 * batch, d_v, window, f"m{d_v}", batch)
        for d_v in (64, 80) for batch in (1, 2, 4, 8, 16, 32, 64, 128) for window in (4, 16, 32)
    ]  # fmt: skip
    found = fit("mamba2", "replay", "decode", "g", made)
    for name in ("walk_us", "record_share", "efficiency"):
        low, high = found.intervals[name]
        assert low <= getattr(truth, name) <= high
    assert found.walk_us == pytest.approx(0.7, rel=0.1)
    assert found.spread == pytest.approx(0.03, rel=0.3)
    with pytest.raises(InputError, match="at 5 batches or more"):
        fit("mamba2", "replay", "decode", "g", [one for one in made if one.batch <= 2])


def test_an_unknown_method_has_no_fit_and_another_gpu_borrows() -> None:
    assert efficiency_for("mamba2", "mine.py:METHOD", "decode") is None
    assert efficiency_for("gdn", "replay", "decode") is None
    assert efficiency_for("mamba2", "replay", "decode", "h100-sxm") == known("replay")


GOOD = (MEASURED / EFFICIENCY).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("family: kda", "famly: kda", "fits[0].famly: unknown field"),
        ("method: replay", "method: conventional", "fits[1]: 'kda conventional decode h200-sxm': is there twice"),
        ("    n: 7\n", "", "fits[0].n: missing"),
        ("efficiency: {value: 0.9", "efficency: {value: 0.9", "parameters.efficency: unknown field"),
        ("efficiency: {value: 0.9", "efficiency: {value: 1.9", "fits[0].parameters.efficiency: 1.9"),
        ("walk_us: {value: 0.8", "walk_us: {value: -0.8", "walk_us.value: -0.8"),
        ("spread: 0.0250", "spread: 0", "fits[0].spread: 0: must be above 0"),
        ("fits:\n", "fits: []\nrest:\n", "rest: unknown field"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in GOOD
    (tmp_path / EFFICIENCY).write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_efficiency(tmp_path)
    assert says in str(caught.value) and EFFICIENCY in str(caught.value)


def test_no_file_is_no_fit(tmp_path: Path) -> None:
    assert load_efficiency(tmp_path) == []


def test_other_values_in_the_file_fail_the_check(script: ModuleType, tmp_path: Path) -> None:
    for file in MEASURED.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert script.main(["--directory", str(tmp_path), "--check"]) == 0
    (tmp_path / EFFICIENCY).write_text(GOOD.replace("walk_us: {value: 0.8", "walk_us: {value: 0.9"), encoding="utf-8")
    assert script.main(["--directory", str(tmp_path), "--check"]) == 1


def test_times_at_one_batch_are_not_enough() -> None:
    from perfkit.roofline.efficiency import enough

    seen = [Observation(500.0, 1.0, 480.0, 64, None, model, batch) for model in "ab" for batch in (64, 256)]
    assert enough("snapshot", seen) and not enough("replay", seen)
    assert not enough("snapshot", seen[1::2])
