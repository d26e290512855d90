"""The example of a plug-in: it meets the oracle, its bytes are not claimed, and a wrong one is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfkit.check import check_case
from perfkit.method import Case
from perfkit.registry import load_method
from perfkit.shape import Shape

SPEC = f"{Path(__file__).resolve().parents[1] / 'examples' / 'torch_decode.py'}:METHOD"


def case(**changes: Any) -> Case:
    values = {"input_dtype": "float32"} | changes
    return Case(Shape("mamba2", 4, 2, 16, 16), SPEC, 3, **values)


@pytest.mark.parametrize("dtypes", [{}, {"state_dtype": "float16"}, {"input_dtype": "float16"}])
def test_it_meets_the_oracle_and_claims_no_bytes(dtypes: dict[str, str]) -> None:
    outcome = check_case(case(**dtypes), "cpu")
    assert outcome.reason is None
    assert "bytes" not in outcome.covered and {"outputs", "states", "padding"} <= set(outcome.covered)


def test_a_wrong_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    method = load_method(SPEC)
    launches = type(method).launches

    def scaled(self: Any, case: Case, config: Any, tensors: Any, step: int = 0) -> Any:
        yield from launches(self, case, config, tensors, step)
        from perfkit.method import Launch

        yield Launch(lambda t: t["out"].mul_(1.0001), (), (tensors,))

    monkeypatch.setattr(type(method), "launches", scaled)
    outcome = check_case(case(), "cpu")
    assert outcome.reason is not None and "output error" in outcome.reason
