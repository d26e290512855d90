"""Launch-configuration search: every candidate checked, timed in interleaved rounds, the best kept and saved."""

from __future__ import annotations

import contextlib
import hashlib
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from perfkit.cache import cache_root, load, save
from perfkit.errors import poisoned
from perfkit.measure import Clock, Subject
from perfkit.method import Case, Config

#: Rounds in which every candidate is timed, and then the best ones again.
ROUNDS = 3
FINAL_ROUNDS = 9
FINALISTS = 3


class NoneWorks(RuntimeError):
    """A search found no launch configuration that compiles, runs and agrees with the others."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome of a search.

    Attributes:
        config: the fastest correct configuration.
        time_us: its median, microseconds per unit; NaN where nothing was timed.
        default_us: the median of the default configuration, None if it was not timed or is not correct.
        tried: configurations timed.
        rejected: configuration -> why it was not timed.
    """

    config: Config
    time_us: float
    default_us: float | None
    tried: int
    rejected: Mapping[str, str]


@contextlib.contextmanager
def naming(config: Config) -> Iterator[None]:
    """Note on what is raised inside which launch configuration was being tried; a reason says it in brackets."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in {config}")
        raise


def ends_search(error: Exception) -> bool:
    """Say whether no other configuration is to be tried after an error: memory is out, or the CUDA context is lost."""
    return "out of memory" in str(error).lower() or poisoned(str(error))


def search(
    candidates: Sequence[Config],
    make: Callable[[Config], Subject],
    clock: Clock,
    progress: Callable[[int, int], None] | None = None,
) -> Tuned:
    """Return the fastest of the candidates; the first one is the default.

    Args:
        candidates: what to try.
        make: builds the subject of a configuration; raises if it does not compile, launch or agree.
        clock: times it.
        progress: told (candidates built, candidates in all).

    Raises:
        NoneWorks: no candidate does; the message has the first reason.
        Exception: out of memory, or a context that a candidate has lost, with a note that names the candidate.
    """
    subjects: dict[Config, Subject] = {}
    rejected: dict[str, str] = {}
    for index, config in enumerate(candidates):
        if progress is not None:
            progress(index, len(candidates))
        try:
            with naming(config):
                subjects[config] = make(config)
        except Exception as error:
            if ends_search(error):
                raise
            rejected[str(config)] = f"{type(error).__name__}: {error}".splitlines()[0]
    if not subjects:
        raise NoneWorks(f"no launch configuration works: {next(iter(rejected.values()), 'none declared')}")
    times = _medians(subjects, list(subjects), clock, ROUNDS)
    best = sorted(times, key=lambda config: times[config])[:FINALISTS]
    final = list(dict.fromkeys([*best, *([candidates[0]] if candidates[0] in subjects else [])]))
    times |= _medians(subjects, final, clock, FINAL_ROUNDS)
    winner = min(final, key=lambda config: times[config])
    return Tuned(winner, times[winner], times.get(candidates[0]), len(subjects), rejected)


def _medians(
    subjects: Mapping[Config, Subject], configs: Sequence[Config], clock: Clock, rounds: int
) -> dict[Config, float]:
    samples: dict[Config, list[float]] = {config: [] for config in configs}
    for index in range(rounds + 1):
        for config in configs if index % 2 == 0 else list(reversed(configs)):
            subject = subjects[config]
            with naming(config):
                subject.prepare()
                value = clock.time_us(subject.run) / subject.units
            if index:  # the first round warms up
                samples[config].append(value)
    return {config: statistics.median(values) for config, values in samples.items()}


class Store:
    """Saved searches, one JSON file; a search is known by everything that could change its outcome."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_root() / "tuned.json"

    @staticmethod
    def key(case: Case, gpu: str, versions: Mapping[str, Any], candidates: Sequence[Config], kernels: str) -> str:
        """Return the key of a search: case, GPU, torch and triton versions, candidates and kernel sources."""
        data = [case.to_dict(), gpu, dict(versions), [str(config) for config in candidates], kernels]
        return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:24]

    def get(self, key: str) -> Tuned | None:
        """Return a saved search, None if there is none or the file cannot be read."""
        entry = self._read().get(key)
        if not isinstance(entry, dict):
            return None
        try:
            return Tuned(
                Config.parse(entry["config"]), float(entry["time_us"]), entry["default_us"], entry["tried"], {}
            )
        except (KeyError, TypeError, ValueError):
            return None

    def put(self, key: str, tuned: Tuned, label: str) -> None:
        """Save a search; an unwritable cache only means that the next run searches again."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.path}.lock", timeout=10):
                data = self._read()
                data[key] = {
                    "label": label, "config": str(tuned.config), "tried": tuned.tried,
                    "time_us": tuned.time_us, "default_us": tuned.default_us,
                }  # fmt: skip
                save(self.path, data)

    def _read(self) -> dict[str, Any]:
        return load(self.path) or {}
