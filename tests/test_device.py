"""The GPU by NVML, against a stand-in for the pynvml module."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time

import pytest

from perfkit import device, lastlines
from perfkit.errors import DeviceError
from tests.fakenvml import FakeNvml, Gpu, Instance

ONE, TWO = "GPU-1a2b3c4d-0000-1111-2222-333344445555", "GPU-1a2bffff-0000-1111-2222-333344445555"
MIG = "MIG-9f8e7d6c-0000-1111-2222-333344445555"


def test_facts_of_the_only_gpu():
    nvml = FakeNvml(Gpu(ONE, reasons=0x1, clock=345, processes=[(os.getpid(), 10), (4242, 61 * 1024), (4343, None)]))
    facts = device.usable_gpu({}, nvml)
    assert (facts.name, facts.uuid, facts.visible, facts.index) == ("NVIDIA H200", ONE, ONE, 0)
    assert (facts.driver, facts.cuda, facts.compute_capability) == ("580.159.03", "13.0", "9.0")
    assert (facts.memory_total_mib, facts.memory_used_mib) == (143771, 512)
    assert (facts.sm_clock_mhz, facts.sm_clock_max_mhz) == (345, 1980)  # idle now: not the peak
    assert (facts.memory_clock_mhz, facts.memory_clock_max_mhz) == (3201, 3201)
    assert (facts.power_w, facts.power_limit_w, facts.temperature_c) == (71.234, 700.0, 31)
    assert facts.clock_reasons == ("idle",)
    assert [(item.pid, item.memory_mib) for item in facts.foreign()] == [(4242, 62464), (4343, None)]
    assert [item.pid for item in facts.foreign({4242})] == [4343]
    assert not facts.is_mig
    assert facts.to_dict()["processes"][1] == {"pid": 4242, "memory_mib": 62464}
    assert nvml.started == 0  # shut down again


@pytest.mark.parametrize(
    ("value", "index"),
    [(None, 0), ("0", 0), ("1", 1), ("1,0", 1), (" 1 ", 1), (TWO, 1), ("GPU-1a2bf", 1), ("GPU-1a2b3", 0)],
)
def test_right_gpu_under_cuda_visible_devices(value, index):
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    facts = device.usable_gpu(environ, FakeNvml(Gpu(ONE), Gpu(TWO, processes=[(7, 1)])))
    assert (facts.index, facts.uuid) == (index, (ONE, TWO)[index])
    assert len(facts.processes) == index


@pytest.mark.parametrize("value", ["", "-1", "-1,0"])
def test_hidden_gpus_are_none(value):
    nvml = FakeNvml(Gpu(ONE))
    assert device.usable_gpu({"CUDA_VISIBLE_DEVICES": value}, nvml) is None
    with pytest.raises(DeviceError, match="hides every GPU; unset it"):
        device.visible_gpu({"CUDA_VISIBLE_DEVICES": value}, nvml)
    assert device.available(nvml)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("2", r"there are only 2 GPUs \(0\.\.1\)"),
        ("GPU-ffff", "no GPU has this UUID"),
        ("GPU-1a2b", "several GPUs have UUIDs that start so"),
        ("MIG-1", r"no MIG instance has this UUID \(there are: none\)"),
        ("first", "no GPU has this UUID"),
    ],
)
def test_value_that_names_no_gpu_is_an_error_that_shows_it(value, message):
    with pytest.raises(device.SelectionError, match=rf"^CUDA_VISIBLE_DEVICES={value}: {message}"):
        device.usable_gpu({"CUDA_VISIBLE_DEVICES": value}, FakeNvml(Gpu(ONE), Gpu(TWO)))


def test_number_among_different_models_is_not_guessed():
    nvml = FakeNvml(Gpu(ONE), Gpu(TWO, name="NVIDIA L4"))
    with pytest.raises(device.SelectionError, match="set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        device.usable_gpu({"CUDA_VISIBLE_DEVICES": "1"}, nvml)
    chosen = device.usable_gpu({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, nvml)
    assert (chosen.name, chosen.visible) == ("NVIDIA L4", TWO)
    assert device.usable_gpu({"CUDA_VISIBLE_DEVICES": TWO}, nvml).name == "NVIDIA L4"


@pytest.mark.parametrize("value", [None, "0", MIG, "MIG-9f8e"])
def test_mig_instance_is_named(value):
    gpu = Gpu(ONE, mig=True, instances=[Instance(MIG), Instance("MIG-0")])
    facts = device.usable_gpu({} if value is None else {"CUDA_VISIBLE_DEVICES": value}, FakeNvml(gpu))
    assert facts.is_mig and facts.name == "NVIDIA H200 MIG 1g.18gb"
    assert (facts.uuid, facts.mig_uuid, facts.visible, facts.memory_total_mib) == (ONE, MIG, MIG, 16384)


def test_mig_mode_without_an_instance_is_an_error():
    with pytest.raises(device.SelectionError, match="in MIG mode but has no instance"):
        device.usable_gpu({}, FakeNvml(Gpu(ONE, mig=True)))


def test_what_the_gpu_does_not_support_is_none():
    gpu = Gpu(ONE, mig=None, unsupported=("nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryInfo", "reasons"))
    facts = device.usable_gpu({}, FakeNvml(gpu))
    assert (facts.power_w, facts.memory_total_mib, facts.clock_reasons, facts.is_mig) == (None, None, (), False)


def test_no_driver_no_gpu_and_no_module(monkeypatch):
    broken = FakeNvml(init_error="NVML Shared Library Not Found")
    assert device.usable_gpu({}, broken) is None
    assert not device.available(broken)
    with pytest.raises(DeviceError, match=r"no NVIDIA driver answers.*nvidia-smi.*Shared Library Not Found"):
        device.visible_gpu({}, broken)
    assert device.usable_gpu({}, FakeNvml()) is None
    assert not device.available(FakeNvml())
    with pytest.raises(DeviceError, match="there is no NVIDIA GPU"):
        device.visible_gpu({}, FakeNvml())
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert device.usable_gpu({}) is None
    with pytest.raises(DeviceError, match="nvidia-ml-py is missing: pip install nvidia-ml-py"):
        device.visible_gpu({})


def test_other_errors_are_not_swallowed():
    class Broken(FakeNvml):
        def nvmlDeviceGetTemperature(self, handle, sensor):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        device.usable_gpu({}, Broken(Gpu(ONE)))


# -- reasons and monitor ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "words", "throttled"),
    [
        (0x000, (), False),
        (0x001, ("idle",), False),
        (0x002, ("application clocks setting",), False),
        (0x004, ("power cap",), True),
        (0x008, ("hardware slowdown",), True),
        (0x010, ("sync boost",), False),
        (0x020, ("software thermal slowdown",), True),
        (0x040, ("hardware thermal slowdown",), True),
        (0x080, ("power brake",), True),
        (0x100, ("display clock setting",), False),
        (0x005, ("idle", "power cap"), True),
        (0x1000, ("unknown 0x1000",), False),
    ],
)
def test_reasons_in_words(mask, words, throttled):
    assert device.decode(mask) == words
    gpu = Gpu(ONE, reasons=mask)
    with device.Monitor(ONE, FakeNvml(gpu)) as monitor:
        verdict = monitor.judge(monitor.snapshot(), monitor.snapshot())
    assert verdict.throttled is throttled and verdict.known
    assert set(verdict.reasons) <= set(words) and "idle" not in verdict.reasons


@pytest.mark.parametrize("old", [False, True])
def test_throttling_at_either_end_spoils_the_sample(old):
    gpu = Gpu(ONE)
    nvml = FakeNvml(gpu, Gpu(TWO, reasons=0x40), old=old)
    with device.Monitor(ONE, nvml) as monitor:
        clean = monitor.snapshot()
        gpu.reasons, gpu.clock = 0x20 | 0x1, 1200
        hot = monitor.snapshot()
    for before, after in ((clean, hot), (hot, clean)):
        assert monitor.judge(before, after).reasons == ("software thermal slowdown",)
    assert not monitor.judge(clean, clean).throttled
    assert monitor.judge(clean, hot).sm_clock_mhz == 1200
    assert nvml.started == 0


def test_snapshot_costs_two_calls():
    nvml = FakeNvml(Gpu(ONE))
    with device.Monitor(ONE, nvml) as monitor:
        nvml.calls.clear()
        monitor.snapshot()
        assert nvml.calls == ["reasons", "nvmlDeviceGetClockInfo"]


def test_power_is_the_drivers_reading_now():
    for nvml, expected in ((FakeNvml(Gpu(ONE)), 71.234), (FakeNvml(init_error="no driver"), None)):
        with device.Monitor(ONE, nvml) as monitor:
            assert monitor.power_w() == expected


def test_monitor_that_cannot_tell_says_so():
    for nvml in (FakeNvml(init_error="no driver"), FakeNvml(Gpu(TWO)), FakeNvml(Gpu(ONE, unsupported=("reasons",)))):
        with device.Monitor(ONE, nvml) as monitor:
            verdict = monitor.judge(monitor.snapshot(), monitor.snapshot())
        assert (verdict.throttled, verdict.known) == (False, False)


# -- log of a run ----------------------------------------------------------------------------------------------------


def logged(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_log_has_a_reading_first_and_last_and_goes_on_where_it_was(tmp_path):
    path, gpu = tmp_path / "samples" / device.CLOCK_LOG, Gpu(ONE)
    nvml = FakeNvml(gpu, Gpu(TWO, clock=345))
    with device.ClockLog(ONE, path, interval_s=60, nvml=nvml):
        gpu.clock, gpu.reasons = 1200, 0x4 | 0x20
    assert nvml.started == 0
    first, last = logged(path)
    assert first.pop("time") <= last.pop("time")
    assert first == {"sm_clock_mhz": "1980", "memory_clock_mhz": "3201", "power_w": "71.234", "temperature_c": "31",
                     "reasons": "none", "others": "0"}  # fmt: skip
    assert (last["sm_clock_mhz"], last["reasons"]) == ("1200", "power cap; software thermal slowdown")
    gpu.clock, gpu.reasons = 345, 0x1
    with device.ClockLog(ONE, path, interval_s=60, nvml=nvml):
        pass
    assert len(logged(path)) == 4
    assert device.clock_summary(path) == {
        "readings": 4, "busy": 2, "throttled": 1, "others": 0,
        "reasons": {"power cap": 1, "software thermal slowdown": 1},
        "sm_clock_mhz": {"min": 1200, "median": 1590, "max": 1980},
        "memory_clock_mhz": {"min": 3201, "median": 3201, "max": 3201},
        "power_w": {"min": 71.234, "median": 71.234, "max": 71.234},
        "temperature_c": {"min": 31, "median": 31, "max": 31},
    }  # fmt: skip
    text = lastlines.clock_text(device.clock_summary(path), 700.0)
    assert text == ("SM 1590 MHz [1200,1980], memory 3201 MHz, 71 W of 700, 31 C; "
                    "throttled in 1 of 4 readings (power cap, software thermal slowdown)")  # fmt: skip


def test_a_log_goes_on_while_the_run_does(tmp_path):
    path = tmp_path / device.CLOCK_LOG
    with device.ClockLog(ONE, path, interval_s=0.01, nvml=FakeNvml(Gpu(ONE))):
        deadline = time.monotonic() + 10
        while len(path.read_bytes().splitlines()) < 6:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_who_comes_to_use_the_gpu_is_named_once_and_the_own_worker_is_not(tmp_path):
    path, said, own = tmp_path / device.CLOCK_LOG, [], []
    gpu = Gpu(ONE, processes=[(7, 10)])
    log = device.ClockLog(ONE, path, lambda: own, said.append, interval_s=60, nvml=FakeNvml(gpu))
    with log:
        own.append(50)
        gpu.processes = [(7, 10), (50, 900)]
        log._take()
        gpu.processes.append((4242, 61_000))
        log._take()
        log._take()
    assert said == ["another process (pid 4242 with 64 GB) has come to use this GPU: times may suffer"]
    assert [row["others"] for row in logged(path)] == ["1", "1", "2", "2", "2"]
    text = lastlines.clock_text(device.clock_summary(path))
    assert text.endswith("; throttled in 0 of 5 readings; 2 other processes on this GPU")


def test_in_a_container_one_unknown_process_is_the_worker(tmp_path):
    path, said = tmp_path / device.CLOCK_LOG, []
    gpu = Gpu(ONE)
    log = device.ClockLog(ONE, path, lambda: [50], said.append, interval_s=60, nvml=FakeNvml(gpu))
    with log:
        gpu.processes = [(91_000, None)]
        log._take()
        assert said == []
        gpu.processes.append((91_001, None))
    assert said == ["another process (pid 91001) has come to use this GPU: times may suffer"]


def test_without_a_driver_or_for_another_gpu_nothing_is_logged(tmp_path):
    path = tmp_path / device.CLOCK_LOG
    for nvml in (FakeNvml(init_error="no driver"), FakeNvml(Gpu(TWO))):
        with device.ClockLog(ONE, path, nvml=nvml):
            pass
        assert nvml.started == 0
    assert not path.exists()
    assert device.clock_summary(path) is None
    assert lastlines.clock_text(None) is None


def test_what_the_driver_does_not_say_is_empty(tmp_path):
    path = tmp_path / device.CLOCK_LOG
    gpu = Gpu(ONE, unsupported=("reasons", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetClockInfo"))
    with device.ClockLog(ONE, path, interval_s=60, nvml=FakeNvml(gpu)):
        pass
    assert [logged(path)[0][name] for name in ("sm_clock_mhz", "power_w", "reasons")] == ["", "", ""]
    summary = device.clock_summary(path)
    assert (summary["sm_clock_mhz"], summary["throttled"], summary["temperature_c"]["max"]) == (None, 0, 31)


def test_a_log_that_cannot_be_written_ends_with_a_note(tmp_path):
    said = []
    (tmp_path / "file").touch()
    with device.ClockLog(ONE, tmp_path / "file" / "clock.csv", say=said.append, nvml=FakeNvml(Gpu(ONE))):
        pass
    path = tmp_path / "clock.csv"
    path.symlink_to("/dev/full")
    with device.ClockLog(ONE, path, say=said.append, interval_s=0.01, nvml=FakeNvml(Gpu(ONE))):
        pass
    assert len(said) == 2
    assert all(text.startswith("clocks are not logged any more: ") for text in said)
    assert said[1].endswith("clock.csv: No space left on device")


def test_an_unfinished_last_line_is_no_reading(tmp_path):
    path = tmp_path / device.CLOCK_LOG
    with device.ClockLog(ONE, path, interval_s=60, nvml=FakeNvml(Gpu(ONE))):
        pass
    path.write_text(path.read_text() + "2026-01-01T00:00:00.000+00:00,19")
    assert device.clock_summary(path)["readings"] == 2
    with device.ClockLog(ONE, path, interval_s=60, nvml=FakeNvml(Gpu(ONE))):
        pass
    assert device.clock_summary(path)["readings"] == 4


def test_idle_throughout_has_no_clock_under_load():
    summary = {"readings": 2, "busy": 0, "throttled": 0, "reasons": {}, "others": 0,
               **dict.fromkeys(("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c"))}  # fmt: skip
    assert lastlines.clock_text(summary) == "idle throughout; throttled in 0 of 2 readings"


# -- lock ------------------------------------------------------------------------------------------------------------


def test_lock_names_its_holder_and_is_per_gpu(tmp_path):
    second = device.gpu_lock(ONE, tmp_path)
    with device.gpu_lock(ONE, tmp_path):
        with pytest.raises(DeviceError) as caught:
            second.__enter__()
        assert str(caught.value) == (
            f"another perfkit run (pid {os.getpid()}) is timing this GPU; "
            "wait or choose another with CUDA_VISIBLE_DEVICES"
        )
        with device.gpu_lock(TWO, tmp_path):
            pass
    with device.gpu_lock(ONE, tmp_path):
        pass


def test_lock_of_a_killed_process_is_free(tmp_path):
    code = ("import sys, time; from pathlib import Path; from perfkit.device import gpu_lock\n"
            "with gpu_lock('GPU-x', Path(sys.argv[1])): print('held', flush=True); time.sleep(60)")  # fmt: skip
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "held\n"
        with pytest.raises(DeviceError, match=rf"another perfkit run \(pid {child.pid}\)"):
            device.gpu_lock("GPU-x", tmp_path).__enter__()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    with device.gpu_lock("GPU-x", tmp_path):
        pass


def test_lock_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DeviceError, match=r"cannot lock the GPU in .*set TMPDIR"):
        device.gpu_lock(ONE, tmp_path / "file" / "x").__enter__()


def test_importing_device_loads_neither_torch_nor_nvml():
    code = ("import sys, perfkit.device; bad = {'torch', 'triton', 'pynvml', 'pandas', 'scipy', 'filelock'}; "
            "sys.exit(str(bad & set(sys.modules)) if bad & set(sys.modules) else 0)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_real_module_has_the_functions_that_are_called():
    pynvml = pytest.importorskip("pynvml")
    fake = FakeNvml()
    for name in (name for name in dir(fake) if name.startswith("nvml")):
        assert callable(getattr(pynvml, name)), name
    assert (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM, pynvml.NVML_TEMPERATURE_GPU) == (1, 2, 0)
    for bit, name in ((0x4, "SwPowerCap"), (0x8, "HwSlowdown"), (0x10, "SyncBoost"), (0x20, "SwThermalSlowdown"),
                      (0x40, "HwThermalSlowdown"), (0x80, "HwPowerBrakeSlowdown"), (0x1, "GpuIdle"),
                      (0x2, "ApplicationsClocksSetting"), (0x100, "DisplayClockSetting")):  # fmt: skip
        assert getattr(pynvml, f"nvmlClocksThrottleReason{name}") == bit
