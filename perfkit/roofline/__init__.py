"""Pure arithmetic about state-space layers: bytes, FLOPs, windows, roofs, times. Numpy only."""

from perfkit.roofline.acceptance import (
    acceptance_list,
    acceptance_pmf,
    mean_accepted,
    pmf_mean,
    resolve_acceptance,
    resolve_acceptances,
    short_acceptance,
)
from perfkit.roofline.capacity import (
    Budget,
    Capacity,
    Waves,
    n_waves,
    request_budget,
    requests_that_fit,
    usable_bytes,
)
from perfkit.roofline.crossover import crossover_tokens, kv_bytes_per_token, state_bytes_per_sequence
from perfkit.roofline.cursor import (
    Chain,
    committed_chain,
    cycle,
    decode_chain,
    flush_rates,
    period,
    phase_chain,
    verify_chain,
)
from perfkit.roofline.efficiency import Efficiency, efficiency_for
from perfkit.roofline.engines import ENGINES, Engine, RequestMemory, find_engine, request_memory
from perfkit.roofline.experts import ROUTINGS, distinct_rows, hit_share
from perfkit.roofline.footprint import Footprint, footprint
from perfkit.roofline.latency import Prediction, predict
from perfkit.roofline.overheads import NO_OVERHEADS, OVERHEAD_ESTIMATES, Overheads
from perfkit.roofline.roof import Roofs, roofs_for, shipped_roofs
from perfkit.roofline.split import part_of, tp_sizes
from perfkit.roofline.state_traffic import STATE_TRAFFIC, StateTraffic, state_traffic
from perfkit.roofline.traffic import Counts, expected, m_conv, m_replay, ratio_paper, record_bytes, traffic_per_token
from perfkit.roofline.waves import served_tokens_per_s, waves_us
from perfkit.roofline.weights import Weights, weight_bytes
from perfkit.roofline.whole_step import TERMS, StepModel, WholeStep, step_model
from perfkit.roofline.window import best_window, l_star, off_cost

__all__ = [
    "acceptance_list",
    "acceptance_pmf",
    "mean_accepted",
    "pmf_mean",
    "resolve_acceptance",
    "resolve_acceptances",
    "short_acceptance",
    "Chain",
    "committed_chain",
    "decode_chain",
    "verify_chain",
    "phase_chain",
    "period",
    "cycle",
    "flush_rates",
    "Counts",
    "record_bytes",
    "m_conv",
    "m_replay",
    "ratio_paper",
    "traffic_per_token",
    "expected",
    "STATE_TRAFFIC",
    "StateTraffic",
    "state_traffic",
    "l_star",
    "best_window",
    "off_cost",
    "crossover_tokens",
    "kv_bytes_per_token",
    "state_bytes_per_sequence",
    "Roofs",
    "roofs_for",
    "shipped_roofs",
    "Efficiency",
    "efficiency_for",
    "Prediction",
    "predict",
    "Footprint",
    "footprint",
    "part_of",
    "tp_sizes",
    "Weights",
    "weight_bytes",
    "ENGINES",
    "Engine",
    "RequestMemory",
    "find_engine",
    "request_memory",
    "Budget",
    "Capacity",
    "Waves",
    "n_waves",
    "request_budget",
    "requests_that_fit",
    "usable_bytes",
    "ROUTINGS",
    "distinct_rows",
    "hit_share",
    "NO_OVERHEADS",
    "OVERHEAD_ESTIMATES",
    "Overheads",
    "TERMS",
    "StepModel",
    "WholeStep",
    "step_model",
    "served_tokens_per_s",
    "waves_us",
]
