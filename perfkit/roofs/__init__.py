"""Measuring a GPU's roofs: bandwidth of DRAM and of L2, rates of matrix products, costs of launches and graphs.

A worker process (mode ``roofs``, :mod:`perfkit.roofs.handler`) times on the GPU; what it found is plain data, with the
fields of a roofs file (:mod:`perfkit.profiles.roofs`), which the parent compares, puts together and writes.
"""

from perfkit.roofs.agreement import Comparison, Difference, combine, compare
from perfkit.roofs.document import check_document, document, found_data
from perfkit.roofs.points import FULL, QUICK, Bench, Costs, Found, Plan, Point, Rate, best_point, measure

__all__ = [
    "FULL",
    "QUICK",
    "Bench",
    "Comparison",
    "Costs",
    "Difference",
    "Found",
    "Plan",
    "Point",
    "Rate",
    "best_point",
    "check_document",
    "combine",
    "compare",
    "document",
    "found_data",
    "measure",
]
