"""The GPU by NVML, against a stand-in for the pynvml module."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from dataclasses import dataclass, field

import pytest

from perfkit import device
from perfkit.errors import DeviceError

MIB = 1024 * 1024


class NVMLError(Exception):
    pass


@dataclass
class Instance:
    uuid: str
    name: str = "NVIDIA H200 MIG 1g.18gb"
    memory_mib: int = 16384


@dataclass
class Gpu:
    uuid: str
    name: str = "NVIDIA H200"
    mig: bool | None = False
    instances: list[Instance] = field(default_factory=list)
    reasons: int = 0
    clock: int = 1980
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    memory_mib: int = 143771
    unsupported: tuple[str, ...] = ()


class FakeNvml:
    """The functions of pynvml that perfkit calls; ``old`` lacks the newer names."""

    NVMLError = NVMLError

    def __init__(self, *gpus: Gpu, init_error: str | None = None, old: bool = False) -> None:
        self.gpus, self.init_error, self.started, self.calls = list(gpus), init_error, 0, []
        if not old:
            self.nvmlDeviceGetCurrentClocksEventReasons = self._reasons
        self.nvmlDeviceGetCurrentClocksThrottleReasons = self._reasons

    def _ask(self, handle, name):
        self.calls.append(name)
        assert self.started > 0, "NVML was not started"
        if name in getattr(handle, "unsupported", ()):
            raise NVMLError("Not Supported")
        return handle

    def nvmlInit(self):
        if self.init_error:
            raise NVMLError(self.init_error)
        self.started += 1

    def nvmlShutdown(self):
        self.started -= 1

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise NVMLError("Not Found")

    def nvmlDeviceGetUUID(self, handle):
        return handle.uuid

    def nvmlDeviceGetName(self, handle):
        return handle.name

    def nvmlDeviceGetMigMode(self, handle):
        if handle.mig is None:
            raise NVMLError("Not Supported")
        return [int(handle.mig), int(handle.mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index >= len(handle.instances):
            raise NVMLError("Not Found")
        return handle.instances[index]

    def nvmlDeviceGetMemoryInfo(self, handle):
        self._ask(handle, "nvmlDeviceGetMemoryInfo")
        return types.SimpleNamespace(total=handle.memory_mib * MIB, used=512 * MIB)

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return (9, 0)

    def nvmlSystemGetDriverVersion(self):
        return b"580.159.03"

    def nvmlSystemGetCudaDriverVersion(self):
        return 13000

    def nvmlDeviceGetClockInfo(self, handle, kind):
        self._ask(handle, "nvmlDeviceGetClockInfo")
        return {1: handle.clock, 2: 3201}[kind]

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return {1: 1980, 2: 3201}[kind]

    def _reasons(self, handle):
        return self._ask(handle, "reasons").reasons

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._ask(handle, "nvmlDeviceGetPowerUsage") and 71234

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return 700000

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 31

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [
            types.SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * MIB)
            for pid, mib in getattr(handle, "processes", [])
        ]


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


def test_monitor_that_cannot_tell_says_so():
    for nvml in (FakeNvml(init_error="no driver"), FakeNvml(Gpu(TWO)), FakeNvml(Gpu(ONE, unsupported=("reasons",)))):
        with device.Monitor(ONE, nvml) as monitor:
            verdict = monitor.judge(monitor.snapshot(), monitor.snapshot())
        assert (verdict.throttled, verdict.known) == (False, False)


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
