"""An engine's own times, and the intervals that they were fitted with."""

from __future__ import annotations

import pytest

from perfkit.errors import InputError
from perfkit.roofline import NO_OVERHEADS, OVERHEAD_ESTIMATES, Overheads


def test_each_time_has_its_interval_or_none() -> None:
    vllm = OVERHEAD_ESTIMATES["vllm"]
    assert vllm.interval("step_us") == (310.0, 1790.0) and vllm.interval("row_us") == (0.17, 15.2)
    assert vllm.interval("pass_us") == (0.0, 420.0)
    assert NO_OVERHEADS.interval("step_us") is None


def test_a_time_outside_its_interval_is_refused() -> None:
    with pytest.raises(InputError, match=r"step_us: 5: must lie in its interval \(allowed: 6\.\.7\)"):
        Overheads(step_us=5, intervals=(("step_us", 6, 7),))
    with pytest.raises(InputError, match="row_us: -1: must be at least 0"):
        Overheads(row_us=-1)
