"""What others' kernels take, as data: one YAML file an implementation in ``implementations/``.

A file has a title, groups of cells, and ``all``: fields of every cell. A group's fields hold for its cells, a cell's go
before them. A cell is one time, in one of three forms: ``time_us``; ``peak_share``, the share of the datasheet's
bandwidth at which it moves its bytes; or ``speedup`` ``over`` a baseline of which the share is known. Nothing derived
stands here: efficiencies are computed from these (:mod:`perfkit.roofline.implementations`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfkit.errors import InputError
from perfkit.profiles.fields import entry, items, mapping, plain_text, positive, refuse_unknown, whole
from perfkit.profiles.yamlfile import read_yaml

IMPLEMENTATIONS = Path(__file__).parent / "implementations"
#: Kernels of perfkit itself: what ships in ``measured/``.
OURS = "ours"

_FILE = ("title", "all", "groups")
_TEXTS = ("source", "where", "date", "gpu", "method", "model", "state_dtype")
_FORMS = ("time_us", "peak_share", "speedup")
_MAY = ("draft_len", "window", "acceptance", "over", "note")
_OVER = ("method", "peak_share")
#: Efficiencies are of one state format; what is known of another is a ratio, which is no efficiency.
STATE_DTYPE = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One time of somebody's kernel: published, or recorded on a GPU.

    Attributes:
        impl: whose.
        gpu: key of its profile.
        method: key.
        model: key of the model whose layer it is.
        batch: B.
        draft_len: T; 1 is decode.
        window: L; None for a method without one.
        acceptance: how many tokens each step commits, as text; None where it is not stated, or nothing depends on it.
        time_us: of a step of a layer, flushes included; None in the other two forms.
        peak_share: of the datasheet's bandwidth, of the method's bytes or, with ``over``, of the baseline's.
        speedup: over the method ``over``.
        over: key of the baseline.
        source: publication or machine.
        where: place in it.
        date: of the publication or the measurement.
        note: what else a reader should know.
    """

    impl: str
    gpu: str
    method: str
    model: str
    batch: int
    draft_len: int
    window: int | None
    acceptance: str | None
    time_us: float | None
    peak_share: float | None
    speedup: float | None
    over: str | None
    source: str
    where: str
    date: str
    note: str | None

    @property
    def phase(self) -> str:
        """Decode or verify."""
        return "decode" if self.draft_len == 1 else "verify"


def implementation_names(directory: Path | None = None) -> tuple[str, ...]:
    """Return the names that ``--impl`` takes: ours first."""
    return (OURS, *sorted(path.stem for path in (directory or IMPLEMENTATIONS).glob("*.yaml")))


def check_implementation(name: str, directory: Path | None = None) -> str:
    """Return a name that is one.

    Raises:
        InputError: it is none.
    """
    names = implementation_names(directory)
    if name not in names:
        raise InputError("nothing is known of such kernels", field="impl", value=name, allowed=names)
    return name


def read_implementations(directory: Path | None = None) -> tuple[Timed, ...]:
    """Return every time of others' kernels, file by file.

    Raises:
        InputError: an unknown or missing field, a value that is refused, or a time in none or several of the forms.
    """
    found = []
    for name in implementation_names(directory)[1:]:
        path = (directory or IMPLEMENTATIONS) / f"{name}.yaml"
        data = read_yaml(path)
        refuse_unknown(data, _FILE, path, "")
        plain_text(data.get("title"), path, "title")
        shared = mapping(data.get("all", {}), path, "all")
        for group, at in items(data.get("groups"), path, "groups", "group"):
            fields = dict(mapping(group, path, at))
            for item, where in items(fields.pop("cells", None), path, f"{at}.cells", "cell"):
                found.append(_timed(name, {**shared, **fields, **mapping(item, path, where)}, path, where))
    return tuple(found)


def _timed(impl: str, data: Mapping[str, Any], path: Path, where: str) -> Timed:
    entry(data, (*_TEXTS, "batch", *_FORMS, *_MAY), path, where, needed=(*_TEXTS, "batch"))
    texts = {name: plain_text(data[name], path, f"{where}.{name}") for name in _TEXTS}
    if texts.pop("state_dtype") != STATE_DTYPE:
        raise InputError("unknown value", file=path, field=f"{where}.state_dtype", value=data["state_dtype"],
                         allowed=STATE_DTYPE)  # fmt: skip
    forms = [name for name in _FORMS if data.get(name) is not None]
    if len(forms) != 1 or ("over" in data) != (forms == ["speedup"]):
        raise InputError("must be a time_us, a peak_share, or a speedup over a method with a peak_share", file=path,
                         field=where, value=", ".join(forms) or "none")  # fmt: skip
    number = {name: positive(data[name], path, f"{where}.{name}") for name in forms}
    over = entry(data["over"], _OVER, path, f"{where}.over") if "over" in data else None
    if over is not None:
        number["peak_share"] = positive(over["peak_share"], path, f"{where}.over.peak_share")
    if number.get("peak_share", 0) > 1:
        raise InputError("is a share", file=path, field=f"{where}.peak_share", value=number["peak_share"],
                         allowed="above 0, at most 1")  # fmt: skip
    return Timed(
        impl=impl, **texts, time_us=number.get("time_us"), peak_share=number.get("peak_share"),
        speedup=number.get("speedup"), over=None if over is None else plain_text(over["method"], path, f"{where}.over"),
        batch=whole(data["batch"], file=path, field=f"{where}.batch", minimum=1),
        draft_len=whole(data.get("draft_len", 1), file=path, field=f"{where}.draft_len", minimum=1),
        window=whole(data["window"], file=path, field=f"{where}.window", minimum=1) if "window" in data else None,
        acceptance=plain_text(data["acceptance"], path, f"{where}.acceptance") if "acceptance" in data else None,
        note=plain_text(data["note"], path, f"{where}.note") if "note" in data else None,
    )  # fmt: skip
