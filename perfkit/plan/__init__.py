"""What to run, and whether it pays: methods, T, L and precision on a GPU under a load, predicted."""

from perfkit.plan.answer import STANDARD, Answer, Ratio, answer, judge, ratio
from perfkit.plan.breakdown import Breakdown, breakdown
from perfkit.plan.breakeven import BreakEven, break_even
from perfkit.plan.drafts import Drafts, parse_drafts
from perfkit.plan.flips import Flip, differs, flips
from perfkit.plan.frames import Frames, frames
from perfkit.plan.gpus import OnGpu, on_gpus
from perfkit.plan.layer import Layer, LayerTimes, make_layer
from perfkit.plan.pareto import Point, front, points, within_limit
from perfkit.plan.question import METHODS, Question, make_question
from perfkit.plan.rows import Block, Row, Table, compare
from perfkit.plan.settings import engine_settings
from perfkit.plan.windows import WindowChoice, window_choice

__all__ = [
    "METHODS",
    "STANDARD",
    "Answer",
    "Block",
    "BreakEven",
    "Breakdown",
    "Drafts",
    "Flip",
    "Frames",
    "Layer",
    "LayerTimes",
    "OnGpu",
    "Point",
    "Question",
    "Ratio",
    "Row",
    "Table",
    "WindowChoice",
    "answer",
    "break_even",
    "breakdown",
    "compare",
    "differs",
    "engine_settings",
    "flips",
    "frames",
    "front",
    "judge",
    "make_layer",
    "make_question",
    "on_gpus",
    "parse_drafts",
    "points",
    "ratio",
    "window_choice",
    "within_limit",
]
