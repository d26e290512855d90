"""Two runs compared by the ratio of each case to its control, the one figure that holds across runs.

What is compared. Times depend on clocks, driver, temperature and on which GPU of a model was there. In one run a case
and its control were timed in interleaved rounds of one process, and their ratio is free of much of that. So a case's
time over its control's in NEW is compared with the same in BASE; times themselves are shown and never judged. The
control has the ratio 1 by definition: its time is reported, with a warning where it moved by more than what counts as
the same, for a change of all methods alike cannot show in ratios, and a slower control makes the others look faster.

The test. Ratios are taken round by round within a run, and the two runs are independent: a t-test of trimmed means of
log ratios, of variances that may differ (:mod:`perfkit.compare.evidence`). Where a run ships no samples, the intervals
that its rows store take their place.

What samples do not show. A run draws things that all its samples share: where memory lies, which configuration a
search took, what else the machine did; and samples that follow each other are more alike than independent ones. Runs of
the same code so differ by more than their samples say. By how much cannot be learned from two runs, and the spread over
their cases does not tell either, since one kernel's change moves all its cases together. It is allowed for as a floor:
0.5 % (``--floor``), or a group's A/A difference where that is larger. The test is of a change beyond the floor, and
intervals are wider by it on both sides.

Many cases. Holm's correction holds the chance that two runs of the same code, which differ by no more than the floor,
slow drifts of a ratio within a run included, raise any alarm at 1 % (:mod:`perfkit.compare.verdicts`).

A regression, for ``--fail-on-regression PCT``: a case that is slower after the correction, by more than PCT in the
middle of its interval; or a case that was ok in BASE and that NEW tried and has no time of. A case that NEW was not
asked for is reported and is none. What does not fail and may be above PCT by its interval is named as undecided.

A case that is ok in both runs and has no ratio in one of them, since its group's control is not there or has no time,
is ``missing`` too and fails no gate by itself: it is named with the reason, and the last line says of how many groups
nothing was compared. Where nothing at all was, the runs are refused as bad input.

Neither torch nor triton's compiler is imported.
"""

from perfkit.compare.comparison import Compared, Comparison, Control, Side
from perfkit.compare.document import document
from perfkit.compare.evidence import Change, Evidence
from perfkit.compare.load import Run, load
from perfkit.compare.match import compare
from perfkit.compare.text import COLUMNS, TITLE, lines, markdown, rows
from perfkit.compare.verdicts import ALPHA, FLOOR, SAME, VERDICTS, holm

__all__ = [
    "ALPHA",
    "COLUMNS",
    "FLOOR",
    "SAME",
    "TITLE",
    "VERDICTS",
    "Change",
    "Compared",
    "Comparison",
    "Control",
    "Evidence",
    "Run",
    "Side",
    "compare",
    "document",
    "holm",
    "lines",
    "load",
    "markdown",
    "rows",
]
