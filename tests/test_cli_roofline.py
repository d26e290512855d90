"""``perfkit roofline``: measuring through a worker that has a bench with known figures, and showing what is known."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from perfkit import device
from perfkit.cli import app, roofline_measure
from perfkit.profiles import load_gpu, read_roofs, roofs_folder
from perfkit.profiles.measured import MEASURED
from perfkit.roofline import roofs_for
from perfkit.roofs import document

STUB = Path(__file__).with_name("roofsbench.py")
SHIPPED = MEASURED / "h200-sxm-roofs.yaml"
DATE = read_roofs(SHIPPED)["date"]


def _facts(**changes: object) -> device.DeviceFacts:
    fields = dict.fromkeys(device.DeviceFacts.__dataclass_fields__, None) | {
        "name": "NVIDIA H200", "memory_total_mib": 143771, "driver": "580.159", "sm_clock_max_mhz": 1980,
        "power_limit_w": 700.0, "clock_reasons": (), "processes": ()}  # fmt: skip
    return device.DeviceFacts(**(fields | changes))  # type: ignore[arg-type]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's own roofs go; it is not there yet."""
    folder = tmp_path / "data" / "roofs"
    monkeypatch.setenv("PERFKIT_ROOFS", str(folder))
    return folder


@pytest.fixture
def nothing(own: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a GPU."""
    monkeypatch.setattr(device, "usable_gpu", lambda: None)
    return own


@pytest.fixture
def h200(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an H200, whose worker is the stub."""
    facts = _facts(uuid=f"GPU-{tmp_path.name}", visible=f"GPU-{tmp_path.name}")
    monkeypatch.setattr(device, "usable_gpu", lambda: facts)
    monkeypatch.setattr(roofline_measure, "worker_argv", lambda mode: [sys.executable, str(STUB), mode])
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    return own


def _figures(data: dict[str, Any]) -> int:
    return len(data["points"]) + len(data["l2"]) + len(data["rates"])


def _json(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> dict[str, Any]:
    assert app.run(["roofline", *args, "--json"]) == code
    return dict(json.loads(capsys.readouterr().out))


def _fails(capsys: pytest.CaptureFixture[str], *args: str, code: int) -> str:
    """Return the one line on stderr, after whatever progress there was."""
    assert app.run(["roofline", *args]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = [line for line in captured.err.splitlines() if line.startswith("perfkit: error: ")]
    assert captured.err.splitlines()[-1] == line and "Traceback" not in captured.err
    return line.removeprefix("perfkit: error: ")


# -- without a GPU ---------------------------------------------------------------------------------------------------


def test_what_every_command_uses_for_a_gpu_that_is_not_here(nothing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["roofline"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("there is no usable GPU here") and "NVIDIA H200 SXM 141GB" in captured.err
    lines = captured.out.splitlines()
    data = read_roofs(SHIPPED)
    assert lines[0].startswith(f"SHIPPED   NVIDIA H200 SXM 141GB, driver {data['driver']}")
    assert lines[-1] == f"roofs     shipped, measured {DATE}: {SHIPPED}"
    for kinds, size in (
        (("read", "inplace", "copy", "write"), "2048 MiB"),
        (("4r1w", "2r1w", "1r2w", "1r4w", "1r8w"), "2160 MiB"),
    ):
        there = {point["kind"]: f"{point['bandwidth_gb_s']:,.0f}" for point in data["points"]
                 if point["kind"] in kinds and point["bytes"] == int(size.split()[0]) << 20}  # fmt: skip
        assert [size, *(there[kind] for kind in kinds if kind in there)] in [
            [" ".join(line.split()[:2]), *line.split()[2:]] for line in lines
        ]
    assert f"{data['launch_us']:.3g} us, node of a graph {data['graph_node_us']:.3g} us" in captured.out
    assert not nothing.exists()  # showing leaves nothing behind


def test_a_named_gpu_needs_no_note(nothing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["roofline", "--gpu", "b200"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith("DATASHEET NVIDIA B200")
    assert "roofs     datasheet, uncalibrated: 7,700 GB/s of the datasheet, times what an H200" in captured.out
    data = _json(capsys, "--gpu", "b200")
    assert data["roofs_used"] == {"source": "datasheet", "origin": "datasheet", "date": None, "file": None,
                                  "text": "datasheet, uncalibrated"}  # fmt: skip
    assert data["datasheet"] == {"bandwidth_gb_s": 7700.0, "bf16_tflops": 2250.0, "tf32_tflops": 1125.0,
                                 "fp32_tflops": 75.0, "l2_mib": 126.0}  # fmt: skip
    roofs = roofs_for(load_gpu("b200"))
    for point in data["roofs"]["points"]:
        reads = point["bytes"] * (1.0 if point["kind"] == "read" else 0.5)
        time_us = roofs.time_us(reads, point["bytes"] - reads) + roofs.graph_node_us
        assert point["bandwidth_gb_s"] == pytest.approx(point["bytes"] / time_us / 1e3)
    assert (data["measured"], data["saved"], data["agreement"], data["comparison"]) == (False, None, None, None)


@pytest.mark.parametrize(
    ("args", "code", "line"),
    [
        (["--quick"], 3, "there is no usable GPU here: nothing was measured (perfkit doctor says what works)"),
        (["--repeat", "2"], 3, "there is no usable GPU here: nothing was measured (perfkit doctor says what works)"),
        (["--out", "x.yaml"], 3, "there is no usable GPU here: nothing was measured"),
        (["--gpu", "h201"], 2, "gpu: 'h201': unknown GPU"),
        (["--repeat", "0"], 2, "--repeat: 0: must be from 1 to 10"),
        (["--tolerance", "0"], 2, "--tolerance: 0.0: must be above 0 and below 100"),
        (["--show", "--quick"], 2, "--quick: is for a measurement, and --show makes none"),
        (["--file", "x.yaml", "--repeat", "2"], 2, "--repeat: is for a measurement, and --file makes none"),
        (["--file", "x.yaml", "--gpu", "b200"], 2, "--file: 'x.yaml': says itself which GPU it is of"),
        (["--file", "no.yaml"], 2, "no.yaml: no such file"),
        (["--compare", "no.yaml"], 2, "no.yaml: no such file"),
        (["--gpu", "b200", "--compare", str(SHIPPED)], 2,
         f"{SHIPPED}: gpu: 'h200-sxm': roofs of another GPU, not of b200"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    nothing: Path, capsys: pytest.CaptureFixture[str], args: list[str], code: int, line: str
) -> None:
    assert _fails(capsys, *args, code=code).startswith(line)
    assert not nothing.exists()


def test_files_are_shown_and_compared(nothing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = read_roofs(SHIPPED)
    (point,) = (one for one in changed["points"] if (one["kind"], one["bytes"]) == ("inplace", 2048 << 20))
    base = point["bandwidth_gb_s"]
    slower = {"kind": "inplace", "bytes": 2048 << 20, "bandwidth_gb_s": base / 1.025}
    changed["points"] = [slower if one == point else one for one in changed["points"]]
    other = tmp_path / "other.yaml"
    other.write_text(document(changed))
    data = _json(capsys, "--file", str(other), "--compare", str(SHIPPED), code=1)
    assert data["roofs_used"]["text"] == f"{other}, measured {DATE}"
    assert data["comparison"]["of"] == "inplace 2048 MiB" and not data["comparison"]["within"]
    assert data["comparison"]["largest"] == pytest.approx(0.025, rel=1e-3)
    assert len(data["comparison"]["roofs"]) == _figures(changed)
    (worst,) = (one for one in data["comparison"]["roofs"] if abs(one["change"]) > 1e-4)
    assert (worst["name"], worst["unit"], worst["base"]) == ("inplace 2048 MiB", "GB/s", base)
    assert worst["change"] == pytest.approx(1 / 1.025 - 1, rel=1e-3)
    assert app.run(["roofline", "--file", str(other), "--compare", str(SHIPPED), "--tolerance", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("FILE      NVIDIA H200") and f"roofs     {other}, measured {DATE}" in out
    pair = f"{base:.4g} and {base / 1.025:.4g} GB/s"
    assert f"compared  with {SHIPPED}: largest difference 2.50% (inplace 2048 MiB: {pair}), within 3%" in out
    assert f"inplace 2048 MiB: {base:.4g} -> {base / 1.025:.4g} GB/s (-2.44%)" in out


def test_nothing_is_compared_with_a_datasheet(
    nothing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(SHIPPED.read_text().replace("h200-sxm", "b200"))
    assert "nobody measured the roofs of NVIDIA B200" in _fails(
        capsys, "--gpu", "b200", "--compare", str(other), code=2
    )


# -- with a GPU ------------------------------------------------------------------------------------------------------


def test_measured_roofs_are_what_every_later_command_uses(
    h200: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = h200 / "h200-sxm-roofs.yaml"
    assert app.run(["roofline", "--repeat", "2"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    head = "MEASURED  NVIDIA H200 SXM 141GB, driver 580.159, SM 1965 MHz, power limit 700 W, "
    assert lines[0] == f"{head}0 throttled samples dropped"
    assert re.search(r"^2048 MiB +4,4\d\d +3,8\d\d +3,9\d\d +4,2\d\d$", captured.out, re.MULTILINE)
    assert re.search(r"^90 MiB +4,0\d\d +3,8\d\d +3,7\d\d +3,7\d\d +3,6\d\d$", captured.out, re.MULTILINE)
    assert re.search(
        r"^L2        reads 7,0\d\d GB/s in 3\.75 MiB, 7,0\d\d GB/s in 7\.5 MiB, ", captured.out, re.MULTILINE
    )
    cap = lines.index("products  BF16 tensor 700 TFLOP/s (71% of the datasheet, 1650 MHz, 700 W, at the power cap)")
    assert lines[cap + 2] == "          FP32 50 TFLOP/s (75% of the datasheet, 1650 MHz, 700 W)"
    assert "runs      largest difference 0.00% (" in captured.out and "within 2%; 55 roofs compared" in captured.out
    date = read_roofs(path)["date"]
    assert lines[-1] == f"roofs     measured here {date}: every later command goes by {path}"
    # One process a run, on that GPU alone; progress of each figure on stderr.
    runs = [line.split() for line in (tmp_path / "runs").read_text().splitlines()]
    assert len({pid for pid, *_ in runs}) == 2
    assert {(gpu, visible) for _, gpu, visible in runs} == {("h200-sxm", f"GPU-{tmp_path.name}")}
    assert "[58/112] run 2 of 2: read 1 MiB: " in captured.err
    assert "[112/112] run 2 of 2: fp32 products: 50 TFLOP/s" in captured.err
    data = read_roofs(path)
    assert (data["schema"], data["runs"], data["spread"], data["name"]) == (2, 2, 0.0, "NVIDIA H200")
    roofs = roofs_for(load_gpu("h200"))
    assert (roofs.origin, roofs.file, roofs.read_gb_s) == ("here", str(path), pytest.approx(4500, rel=5e-3))
    # Shown again where there is no need to measure.
    assert app.run(["roofline", "--show"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("YOUR OWN  NVIDIA H200") and f"roofs     measured here {date}: {path}" in out


def test_json_has_everything(h200: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _json(capsys, "--compare", str(SHIPPED), code=1)
    assert data["measured"] and data["saved"] == str(h200 / "h200-sxm-roofs.yaml") and data["unsaved"] is None
    assert data["roofs_used"]["origin"] == "here" and data["roofs"]["gpu"] == "h200-sxm"
    assert len(data["roofs"]["points"]) == 48 and len(data["roofs"]["l2"]) == 4 and len(data["roofs"]["rates"]) == 3
    assert data["agreement"] is None and len(data["comparison"]["roofs"]) == _figures(read_roofs(SHIPPED))
    assert data["roofs"] == read_roofs(Path(data["saved"]))


def test_runs_that_differ_are_not_what_later_commands_use(
    h200: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OFF", "0.97")
    monkeypatch.setenv("OF", "write")
    assert app.run(["roofline", "--repeat", "2"]) == 1
    captured = capsys.readouterr()
    assert re.search(r"runs      largest difference 3\.\d\d% \(write \d+ MiB: .*MORE than 2%", captured.out)
    assert captured.out.splitlines()[-1] == (
        "roofs     not saved: the runs differ; see that nothing else uses the GPU, and measure again")  # fmt: skip
    assert list(h200.iterdir()) == []
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "runs").unlink()
    data = _json(capsys, "--repeat", "2", "--quick", "--out", str(out), code=1)
    assert data["saved"] == str(out / "h200-sxm-roofs.yaml") and not data["agreement"]["within"]
    assert read_roofs(Path(data["saved"]))["spread"] == pytest.approx(data["agreement"]["largest"], rel=1e-5)
    (tmp_path / "runs").unlink()
    assert app.run(["roofline", "--repeat", "2", "--tolerance", "4"]) == 0
    assert (h200 / "h200-sxm-roofs.yaml").exists()


def test_a_quick_look_is_saved_only_where_asked(h200: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["roofline", "--quick"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "roofs     not saved: --quick has few sizes; --out says where to")  # fmt: skip
    assert not h200.exists()
    assert app.run(["roofline", "--quick", "--out", str(tmp_path / "q.yaml")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"roofs     saved to {tmp_path / 'q.yaml'}; ")
    assert len(read_roofs(tmp_path / "q.yaml")["points"]) == 4 * 3 + 5
    assert not h200.exists() and roofs_for(load_gpu("h200")).origin == "shipped"


def test_interrupted_it_leaves_nothing(
    h200: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while the worker measures: the worker is gone, nothing is saved, the GPU is free."""
    monkeypatch.setenv("FAULT", "hang")

    def interrupt() -> None:
        while not (tmp_path / "runs").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    code = app.run(["roofline"])
    thread.join()
    assert code == 130 and capsys.readouterr().out == ""
    pid = int((tmp_path / "runs").read_text().split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert list(h200.iterdir()) == []
    with device.gpu_lock(device.usable_gpu().uuid):
        pass


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("refuse", "too little free GPU memory for a stream of 1 MiB"),
        ("die", "the worker ended: exit code 7: CUDA error: unspecified launch failure"),
        ("hang", "nothing was measured for 0.5 s: the GPU hangs; see nvidia-smi"),
        ("nothing", "the worker measured nothing, and does not say why"),
        ("unready", "the worker ended before it was ready: exit code 1: torch sees no CUDA device"),
    ],
)
def test_a_worker_that_fails_leaves_the_roofs_as_they_were(
    h200: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str, line: str
) -> None:
    h200.mkdir(parents=True)
    path = h200 / "h200-sxm-roofs.yaml"
    path.write_text(SHIPPED.read_text())
    monkeypatch.setenv("FAULT", fault)
    if fault == "hang":
        monkeypatch.setattr(roofline_measure, "SILENT_S", 0.5)
    assert _fails(capsys, code=3).startswith(line)
    assert [item.name for item in h200.iterdir()] == [path.name] and path.read_text() == SHIPPED.read_text()
    with device.gpu_lock(device.usable_gpu().uuid):  # free again
        pass


def test_a_gpu_that_another_run_times_is_left_alone(h200: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with device.gpu_lock(device.usable_gpu().uuid):
        assert "another perfkit run" in _fails(capsys, code=3)


def test_a_place_that_cannot_be_written_is_found_first(
    h200: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "no" / "roofs.yaml"
    said = _fails(capsys, "--out", str(missing), code=2)  # which shortens a long path
    assert said.startswith("--out: '") and said.endswith("cannot write: No such file or directory")
    monkeypatch.setenv("PERFKIT_ROOFS", "/proc/roofs")
    assert _fails(capsys, code=2).endswith("cannot write: No such file or directory; --out says where else")
    assert not (tmp_path / "runs").exists()


def test_only_whole_gpus_with_a_profile_are_measured(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for changes, line in (
        ({"mig_uuid": "MIG-1"}, "NVIDIA H200 is a MIG instance: its bandwidth is not the GPU's"),
        ({"name": "NVIDIA H900"}, "no profile for NVIDIA H900 with 143771 MiB"),
    ):
        monkeypatch.setattr(device, "usable_gpu", lambda changes=changes: _facts(**changes))
        assert _fails(capsys, code=3).startswith(line)
        assert app.run(["roofline", "--gpu", "h200"]) == 0  # a GPU that is not here, as far as roofs go
        assert capsys.readouterr().out.startswith("SHIPPED")
    monkeypatch.setattr(device, "usable_gpu", lambda: _facts())
    assert _fails(capsys, "--gpu", "b200", "--quick", code=3).startswith("this machine has NVIDIA H200: nothing was")


def test_a_damaged_file_of_ones_own_is_named(nothing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing.mkdir(parents=True)
    path = nothing / "h200-sxm-roofs.yaml"
    path.write_text("schema: 7\n")
    assert roofs_folder() == nothing
    assert _fails(capsys, "--gpu", "h200", code=2).startswith(
        f"{path}: schema: '7': another schema version; measure again with `perfkit roofline`"
    )


def test_a_sweep_goes_by_them_and_says_so(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same sweep of the simulated GPU by the shipped roofs and by one's own, which are a tenth lower."""
    monkeypatch.setenv("PERFKIT_WORKER_MODE", "fake")
    found = {}
    for name in ("shipped", "here"):
        if name == "here":
            own.mkdir(parents=True)
            text = re.sub(r"(bandwidth_gb_s|tflops|lo|hi): ([\d.]+)", lambda m: f"{m[1]}: {float(m[2]) * 0.9:.2f}",
                          SHIPPED.read_text())  # fmt: skip
            (own / SHIPPED.name).write_text(text.replace(DATE, "2026-12-24"))
        out = tmp_path / name
        args = ["sweep", "--model", "nemotron-super", "--batch", "64", "--window", "16", "--out", str(out), "--json"]
        assert app.run(args) == 0
        data = json.loads(capsys.readouterr().out)
        manifest = json.loads((out / "manifest.json").read_text())
        assert manifest["roofs"] == data["summary"]["roofs"]
        text = manifest["roofs"]["text"]
        assert f"roofs     {text}" in data["summary"]["lines"] and text in (out / "report.html").read_text()
        assert {row["roof_source"] for row in data["rows"]} == {"measured"}
        found[name] = text, data["rows"][0]["roof_gb_s"]
    assert [text for text, _ in found.values()] == [f"shipped, measured {DATE}", "measured here 2026-12-24"]
    assert found["here"][1] == pytest.approx(0.9 * found["shipped"][1], rel=2e-3)
