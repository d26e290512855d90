"""Launch configurations that shipped rows were timed with: still offered, and without spills where they were timed.

The tuner takes what a method offers and drops what spills. If a change to a kernel takes the chosen configuration away,
in either way, what runs is another one, and the time that ships does not hold any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from compilehelp import answer, check_limits
from compileparts import OLD, SHIPPED_ROWS, Asked, Timed, as_tuned, offered, timed, tuned

from perfkit.compile import Compiled
from perfkit.profiles.measured import COUNTERS_SUFFIX, read_manifest

ROWS = timed()
FILES = tuple(dict.fromkeys(row.file for row in ROWS))
TUNED = tuned(ROWS)
NONE_OFFERED = "not offered any more; measure anew, or leave the rows out"
SPILLS = "spills where it was timed, so the tuner takes another"


def not_offered(rows: Iterable[Timed]) -> list[str]:
    """Name the rows whose configuration their method does not offer."""
    return [f"{row}: {NONE_OFFERED}" for row in rows if row.config not in offered(row.case)]


def spilled(rows: Iterable[Timed], found: dict[str, list[tuple[Compiled, str]]]) -> list[str]:
    """Name the rows with a kernel that spills, of kernels with their configurations by the id of the case as tuned."""
    return [f"{row}: {item.kernel} {SPILLS}: {item.spill_stores} + {item.spill_loads} bytes a thread"
            for row in rows for item, config in found.get(as_tuned(row.case).id, ())
            if config == row.config and item.spills]  # fmt: skip


@pytest.mark.parametrize("file", FILES)
def test_configurations_of_shipped_rows_are_offered(file: str) -> None:
    wrong = not_offered(row for row in ROWS if row.file == file)
    assert not wrong, "\n".join(wrong)


def test_all_files_have_such_rows_and_were_timed_where_these_are_compiled_for() -> None:
    manifests = [path for directory in SHIPPED_ROWS for path in directory.glob("*.manifest.json")]
    runs = {f"{path.parent.name}/{path.name.removesuffix('.manifest.json')}.csv": read_manifest(path)
            for path in manifests}  # fmt: skip
    assert set(FILES) == {name for name in runs if not name.endswith(f"{COUNTERS_SUFFIX}.csv")}
    for name in FILES:
        where = runs[name]["packages"]["triton"], runs[name]["gpu"]["compute_capability"]
        assert where == (OLD, "9.0"), name


@pytest.mark.parametrize("name", TUNED)
def test_configurations_of_shipped_rows_do_not_spill(name: str) -> None:
    found, rows = answer(TUNED[name]), [row for row in ROWS if row.name == name]
    for case, configs in zip(TUNED[name].cases, TUNED[name].configs, strict=True):
        assert {config for _, config in found[case.id]} == set(configs)
    for items in found.values():
        for item, _ in items:
            check_limits(item)
            assert (item.cc, item.triton) == (90, OLD)
    wrong = spilled(rows, found)
    assert not wrong, "\n".join(wrong)


def some_row() -> Timed:
    return next(row for row in ROWS if len(offered(row.case)) > 1)


def test_what_is_not_offered_is_named() -> None:
    row = some_row()
    for other in (replace(row, config="rows=3 warps=5"), replace(row, case=replace(row.case, method="no_such"))):
        (message,) = not_offered([row, other])
        assert message == f"{other}: {NONE_OFFERED}"
        assert message.startswith(f"{row.file}: {other.case.id} (") and f": {other.config}: " in message
        assert not tuned([other])


def test_what_spills_is_named() -> None:
    row = some_row()
    other = replace(row, config="-")
    clean = Compiled("_one_kernel", 90, "TILE=64", 4, 168, 0, 0, 0, 8, 9000, OLD, "0" * 32)
    dirty = replace(clean, spill_stores=8, spill_loads=12)
    case_id = as_tuned(row.case).id
    elsewhere = {case_id: [(clean, row.config), (dirty, other.config)], "another": [(dirty, row.config)]}
    assert not spilled([row], elsewhere)
    (message,) = spilled([row, other], {case_id: [(dirty, row.config)]})
    assert message == f"{row}: _one_kernel {SPILLS}: 8 + 12 bytes a thread"


def test_a_row_is_compiled_with_its_own_configuration() -> None:
    """The last that its method offers, where the default is another one."""
    row = some_row()
    *_, last = offered(row.case)
    assert last != offered(row.case)[0]
    (asked,) = tuned([replace(row, config=last)]).values()
    assert asked == Asked(OLD, f"tuned: {row.name}", (as_tuned(row.case),), (90,), ((last,),))
