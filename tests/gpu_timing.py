"""Run by test_steptimes.py on a GPU: single steps by stamps beside the times by events, as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import mean

import torch

from perfkit.beside import flush_times, single_steps
from perfkit.measure import CudaClock, interleave
from perfkit.method import Case
from perfkit.pacing import graph_steps
from perfkit.priming import prime
from perfkit.session import Session
from perfkit.shape import Shape
from perfkit.stats import Stopping


def main() -> None:
    clock, found = CudaClock(), {}
    aligned = Case(Shape("mamba2", 128, 8, 64, 128), "replay", 256, 16)
    for case in (aligned, replace(aligned, flush_phase="staggered")):
        session = Session(case, "cuda")
        prime(session, 0)
        saved = session.snapshot()
        session.run(range(2))
        subject = session.subject("case", range(graph_steps(case, session.method, 1)), saved)
        events = interleave([subject], Stopping(min_samples=20, max_samples=20), clock)["case"].interval().value
        columns, samples = single_steps(session, saved, clock)
        found[f"{case.flush_phase}_p99_us"] = columns["time_p99_us"]
        if case is aligned:
            found |= {"events_us": events, "mean_us": mean(samples["step_us"]), "stamp_us": samples["stamp_us"][0]}
            session.restore(saved)
            found["flush_us"] = flush_times(session, saved, clock, events)["time_flush_us"]
    print(json.dumps(found))


if __name__ == "__main__":
    with torch.no_grad():
        main()
