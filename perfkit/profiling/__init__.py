"""Runs that read counters: what is counted, running it under Nsight Compute into a journal, and its tables."""

from perfkit.profiling.plan import asked_alone, groups_of, launches_planned, method_of, worst
from perfkit.profiling.run import COUNTERS, Profiler, conclude

__all__ = ["COUNTERS", "Profiler", "asked_alone", "conclude", "groups_of", "launches_planned", "method_of", "worst"]
