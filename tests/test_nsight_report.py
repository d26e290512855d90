"""Reports to launches: units, gaps, ranges, both ways of reading; launches of a step to one number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nsighthelp import install

from perfkit.errors import DeviceError, InputError
from perfkit.nsight import metrics, report
from perfkit.nsight.counted import Ran, by_range
from perfkit.nsight.tool import Tool, open_tool

NVTX = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
#: As ncu 2025.3 prints: messages, a header, units, thousands grouped, a launch without a value.
TABLE = f'''==PROF== Connected to process 41
"ID","Process ID","Process Name","{NVTX}","Kernel Name","Context","dram__bytes_read.sum","gpu__time_duration.sum","x__y.avg"
"","","","","","","Mbyte","us","cycle"
"0","41","python3.11","41  ""perfkit:perfkit-counters:none:none:none:none:none:none""  ""perfkit:perfkit/replay/decode/flush/B256-L16-T1:none:none:none:none:none:none"" ","_replay_decode_kernel","1","1,079.05","666.20","3"
"1","41","python3.11","","copy","1","n/a","nan","4"
'''  # noqa: E501


def test_csv_becomes_launches_in_base_units() -> None:
    first, second = report.parse_csv(TABLE)
    assert first.kernel == "_replay_decode_kernel"
    assert first.ranges == ("perfkit-counters", "perfkit/replay/decode/flush/B256-L16-T1")
    assert first.values == pytest.approx(
        {"dram__bytes_read.sum": 1079.05e6, "gpu__time_duration.sum": 666.2, "x__y.avg": 3}
    )
    assert first.units == {"x__y.avg": "cycle"}
    assert second.ranges == () and second.values["dram__bytes_read.sum"] is None
    assert second.values["gpu__time_duration.sum"] is None


@pytest.mark.parametrize("text", ["", "==WARNING== No kernels were profiled.\n", "a,b\n1,2\n"])
def test_no_table_is_said(text: str) -> None:
    with pytest.raises(DeviceError, match="no table of launches"):
        report.parse_csv(text)


def test_a_ragged_table_is_refused() -> None:
    with pytest.raises(DeviceError, match="has 2 cells, not 9"):
        report.parse_csv(TABLE + '"2","41"\n')


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [(3.0, "byte", 3.0), (2.0, "Gbyte", 2e9), (1500.0, "ns", 1.5), (1500.0, "nsecond", 1.5), (2.0, "msecond", 2000.0),
     (96.0, "register/thread", 96.0), (12.5, "%", 12.5), (1.0, "furlong", None), (float("nan"), "byte", None),
     (None, "byte", None)],
)  # fmt: skip
def test_units(value: float | None, unit: str, expected: float | None) -> None:
    assert metrics.to_base(value, unit) == expected


def test_launches_of_a_step_make_one_number() -> None:
    by_name = {metric.column: metric for metric in metrics.METRICS}
    launches = [
        {"dram__bytes_read.sum": 1e9, "gpu__time_duration.sum": 300.0, "lts__t_bytes.sum": 3e9,
         "lts__t_sector_hit_rate.pct": 10.0, "launch__registers_per_thread": 64.0, by_name["dram_pct"].name: 80.0},
        {"dram__bytes_read.sum": 5e8, "gpu__time_duration.sum": 100.0, "lts__t_bytes.sum": 1e9,
         "lts__t_sector_hit_rate.pct": 50.0, "launch__registers_per_thread": 168.0, by_name["dram_pct"].name: 40.0},
    ]  # fmt: skip
    found = {name: metrics.total(metric, launches) for name, metric in by_name.items()}
    assert found["bytes_read_dram"] == 1.5e9 and found["profiled_us"] == 400.0
    assert found["l2_hit_pct"] == pytest.approx(20.0)  # (3 · 10 + 1 · 50) / 4
    assert found["dram_pct"] == pytest.approx(70.0)  # (300 · 80 + 100 · 40) / 400
    assert found["registers"] == 168.0 and found["bytes_write_dram"] is None
    without = [{name: value for name, value in one.items() if "lts__t_bytes" not in name} for one in launches]
    assert metrics.total(by_name["l2_hit_pct"], without) is None  # two launches and nothing to weigh them by
    assert metrics.total(by_name["l2_hit_pct"], without[:1]) == 10.0
    assert metrics.total(by_name["bytes_read_dram"], [launches[0], {"dram__bytes_read.sum": None}]) is None


def test_metrics_are_chosen_by_set_or_name() -> None:
    dram = ("dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum")
    assert metrics.select("dram") == dram
    assert metrics.select("all") == tuple(metric.name for metric in metrics.METRICS)
    assert metrics.select("smsp__inst_executed.sum,dram") == (*dram, "smsp__inst_executed.sum")
    with pytest.raises(InputError, match=r"--metrics: 'full': is not a metric \(allowed: all, dram, names of"):
        metrics.select("dram,full")


def test_launches_go_to_their_ranges_or_in_order_where_the_report_has_none() -> None:
    def launch(kernel: str, *ranges: str) -> report.Profiled:
        return report.Profiled.of(kernel, ranges, {})

    ran = [
        Ran({"a": 2, "b": 1}, frozenset("ab"), "-", "default", None),
        Ran({"c": 1}, frozenset("c"), "-", "default", 1),
    ]
    named = [launch("1", "outer", "b"), launch("2", "outer", "a"), launch("3", "a", "inner"), launch("4", "elsewhere")]
    assert {k: [one.kernel for one in v] for k, v in by_range(named, ran).items()} == {
        "a": ["2", "3"],
        "b": ["1"],
        "c": [],
    }
    bare = [launch(str(index)) for index in range(4)]
    assert {k: [one.kernel for one in v] for k, v in by_range(bare, ran).items()} == {
        "a": ["0", "1"],
        "b": ["2"],
        "c": ["3"],
    }
    assert not any(by_range(bare[:3], ran).values())  # another number of launches: no guessing


def test_a_report_that_neither_way_reads_has_both_reasons(tmp_path: Path) -> None:
    tool = open_tool(str(install(tmp_path)))
    broken = tmp_path / "1.ncu-rep"
    broken.write_text("{")
    with pytest.raises(DeviceError, match=r"1.ncu-rep cannot be read: exit code 1: .*; as CSV: exit code 1: "):
        report.read_report(tool, broken, ["dram__bytes_read.sum"])
    assert tool.python is not None
    (tool.python / "ncu_report.py").write_text("raise ImportError('built for another libc')")
    broken.write_text(json.dumps([{"kernel": "k", "ranges": ["r"], "values": {"dram__bytes_read.sum": [7, "byte"]}}]))
    launches, how = report.read_report(tool, broken, ["dram__bytes_read.sum"])
    assert (how, launches[0].values, launches[0].ranges) == ("csv", {"dram__bytes_read.sum": 7.0}, ("r",))
    with pytest.raises(DeviceError, match=r"was not found beside it; as CSV: .*no/ncu"):
        report.read_report(Tool("/no/ncu"), broken, [])
