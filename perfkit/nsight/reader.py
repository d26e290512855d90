"""A child process that reads a report with Nsight Compute's own module: ``python -m perfkit.nsight.reader DIR REPORT``.

``ncu_report`` loads a native library of the vendor's; here it can fail in any way without taking a run with it. One
JSON document on stdout: a list of launches in order, each {kernel, ranges, values: {metric: [value, unit]}}.

Source: Nsight Compute, Python Report Interface.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any


def launches(context: Any) -> Iterator[dict[str, Any]]:
    """Yield the launches of a loaded report."""
    for at in range(context.num_ranges()):
        results = context.range_by_idx(at)
        for index in range(results.num_actions()):
            action = results.action_by_idx(index)
            values = {}
            for name in action.metric_names():
                metric = action.metric_by_name(name)
                value = metric.value() if metric is not None else None
                if isinstance(value, (int, float)):
                    values[name] = [value, metric.unit()]
            yield {"kernel": action.name(), "ranges": ranges(action), "values": values}


def ranges(action: Any) -> list[str]:
    """Return the names of the push/pop ranges around a launch, of all domains, outermost first in each."""
    state = action.nvtx_state()
    if state is None:
        return []
    return [str(name) for domain in state.domains() for name in state.domain_by_id(domain).push_pop_ranges()]


def main(folder: str, report: str) -> None:
    """Print the launches of ``report``; ``folder`` holds ``ncu_report``."""
    sys.path.insert(0, folder)
    import ncu_report  # type: ignore[import-not-found]

    print(json.dumps(list(launches(ncu_report.load_report(report)))))


if __name__ == "__main__":
    main(*sys.argv[1:3])
