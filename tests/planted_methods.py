"""Methods that are wrong, each in one way; ``FILE.py:NAME`` loads them, and checks must catch every one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfkit.kernels.mamba2.conventional_decode import ConventionalDecode
from perfkit.kernels.mamba2.replay_decode import ReplayDecode
from perfkit.method import Buffer, Case, Config, Launch, Number, Point, Step
from perfkit.shape import Shape


def call(function: Any, *args: Any) -> Launch:
    return Launch(function, (1,), args)


class Right(ReplayDecode):
    """Nothing wrong: what is caught below is not caught because it is a plug-in."""


class ForgetsCursorBytes(ReplayDecode):
    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        step = super().step(shape, point, h, flush)
        return replace(step, bytes_read=step.bytes_read - 4 * shape.n_v_heads * point.batch)


class KeysPerValueHead(ReplayDecode):
    """Declares k once per value head, as the paper's count does; a group's heads share it."""

    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        step = super().step(shape, point, h, flush)
        extra = h * (shape.n_v_heads - shape.n_k_heads) * shape.d_k * point.input_bytes
        return replace(step, bytes_read=step.bytes_read + extra * point.batch)


class SkipsALaunch(ConventionalDecode):
    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        if step == 1:  # launched step by step on a GPU too, where later steps are replays of a graph
            return [call(lambda: None)]
        return super().launches(case, config, tensors, step)


class NoLaunch(ConventionalDecode):
    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        return []


class OtherWindow(ReplayDecode):
    """Works at a window of its own; every number that it returns is right."""

    by = 0

    def _other(self, case: Case) -> Case:
        return replace(case, window=case.window + self.by)

    def buffers(self, case: Case) -> dict[str, Buffer]:
        return super().buffers(self._other(case))

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        return super().launches(self._other(case), config, tensors, step)

    def committed(self, case: Case, tensors: Mapping[str, Any], step: int = 0) -> Any:
        return super().committed(self._other(case), tensors, step)


class FlushesLate(OtherWindow):
    by = 1


class FlushesEarly(OtherWindow):
    by = -1


class KeepsOldRecords(ReplayDecode):
    """A row that is handed over keeps the cursor of the request before it."""

    def start(self, case: Case, tensors: Mapping[str, Any], state: Any, origin: Any = 0) -> None:
        cursor = tensors["cursor"].clone()
        super().start(case, tensors, state, origin)
        tensors["cursor"].copy_(cursor)


class ClobbersSpareSlot(ConventionalDecode):
    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        yield from super().launches(case, config, tensors, step)

        def clobber() -> None:  # without asking the GPU for anything: a graph is captured of it
            state = tensors["state"]
            free = state.new_ones(len(state) + 1).index_fill_(0, tensors["slots"].long() + 1, 0.0)
            state[:, 0, 0, 0] += 1e-3 * free[1:]

        if step == 3:  # the first in which no row sits out, and the first that a GPU captures
            yield call(clobber)


class ServesPaddedRows(ConventionalDecode):
    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        return super().launches(case, config, {**tensors, "slots": tensors["slots"].clamp(min=0)}, step)


class RoundsDt(ReplayDecode):
    """Keeps dt as the serving dtype would: right to three digits."""

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        yield from super().launches(case, config, tensors, step)
        ring = tensors["dt_ring"]
        yield call(lambda: ring.copy_(ring.bfloat16()))


class ForgetsSkip(ConventionalDecode):
    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        return super().launches(case, config, {**tensors, "d_skip": tensors["d_skip"] * 0.999}, step)


class ReturnsNan(ConventionalDecode):
    """Computes everything and spoils one number of the output."""

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        yield from super().launches(case, config, tensors, step)
        yield call(lambda: tensors["out"][:, 0, 0].fill_(float("nan")))


class OneConfig(ConventionalDecode):
    """Nothing to search: what changes from call to call would be caught there."""

    def configs(self, case: Case) -> Sequence[Config]:
        return super().configs(case)[:1]


class Caches(OneConfig):
    """Hands out the output of an earlier call where it takes this one to be the same."""

    def __init__(self) -> None:
        self.calls = 0
        self.kept: dict[Any, Any] = {}

    def same(self, tensors: Mapping[str, Any]) -> Any:
        """Return what tells calls apart, None where this one has to be computed."""
        return tensors["x"].data_ptr()

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        self.calls += 1
        key, out = self.same(tensors), tensors["out"]
        kept = self.kept.get(key)
        if key is not None and kept is not None:
            live = (tensors["slots"] >= 0)[:, None, None]
            yield call(lambda: out.copy_(kept.where(live, out)))
            return
        yield from super().launches(case, config, tensors, step)

        def keep() -> None:
            self.kept[key] = out.clone()

        yield call(keep)


class CachesByVersion(Caches):
    """The same inputs and the same state, as far as torch knows: what a kernel writes it does not see."""

    def same(self, tensors: Mapping[str, Any]) -> Any:
        return tuple((tensors[name].data_ptr(), tensors[name]._version) for name in ("packed", "dt", "state"))


class CachesLate(Caches):
    """Right for as long as a check takes; then what it computed next is good enough for all that comes."""

    after = 12

    def same(self, tensors: Mapping[str, Any]) -> Any:
        return (self.calls > self.after) or None


class StopsLate(OneConfig):
    """Right for as long as a check takes, and then nothing at all."""

    after = 12

    def __init__(self) -> None:
        self.calls = 0

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        self.calls += 1
        return super().launches(case, config, tensors, step) if self.calls <= self.after else [call(lambda: None)]


class Deaf(ReplayDecode):
    """Keeps a copy of one buffer and works from that: right as long as nobody looks at what it depends on."""

    name = ""

    def buffers(self, case: Case) -> dict[str, Buffer]:
        found = super().buffers(case)
        return {**found, "copy": replace(found[self.name], role="scratch")}

    def start(self, case: Case, tensors: Mapping[str, Any], state: Any, origin: Any = 0) -> None:
        super().start(case, tensors, state, origin)
        tensors["copy"].copy_(tensors[self.name])

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        yield from super().launches(case, config, {**tensors, self.name: tensors["copy"]}, step)
        yield call(tensors[self.name].copy_, tensors["copy"])


class DeafTo(Deaf):
    def __init__(self, name: str) -> None:
        self.name = name


RIGHT = Right()
FORGETS_CURSOR_BYTES = ForgetsCursorBytes()
KEYS_PER_VALUE_HEAD = KeysPerValueHead()
SKIPS_A_LAUNCH = SkipsALaunch()
NO_LAUNCH = NoLaunch()
FLUSHES_LATE = FlushesLate()
FLUSHES_EARLY = FlushesEarly()
KEEPS_OLD_RECORDS = KeepsOldRecords()
CLOBBERS_SPARE_SLOT = ClobbersSpareSlot()
SERVES_PADDED_ROWS = ServesPaddedRows()
ROUNDS_DT = RoundsDt()
FORGETS_SKIP = ForgetsSkip()
RIGHT_CONVENTIONAL = ConventionalDecode()
RETURNS_NAN = ReturnsNan()
CACHES = Caches()
CACHES_BY_VERSION = CachesByVersion()
CACHES_LATE = CachesLate()
STOPS_LATE = StopsLate()
DEAF_X, DEAF_K, DEAF_DT, DEAF_STATE = (DeafTo(name) for name in ("x_ring", "k_ring", "dt_ring", "state"))
NOT_A_METHOD = "text"
