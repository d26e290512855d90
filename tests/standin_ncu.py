"""A stand-in for Nsight Compute's ``ncu``: takes its options, plays what the environment variable STANDIN says.

    good      the target's events, and a report of what STANDIN_STEPS says of each case, times a factor of STANDIN_SCALE
    run       the same, but the real target runs first
    perm, busy, metric, option, nothing, empty, noreport, start, deaf, mute     one way to fail each
    hang, stubborn, crash, oom, poison, partial     something happens to the case numbered STANDIN_AT (0 is the first)

STANDIN_STEPS names a file of what the cases do (nsighthelp.facts), STANDIN_PIDS one for the pids of what was started;
STANDIN_SCALE is JSON, {"<method> <step>": [read, write]}. A report is JSON here; the stub of ``ncu_report`` beside it,
and ``--import … --csv``, read that. Nothing of perfkit is imported: a start is to be quick.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

L2 = 60 * 2**20
PERM = ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on "
        "the target device 0. For instructions on enabling permissions and to get more information see "
        "https://developer.nvidia.com/ERR_NVGPUCTRPERM\n")  # fmt: skip
SAYS = {
    "perm": PERM,
    "busy": "==ERROR== An error was reported by the driver\n\n==ERROR== Profiling failed because a driver resource was "
            "unavailable. Ensure that no other tool (like DCGM) is concurrently collecting profiling data.\n",
    "metric": "==ERROR== Failed to find metric regex:^{metric}(\\.(sum|avg))?$\n",
    "option": "==ERROR== unrecognised option '--clock-control'. Use --help for further details.\n",
    "nothing": "==WARNING== No kernels were profiled.\n",
}  # fmt: skip
HEADER = ("ID", "Process ID", "Process Name", "Host Name",
          "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg", "Kernel Name")  # fmt: skip


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def pids(*found: int) -> None:
    if path := os.environ.get("STANDIN_PIDS"):
        with open(path, "a") as file:
            file.writelines(f"{pid}\n" for pid in found)


class Played:
    """The target's events, and the launches that a report of them has."""

    def __init__(self, plan: dict[str, Any], metrics: list[str], facts: dict[str, Any]) -> None:
        self.plan, self.metrics = plan, metrics
        self.cases = [facts[json.dumps(item["case"], sort_keys=True)] for item in plan["cases"]]
        self.scale = json.loads(os.environ.get("STANDIN_SCALE") or "{}")
        self.launches: list[dict[str, Any]] = []

    def tell(self, **event: Any) -> None:
        with open(self.plan["events"], "a") as file:
            file.write(json.dumps(event) + "\n")

    def ready(self, pid: int) -> None:
        self.tell(event="ready", pid=pid, gpu="Fake GPU", l2_bytes=L2, nvtx="nvtx")

    def case(self, at: int, drop: bool = False) -> None:
        """Play a case: its events and launches; ``drop`` leaves the last launch of its first step out of the report."""
        case = self.cases[at]
        self.tell(event="begin", case_id=case["case_id"])
        for step in case["steps"]:
            factors = self.scale.get(f"{case['method']} {step['kind']}", [1.0, 1.0])
            for index in range(step["launches"] - (drop and step["kind"] != "flush")):
                self.launches.append(self.step_launch(f"_{case['method']}_kernel_{index}", step, factors))
            self.tell(event="step", case_id=case["case_id"], range=step["range"], launches=step["launches"], whole=True)
        config = self.plan["cases"][at]["config"]
        self.tell(event="done", case_id=case["case_id"], config=config or case["config"],
                  config_source="given" if config else "default")  # fmt: skip

    def step_launch(self, kernel: str, step: dict[str, Any], factors: list[float]) -> dict[str, Any]:
        each = [factor / step["launches"] for factor in factors]
        return self.launch(kernel, step["range"], step["read"] * each[0], step["write"] * each[1])

    def launch(self, kernel: str, name: str, read: float, write: float) -> dict[str, Any]:
        values = {
            "dram__bytes_read.sum": [read, "byte"], "dram__bytes_write.sum": [write, "byte"],
            "gpu__time_duration.sum": [(read + write) / 4.0, "ns"], "lts__t_bytes.sum": [read + write, "byte"],
            "lts__t_sector_hit_rate.pct": [50.0, "%"], "launch__registers_per_thread": [64, "register/thread"],
            "sm__warps_active.avg.pct_of_peak_sustained_active": [25.0, "%"],
            "dram__throughput.avg.pct_of_peak_sustained_elapsed": [80.0, "%"],
            "sm__throughput.avg.pct_of_peak_sustained_elapsed": [20.0, "%"], "smsp__inst_executed.sum": [7e6, "inst"],
        }  # fmt: skip
        values = {name: value for name, value in values.items() if name in self.metrics}
        values["device__attribute_clock_rate"] = [1980000, ""]
        return {"kernel": kernel, "ranges": ["perfkit-counters", name], "values": values}


