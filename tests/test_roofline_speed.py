"""A million configurations in about a second, and imports that stay light."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np

from perfkit.method import Step
from perfkit.roofline import l_star, predict, ratio_paper, traffic_per_token, verify_chain
from perfkit.roofline.acceptance import acceptance_pmf
from perfkit.roofline.cursor import flush_rates
from perfkit.roofline.flops import output_only_verify_flops
from perfkit.roofline.roof import datasheet_roofs
from perfkit.shape import Shape

SUPER = Shape("mamba2", 128, 8, 64, 128)
H200 = SimpleNamespace(
    key="h200-sxm", bandwidth_gb_s=4800.0, fp32_tflops=67.0, bf16_tflops=989.4, l2_mb=60.0, boost_clock_mhz=1980.0
)
MILLION = 1_000_000
LOOSE_S = 2.0  # 0.2 s on an idle core; the bound is loose because test machines are busy


def test_a_million_points() -> None:
    rng = np.random.default_rng(0)
    window = rng.integers(1, 512, MILLION)
    draft = rng.integers(1, 9, MILLION)
    accepted = 1 + rng.random(MILLION) * (draft - 1)
    batch = rng.integers(1, 1024, MILLION)
    roofs = datasheet_roofs("h200-sxm", 4800.0)
    start = time.process_time()
    ratio = ratio_paper(SUPER, window)
    per_token = traffic_per_token(SUPER, window, draft, accepted)
    star = l_star(SUPER, draft, accepted)
    flops = 128 * batch * output_only_verify_flops(64, 128, window / 2, draft)
    step = Step(128.0 * batch * per_token * accepted, 1e6 * draft, flops)
    prediction = predict(H200, roofs, step)
    elapsed = time.process_time() - start
    assert elapsed < LOOSE_S
    for values in (ratio, per_token, star, prediction.us):
        assert values.shape == (MILLION,)
        assert np.all(np.isfinite(values))


def test_cursors_of_a_million_windows() -> None:
    pmf = acceptance_pmf("3.5", 4)
    windows = np.random.default_rng(0).integers(4, 2048, MILLION)
    start = time.process_time()
    rates = flush_rates(windows, 4, pmf)
    elapsed = time.process_time() - start
    assert elapsed < LOOSE_S
    assert np.all((rates > 0) & (rates <= 1))


def test_a_chain_of_a_million_steps() -> None:
    windows = np.arange(4, 1418)
    start = time.process_time()
    chain = verify_chain(windows, 4, acceptance_pmf("3.5", 4))
    elapsed = time.process_time() - start
    assert len(chain.h) > MILLION - 10_000
    assert elapsed < LOOSE_S
    assert np.allclose(np.add.reduceat(chain.probability, chain.starts), 1)


def test_imports_numpy_and_nothing_heavier() -> None:
    heavy = "{'torch', 'triton', 'pandas', 'scipy', 'rich', 'yaml'}"
    code = f"import sys, perfkit.roofline; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
