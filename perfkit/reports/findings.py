"""Sentences computed from the rows: the answer of the first screen, and the titles of the figures.

Every number in them is computed from the frame when a page is built. One kind of evidence answers: measured times if
there are any, else recorded, else predicted; the sentence says which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfkit.reports import select
from perfkit.reports.text import (
    count,
    integer,
    interval,
    is_missing,
    join,
    method_text,
    microseconds,
    number,
    percent,
    sentence,
    times,
    window_text,
)

if TYPE_CHECKING:
    import pandas as pd

    from perfkit.shape import Shape


_POINT = "[{0}, {0}]"


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The batch from which a method wins for good.

    ``estimate`` and its 95 % interval are :func:`perfkit.stats.break_even`'s; ``below`` is the largest batch run at
    which it does not win yet, None if it wins at all of them; ``above`` the first from which it does, None if none;
    ``smallest`` the smallest batch run.
    """

    below: float | None
    above: float | None
    estimate: float | None
    lo: float | None
    hi: float | None
    smallest: float

    @property
    def text(self) -> str:
        """A few words: ``B = 3 [2, 4]``."""
        if self.above is None:
            return f"none up to B = {integer(self.below)}"
        if self.below is None:
            unsure = "" if self.hi is None or self.hi <= self.smallest else f", at most {number(self.hi, 2)}"
            return (f"B ≤ {integer(self.above)}" if self.above > 1 else "B = 1") + unsure
        ends = interval(self.lo, self.hi, lambda value: number(value, 2))
        return (
            f"B ≈ {number(self.estimate, 2)} {'' if ends == _POINT.format(number(self.estimate, 2)) else ends}".strip()
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What one workload of a model on a GPU should run, and what that gains.

    ``verdict`` is ``faster``, ``same``, ``slower`` (the best other method against the baseline), ``alone`` (nothing to
    compare) or ``nothing`` (no time at all). Times are µs per step and layer.
    """

    verdict: str
    headline: str
    advice: str
    source: str | None = None
    baseline: str | None = None
    method: str | None = None
    window: float | None = None
    batch: float | None = None
    time_us: float | None = None
    gain: float | None = None
    gain_lo: float | None = None
    gain_hi: float | None = None
    break_even: BreakEven | None = None
    aa_floor: float | None = None

    @property
    def gain_text(self) -> str:
        """The gain with its interval: ``1.88× [1.86, 1.90]``."""
        return f"{times(self.gain)} {interval(self.gain_lo, self.gain_hi, lambda v: f'{v:.2f}')}".strip()


def verb(source: str | None) -> str:
    """The verb of a claim: measured *is*, recorded *was*, predicted *is predicted to be*."""
    return {"recorded": "was", "predicted": "is predicted to be"}.get(source or "", "is")


def answer(frame: pd.DataFrame, aa_floor: Any = None) -> Answer:
    """Answer for the rows of one workload; ``aa_floor`` is the run's relative difference of a method with itself."""
    data = select.prepare(frame)
    source = select.evidence(data)
    if source is None:
        return Answer("nothing", nothing(data), "Fix what made the cases fail, then run the sweep again.")
    rows = select.as_evidence(data, source)
    batch = select.reference_batch(rows)
    assert batch is not None
    here = rows[rows["batch"].eq(batch) & rows["us"].notna()]
    aa_floor = _noise(rows[rows["batch"].eq(batch)], source, aa_floor)
    base = here[select.is_baseline(here)]
    baseline = str(base["method"].iloc[0]) if len(base) else "the baseline"
    others = here[~select.is_baseline(here) & here["gain"].notna()]
    if not len(others):
        best = select.row_at(here, "us", largest=False)
        what = method_text(best["method"], best["window"])
        said = (
            f"{sentence(what)} takes {microseconds(best['us'])} per step and layer at {_place(here, batch)} ({source})"
        )
        return Answer("alone", f"{said}; there is nothing to compare it with.", "Sweep another method beside it.",
                      source, None, str(best["method"]), _none(best["window"]), batch, float(best["us"]),
                      aa_floor=aa_floor)  # fmt: skip
    best = select.row_at(others, "gain", largest=True)
    gain, low, high = (_none(best[name]) for name in ("gain", "gain_lo", "gain_hi"))
    assert gain is not None
    name = method_text(str(best["method"]), best["window"])
    verdict = _verdict(gain, low, high, aa_floor)
    even = break_even(rows, str(best["method"]), _none(best["window"]))
    place = _place(here, batch)
    return Answer(
        verdict, _headline(verdict, name, gain, baseline, place, source, aa_floor),
        _advice(verdict, name, baseline, even, place), source, baseline, str(best["method"]), _none(best["window"]),
        batch, float(best["us"]), gain, low, high, even, aa_floor,
    )  # fmt: skip


def _place(rows: pd.DataFrame, batch: float | None) -> str:
    """Say where a sentence holds: the batch, and of verify steps T and the acceptance, of a tree its nodes."""
    first = rows.iloc[0]
    where = f"B = {integer(batch)}"
    if first["phase"] != "verify":
        return where
    kind = f"a tree of {integer(first['draft_len'])} nodes" if first["tree"] else f"T = {integer(first['draft_len'])}"
    return f"{where}, {kind}" + ("" if is_missing(first["accepted"]) else f", a = {first['accepted']:.3g}")


def _verdict(gain: float, low: float | None, high: float | None, floor: float | None) -> str:
    noise = floor or 0.0
    known = low is not None or high is not None
    inside = known and (low is None or low <= 1) and (high is None or high >= 1)  # the end that is missing is unbounded
    if inside or abs(gain - 1) <= noise or f"{gain:.2f}" == "1.00":
        return "same"
    return "faster" if gain > 1 else "slower"


def _headline(verdict: str, name: str, gain: float, baseline: str, place: str, source: str, floor: float | None) -> str:
    where = f"at {place}"
    if verdict == "faster":
        return f"{sentence(name)} {verb(source)} {times(gain)} faster than {baseline} {where}"
    if verdict == "slower":
        return (
            f"Nothing beats {baseline} {where}: {name}, the best other method, {verb(source)} {times(gain)} its speed"
        )
    noise = f"inside the noise of {percent(floor)}" if floor and abs(gain - 1) <= floor else "inside the interval"
    return f"No change: {name} {verb(source)} {times(gain)} {baseline}'s speed {where}, {noise}"


def _advice(verdict: str, name: str, baseline: str, even: BreakEven | None, place: str) -> str:
    if verdict != "faster":
        return f"Keep {baseline} at {place}; the other methods here gain nothing there."
    if even is None or even.above is None:
        return f"Run {name} at {place}."
    if even.below is None:
        return f"Run {name} at every batch from B = {integer(even.above)} up."
    below = f"B = {integer(even.below)}" + ("" if even.below == even.smallest else " and below")
    return f"Run {name} from B = {integer(even.above)} up; keep {baseline} at {below}."


def nothing(data: pd.DataFrame) -> str:
    """Say that there is no time, and why."""
    if not len(data):
        return "The run holds no case"
    words = [f"{n} {status}" for status, n in data["status"].value_counts().items()]
    return f"No case has a time: {join(words)}"


def break_even(rows: pd.DataFrame, method: str, window: float | None) -> BreakEven | None:
    """Find the batch from which a method's gain stays at or above 1; None for fewer than two batches."""
    from perfkit import stats

    mine = rows[rows["method"].eq(method) & rows["gain"].gt(0)]
    mine = mine[mine["window"].isna() if window is None else mine["window"].eq(window)]
    mine = mine.drop_duplicates("batch").sort_values("batch")
    if len(mine) < 2:
        return None
    batches, gains = mine["batch"].tolist(), mine["gain"].tolist()
    low, high = (mine[name].fillna(mine["gain"]).tolist() for name in ("gain_lo", "gain_hi"))
    found = stats.break_even(batches, gains, low, high)
    losing = [batch for batch, gain in zip(batches, gains, strict=True) if gain < 1]
    below = losing[-1] if losing else None
    above = next((batch for batch in batches if below is None or batch > below), None)
    return BreakEven(below, above, found.batch, found.lo, found.hi, batches[0])


def _noise(rows: pd.DataFrame, source: str, stated: Any) -> float | None:
    """Return the noise floor of rows of one source: none of a prediction, of recorded rows that of their run."""
    if source == "predicted":
        return None
    found = noise_floor(rows, stated if source == "measured" else None)
    return _recorded_floor(rows) if found is None and source == "recorded" else found


def _recorded_floor(rows: pd.DataFrame) -> float | None:
    """Return the largest A/A floor in the manifests of the shipped runs that hold these rows."""
    from perfkit import profiles

    floors = [
        row["manifest"].get("aa_floor")
        for model, gpu in rows[["model", "gpu"]].drop_duplicates().itertuples(index=False)
        for row in profiles.load_measured(model, gpu)
        if row["case_id"] in set(rows["case_id"])
    ]
    return max((float(floor) for floor in floors if not is_missing(floor)), default=None)


def noise_floor(rows: pd.DataFrame, stated: Any = None) -> float | None:
    """Return how much a method differs from itself at these rows: their A/A difference, else the run's floor."""
    seen = rows["aa_difference"].abs().dropna()
    if len(seen):
        return float(seen.max())
    return None if isinstance(stated, (bool, dict, list, str)) or is_missing(stated) else abs(float(stated))


@dataclass(frozen=True, slots=True)
class Windows:
    """The best windows of one method at one batch, three ways; None where the rows do not say.

    ``source`` is the evidence of ``timed`` and ``cost``. ``cost`` is what ``nearest``, the window nearest to Eq. 16's,
    would cost over the best one, as a fraction.
    """

    method: str
    batch: float
    source: str
    timed: float | None
    exact: float | None
    eq16: float | None
    nearest: float | None
    cost: float | None


def windows(frame: pd.DataFrame, shape: Shape | None = None, batch: float | None = None) -> Windows | None:
    """Find the best windows at ``batch``; None when no method was run at two windows.

    Eq. 16 needs the layer's shape; without it ``eq16`` is None.
    """
    data = select.prepare(frame)
    batch = batch or next(
        (b for source in select.SOURCES if (b := select.reference_batch(select.as_evidence(data, source))) is not None),
        None,
    )
    if batch is None:
        return None
    here = data[data["window"].notna() & data["batch"].eq(batch) & (data["us"].notna() | data["model_us"].notna())]
    spread = here.groupby("method")["window"].nunique()
    spread = spread[spread.ge(2)]
    if not len(spread):
        return None
    method = str(spread.idxmax())
    here = here[here["method"].eq(method)]
    model = _by_window(here, "model_us")
    # The best evidence that has two windows or more to compare.
    times_us, source = model, "predicted"
    for kind in reversed(select.TIMED):
        timed = _by_window(here[here["source"].eq(kind)], "us")
        if len(timed) > 1:
            times_us, source = timed, kind
    if len(times_us) < 2:
        return None
    star = eq16(here, shape)
    nearest = min(times_us, key=lambda w: abs(math.log(w / star))) if star and times_us else None
    cost = times_us[nearest] / min(times_us.values()) - 1 if nearest is not None else None
    return Windows(
        method,
        float(batch),
        source,
        min(times_us, key=times_us.__getitem__) if source != "predicted" else None,
        min(model, key=model.__getitem__) if len(model) > 1 else None,
        star,
        nearest,
        cost,
    )


def _by_window(rows: pd.DataFrame, value: str) -> dict[float, float]:
    rows = rows[rows[value].notna()].sort_values("window").drop_duplicates("window")
    return dict(zip(rows["window"].astype(float), rows[value].astype(float), strict=True))


def eq16(rows: pd.DataFrame, shape: Shape | None = None) -> float | None:
    """Return L* for the rows' draft length and acceptance; None if the layer's shape is unknown."""
    from perfkit.roofline import l_star

    if not len(rows):
        return None
    shape = shape or _shape(rows)
    if shape is None:
        return None
    draft, accepted = rows["draft_len"].iloc[0], rows["accepted"].iloc[0]
    draft = 1 if is_missing(draft) else round(float(draft))
    value = float(l_star(shape, draft, 1.0 if is_missing(accepted) else float(accepted)))
    return value if math.isfinite(value) and value > 0 else None


def _shape(rows: pd.DataFrame) -> Shape | None:
    """Return the layer's shape from the rows, else from the profile of their model."""
    from perfkit.errors import InputError
    from perfkit.shape import Shape

    first = rows.iloc[0]
    sizes = [first[name] for name in ("n_v_heads", "n_k_heads", "d_v", "d_k")]
    try:
        if not any(is_missing(size) for size in sizes):
            return Shape(str(first["family"]), *(round(float(size)) for size in sizes))
        from perfkit.profiles import load_model

        return load_model(first["model"]).shape if first["model"] is not None else None
    except InputError:  # a shape or a model that this version does not know
        return None


def batch_time_title(frame: pd.DataFrame) -> str:
    """The finding of the batch sweep's times."""
    said = answer(frame)
    if said.verdict in ("nothing", "alone"):
        return said.headline
    base = None if said.gain is None or said.time_us is None else said.gain * said.time_us
    name = method_text(said.method or "", said.window)
    place = _place(select.prepare(frame), said.batch)
    return (
        f"{sentence(name)} takes {microseconds(said.time_us)} per step and layer at {place}, "
        f"{said.baseline} {microseconds(base)} ({said.source})"
    )


def speedup_title(frame: pd.DataFrame) -> str:
    """The finding of the batch sweep's speedups."""
    said = answer(frame)
    if said.verdict in ("nothing", "alone") or said.break_even is None:
        return said.headline
    even = said.break_even
    if even.above is None:
        return f"{said.headline}, and it wins at no larger batch" if said.verdict != "faster" else said.headline
    since = f"at every batch from {integer(even.above)}" if even.below is None else f"from B = {integer(even.above)} up"
    return f"{said.headline}, and ahead {since}" if said.verdict == "faster" else said.headline


def roof_title(frame: pd.DataFrame) -> str:
    """The finding of the batch sweep's roof fractions."""
    data = select.prepare(frame)
    rows = data[data["roof_fraction"].notna() & data["status"].eq("ok")]
    source = next((s for s in select.SOURCES if rows["source"].eq(s).any()), None)
    if source is None:
        return "No case has a fraction of its roof"
    rows = rows[rows["source"].eq(source)]
    batches = sorted(set(rows["batch"].dropna()))
    batch = select.REFERENCE_BATCH if select.REFERENCE_BATCH in batches else batches[-1]
    parts = []
    for method, group in rows[rows["batch"].eq(batch)].groupby("method", sort=False):
        best = select.row_at(group, "roof_fraction", largest=True)
        parts.append(f"{method_text(str(method), best['window'])} {percent(best['roof_fraction'], 0)}")
    return f"At B = {integer(batch)} the useful bytes reach this much of the roof: {join(parts)} ({source})"


def window_title(found: Windows | None) -> str:
    """The finding of the window sweep."""
    if found is None:
        return "No method was run at two windows"
    parts = []
    if found.timed is not None:
        parts.append(f"{window_text(found.timed)} is the fastest {found.source} window")
    if found.exact is not None:
        lead = "the byte model says" if parts else "The byte model's best window is"
        parts.append(f"{lead} {integer(found.exact)}")
    if found.eq16 is not None:
        parts.append(f"Eq. 16 {'says ' if parts else 'puts the best window at '}{number(found.eq16)}")
    text = join(parts) if parts else "No window has a time"
    if found.cost is not None and found.nearest is not None and found.eq16 is not None:
        price = "would cost nothing" if found.cost < 0.0005 else f"would cost {percent(found.cost)}"
        text += f"; {window_text(found.nearest)}, the nearest one run, {price} ({found.source})"
    return sentence(text)


def roofline_title(frame: pd.DataFrame, ridge: float | None = None) -> str:
    """The finding of the roofline; ``ridge`` is the intensity in FLOP per byte where memory and compute roofs meet."""
    data = select.prepare(frame)
    source = select.evidence(data)
    if source is None:
        return nothing(data)
    rows = select.as_evidence(data, source)
    rows = rows[rows["us"].notna() & rows["intensity"].gt(0)]
    if not len(rows):
        return "No case has both a time and an intensity"
    low, high = float(rows["intensity"].min()), float(rows["intensity"].max())
    same = number(low, 2) == number(high, 2)
    text = f"Cases do {number(low, 2) if same else f'{number(low, 2)} to {number(high, 2)}'} FLOP per byte"
    if ridge is None:
        return text
    if high < ridge:
        return (
            f"{text}, at least {number(ridge / high, 2)} times below the ridge of {number(ridge, 2)}: bytes bound them"
        )
    return f"{text}; {count(int(rows['intensity'].ge(ridge).sum()), 'case')} right of the ridge of {number(ridge, 2)}"


def _none(value: Any) -> float | None:
    return None if is_missing(value) else float(value)