def ran(plan: dict[str, Any], played: Played) -> None:
    """Launches for the events that a real target has told."""
    known = {step["range"]: step for case in played.cases for step in case["steps"]}
    for line in Path(plan["events"]).read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "step":
            step = known[event["range"]] | {"launches": event["launches"]}
            played.launches += [played.step_launch("kernel", step, [1.0, 1.0]) for _ in range(step["launches"])]


def print_csv(report: list[dict[str, Any]]) -> None:
    names = sorted({name for launch in report for name in launch["values"]})
    writer = csv.writer(sys.stdout, quoting=csv.QUOTE_ALL, lineterminator="\n")
    print("==PROF== a message before the table")
    writer.writerow([*HEADER, *names])
    units = {name: unit for launch in report for name, (_, unit) in launch["values"].items()}
    writer.writerow([*[""] * len(HEADER), *(units[name] for name in names)])
    for number, launch in enumerate(report):
        ranges = "7  " + "  ".join(f'"perfkit:{name}:none:none:none:none:none:none"' for name in launch["ranges"])
        cells = [f"{launch['values'][name][0]:,.2f}" if name in launch["values"] else "n/a" for name in names]
        writer.writerow([number, 7, "python3", "127.0.0.1", ranges, launch["kernel"], *cells])


def main(argv: list[str]) -> int:
    if "--import" in argv:
        print_csv(json.loads(Path(option(argv, "--import")).read_text()))
        return 0
    mode, at = os.environ.get("STANDIN", "good"), int(os.environ.get("STANDIN_AT", "0"))
    log, report = Path(option(argv, "--log-file")), Path(option(argv, "--export") + ".ncu-rep")
    plan, metrics = json.loads(Path(argv[-1]).read_text()), option(argv, "--metrics").split(",")
    pids(os.getpid())
    if mode in SAYS:
        log.write_text(SAYS[mode].replace("{metric}", os.environ.get("STANDIN_METRIC", "dram__bytes_read.sum")))
    if mode in ("perm", "busy", "metric"):  # the program goes on, uncounted, for as long as it likes
        time.sleep(600)
    if mode == "option":
        return 1
    if mode == "deaf":
        time.sleep(600)
    if mode == "start":
        print("ModuleNotFoundError: No module named 'torch'")
        return 1
    played = Played(plan, metrics, json.loads(Path(os.environ["STANDIN_STEPS"]).read_text()))
    if mode == "run":
        code = subprocess.run(argv[-4:]).returncode
        ran(plan, played)
        report.write_text(json.dumps(played.launches))
        return code
    # A target in a session of its own, as a launcher may put it.
    target = subprocess.Popen(["sleep", "600"], start_new_session=True)
    pids(target.pid)
    try:
        played.ready(target.pid)
        for index, case in enumerate(played.cases):
            if index == at and mode in ("hang", "stubborn"):
                played.tell(event="begin", case_id=case["case_id"])
                target.wait()
                if mode == "stubborn":
                    time.sleep(600)
                log.write_text("==ERROR== The application returned an error code (9).\n")
                report.write_text(json.dumps(played.launches))
                return 9
            if index == at and mode == "crash":
                played.tell(event="begin", case_id=case["case_id"])
                print("Fatal Python error: Segmentation fault")
                log.write_text('==ERROR== LaunchFailed\n==ERROR== Failed to profile "_replay_decode_kernel" in process '
                               "7\n==PROF== Trying to shutdown target application\n")  # fmt: skip
                report.write_text(json.dumps(played.launches))
                return 1
            if index == at and mode in ("oom", "poison"):
                fatal = mode == "poison"
                played.tell(event="begin", case_id=case["case_id"])
                played.tell(event="failed", case_id=case["case_id"], status="error" if fatal else "oom", fatal=fatal,
                            reason="illegal memory access" if fatal else "tried 190 GB")  # fmt: skip
                if fatal:
                    return 3
                continue
            played.case(index, drop=mode == "partial" and index == at)
        played.tell(event="end")
    finally:
        target.send_signal(signal.SIGKILL)
        target.wait()
    if mode == "mute":
        time.sleep(600)
    if mode == "empty":
        report.write_text("[]")
    elif mode not in ("nothing", "noreport"):
        report.write_text(json.dumps(played.launches))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
