"""Steps that verify drafts beside their oracle: rows of different draft counts, random acceptance, trees.

A row commits some of its last step's tokens and tells so when it next runs. So a step is compared twice: its outputs
with the recurrence run token by token from the row's state, each path of a tree by itself, and, once the acceptance
is drawn, the state that the buffers stand for with the state after the accepted tokens.

What a kernel must not read is NaN: inputs of positions that a row does not have and of rows that sit out, records of
an earlier request. What it must not write holds a number, since NaNs could come of those. The acceptance of other steps
is wrong on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from perfkit.checker import Checker, Mask, Wrong
from perfkit.method import Case, Config, Point
from perfkit.tolerance import STEP_TOLERANCE, excess_error, half_ulp, output_size
from perfkit.tree import Tree, last_node

Ints = NDArray[np.int64]
#: Prefix of the buffers in which the layer hands a step the inputs of the step before once more.
PAST = "past_"
#: What outputs hold before they are written; exact in every dtype.
UNTOUCHED = 1536.0
#: How often all rows verify T positions; in the other steps some rows have fewer.
ALL_T_EVERY = 3


class VerifyChecker(Checker):
    """A case of T > 1 positions a step with its oracle.

    Attributes:
        drafts: positions of each row in the next step, [batch].
        last_drafts: those of the last step in which a row ran, [batch].
        pending: tokens that each row's last step committed, [batch]; 0 for a row just handed over.
        paths: bitmask of the nodes that they are, [batch].
    """

    def _begin(self) -> None:
        batch, inputs = self.case.batch, self.session.family.inputs(self.case)
        self.tree: Tree = self.case.nodes
        #: The trees of rows of 0, 1, …, T positions: a prefix of a tree is a tree.
        self._prefixes = [self.tree.prefix(n) for n in range(self.case.draft_len + 1)]
        self._depths = np.array([0, *(tree.depth for tree in self._prefixes[1:])])
        self._ends = [[tree.at_depth(depth) for depth in range(tree.depth + 1)] for tree in self._prefixes[1:]]
        self._masks = self.tree.ancestors
        self.drafts = np.full(batch, self.case.draft_len)
        self.last_drafts = self.drafts
        self.pending = np.zeros(batch, dtype=int)
        self.paths = np.zeros(batch, dtype=int)
        self._was = self.pending
        self._flushed: Mask = np.zeros(batch, dtype=bool)
        self._forced: int | None = None
        per_token = (batch, self.case.draft_len)
        #: What a token brings along, in memory of its own.
        self._tokens = [name for name, b in inputs.items() if b.role == "input" and b.storage is None
                        and b.shape[:2] == per_token and self.tensors[name].is_floating_point()]  # fmt: skip
        self.past = {PAST + name: torch.full_like(self.tensors[name], float("nan")) for name in self._tokens
                     if PAST + name in self.tensors}  # fmt: skip

    # The view of the compared rows.

    def _view(self) -> dict[str, torch.Tensor]:
        return self._view_at(self.pending, self.paths)

    def _view_at(self, accepted: Ints, paths: Ints) -> dict[str, torch.Tensor]:
        """Return the compared rows' tensors as if their last step had committed that."""
        view, rows = super()._view(), self.rows
        steps = self.tensors["accepted"].shape[0]
        for name in view:
            if name in ("drafts", "ancestors") or name.startswith(PAST):
                view[name] = view[name][rows]
        view["accepted"] = self._column(accepted)[rows].expand(steps, -1)
        if "path" in view:
            view["path"] = self._column(paths)[rows].expand(steps, -1)
        return view

    def _stands_for(self, accepted: Ints, paths: Ints) -> torch.Tensor:
        return torch.as_tensor(self.method.committed(self.case, self._view_at(accepted, paths), self.index))

    def _column(self, values: Ints) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.int32, device=self.home.device)

    # One step.

    def flushes(self) -> Mask:
        """Return which rows flush in their next step, by the rule for verify: h + depth > L, the depth of its tree."""
        if not self.method.windowed:
            return np.zeros(self.case.batch, dtype=bool)
        return np.asarray(self.h + self._depths[self.drafts] > (self.case.window or 2**31))

    def _prepare(self, active: Mask) -> None:
        super()._prepare(active)
        self.tensors["out"].fill_(UNTOUCHED)
        self._was = self.pending.copy()
        self.drafts = self._draw_drafts()
        tensors, device = self.tensors, self.home.device
        tensors["drafts"].copy_(self._column(self.drafts))
        unread = np.arange(self.case.draft_len) >= self.drafts[:, None]
        unread |= ~active[:, None]
        for name in self._tokens:
            mask = torch.as_tensor(unread, device=device)
            tensors[name].masked_fill_(mask.view(*mask.shape, *[1] * (tensors[name].dim() - 2)), float("nan"))
        self._restore_past()
        at = self._launched_as() % tensors["accepted"].shape[0]
        n = self.case.draft_len
        tensors["accepted"].copy_(self._column(self.pending % n + 1))  # never what is pending
        tensors["accepted"][at].copy_(self._column(self.pending))
        if "path" in tensors:
            others = np.array([self._masks[(last_node(int(path)) + 1) % n] for path in self.paths])
            tensors["path"].copy_(self._column(others))
            tensors["path"][at].copy_(self._column(self.paths))

    def _draw_drafts(self) -> Ints:
        n, batch = self.case.draft_len, self.case.batch
        drafts = np.full(batch, n)
        if self.index % ALL_T_EVERY:
            # Where T would flush, often so few that the row does not: it then holds more records than L - T.
            room = self._room()
            fewer = self.random.random(batch) < np.where(room < n, 0.8, 0.4)
            drafts = np.where(fewer, self.random.integers(1, np.clip(room, 1, n) + 1), drafts)
        if self._forced is not None:
            drafts[self._forced] = n
        return drafts

    def _room(self) -> Ints:
        """Return how many positions of a chain each row may have without a flush, T at most."""
        n = self.case.draft_len
        limit = self.case.window if self.method.windowed and self.case.window else 2**31
        return np.asarray(np.minimum(limit - self.h, n))

    def _draw_accepted(self, row: int) -> tuple[int, int]:
        """Return what a row commits of its step: how many tokens, and the nodes they are."""
        drafts = int(self.drafts[row])
        depth = int(self._depths[drafts])
        turn = (self.index + row) % 4
        accepted = (depth, 1, max(depth - 1, 1), int(self.random.integers(1, depth + 1)))[turn]
        if row == self._forced:
            accepted = 1
        ends = self._ends[drafts - 1][accepted]
        return accepted, self._masks[ends[int(self.random.integers(len(ends)))]]

    def _advance(self, active: Mask, flush: Mask) -> None:
        for row in np.flatnonzero(active):
            self.pending[row], self.paths[row] = self._draw_accepted(int(row))
        self.last_drafts = np.where(active, self.drafts, self.last_drafts)
        self._flushed = flush & active
        held = np.where(flush, 0, self.h) if self.method.windowed else 0
        self.h = np.where(active, held + self.pending, self.h)
        on = torch.as_tensor(active, device=self.home.device)
        for name, kept in self.past.items():
            new = self.tensors[name.removeprefix(PAST)]
            kept.copy_(torch.where(on.view(-1, *[1] * (kept.dim() - 1)), new, kept))
        self._restore_past()

    def _restore_past(self) -> None:
        for name, kept in self.past.items():
            self.tensors[name].copy_(kept)

    def _forget(self, row: int) -> None:
        super()._forget(row)
        self.pending[row] = self.paths[row] = 0
        for name, kept in self.past.items():
            kept[row] = self.tensors[name][row] = float("nan")

    def _point(self, row: int) -> Point:
        tree, path = self._prefixes[int(self.drafts[row])], int(self.paths[row])
        rereads = 0
        if self.case.tree is not None:
            rereads = len(tree.branch_parents() - {max(last_node(path), 0)})
        return replace(super()._point(row), draft_len=len(tree), accepted=int(self.pending[row]), rereads=rereads,
                       last_draft_len=int(self.last_drafts[row]))  # fmt: skip

    def _due(self, on: torch.Tensor, flush: Mask) -> tuple[torch.Tensor, torch.Tensor]:
        may, must = super()._due(on, flush)
        if not self.method.windowed:  # a row that has committed nothing yet has nothing to bring up to date
            must = must & torch.as_tensor(self._was > 0, device=on.device)[self.rows]
        return may, must

    # The oracle.

    def _compare(self, on: torch.Tensor, flush: Mask, before: torch.Tensor) -> None:
        where = f"step {self.index - 1}"
        written = self._written(on)
        out = self.tensors["out"][self.rows]
        if not (out[~on] == UNTOUCHED).all():
            raise Wrong(f"{where}: output of a row without a slot was written")
        if not (out[~written] == UNTOUCHED).all():
            raise Wrong(f"{where}: output of a position that a row does not have was written")
        found = self.committed()
        expected, sizes, state, slack = self._expected(on, written, found)
        self.drift, _ = self._follow(self.drift, on)
        self._compare_numbers(where, on, written, expected, sizes, state, found, slack)
        self._compare_checkpoint(where, on, flush, before)
        self.anchor = found

    def _written(self, on: torch.Tensor) -> torch.Tensor:
        """Return which positions of the compared rows have outputs, [rows, T]."""
        positions = torch.arange(self.case.draft_len, device=on.device)
        return on[:, None] & (positions < self._column(self.drafts)[self.rows][:, None])

    def _expected(
        self, on: torch.Tensor, written: torch.Tensor, found: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return outputs [rows, T, …] and states [rows, …] that a step should have, of each row the nearest, and slack.

        Second come the outputs' sizes [rows, T, n_v_heads].
        A state of half precision is rounded where a method stores it, so what its outputs start from may be rounded or
        not; :meth:`_roundings` says which values are allowed. The states' slack is that of :meth:`_follow`.
        """
        out, dtype = self.tensors["out"][self.rows].double(), self.tensors["out"].dtype
        last = torch.as_tensor([last_node(int(self.paths[row])) for row in self.rows.tolist()], device=on.device)
        row = torch.arange(len(self.rows), device=on.device)
        wide = on[:, None, None, None]
        runs = [self._walk(start, stored) for start, stored in self._roundings(on)]
        outputs = [torch.where(written[..., None, None], outs, 0.0) for _, outs in runs]
        states = [torch.where(wide, walked[row, last.clamp(min=0)], self.anchor) for walked, _ in runs]
        shown = torch.where(written[..., None, None], out, 0.0)
        _, slack = self._follow(self.anchor, on)
        inputs, walked = self._inputs(), runs[0][0]
        sizes = [output_size(walked[:, node], self.family.query(self.family.token(inputs, node)))
                 for node in range(self.case.draft_len)]  # fmt: skip
        return (self._nearest(shown, outputs, dtype, self._factor("out"), torch.zeros_like(out)),
                torch.stack(sizes, 1),
                self._nearest(found, states, self.tensors["state"].dtype, self._factor("state"), slack),
                slack)  # fmt: skip

    def _walk(self, start: torch.Tensor, stored: Mapping[int, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each node's state and output from its parent's state: [rows, T, H, d_v, d_k], [rows, T, H, d_v].

        ``stored`` holds states of nodes as a method that walks in order reads them again for a later child.
        """
        inputs = self._inputs()
        states: list[torch.Tensor] = []
        outs: list[torch.Tensor] = []
        for node, parent in enumerate(self.tree.parents):
            before = start if parent < 0 else states[parent]
            if parent != node - 1:
                before = stored.get(parent, before)
            state, out = self.family.reference(before, self.family.token(inputs, node))
            states.append(state)
            outs.append(out)
        return torch.stack(states, 1), torch.stack(outs, 1)

    def _follow(self, state: torch.Tensor, on: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return states advanced by the accepted tokens of the last step, and their slack for rounded records.

        Records that were derived from a state before it was rounded and stored do not make up for that.
        """
        slack = torch.zeros_like(state)
        if self.method.rounds(self.case) is not None:
            flushed = torch.as_tensor(self._flushed, device=on.device)[self.rows] & on
            stored = half_ulp(state, self.tensors["state"].dtype, self._factor("state"))
            slack = torch.where(flushed[:, None, None, None], stored, slack)
        inputs, paths = self._inputs(), torch.as_tensor(self.paths, device=on.device)[self.rows]
        for node in range(self.case.draft_len):
            mine = on & ((paths >> node) % 2 == 1)
            if mine.any():
                token, wide = self.family.token(inputs, node), mine[:, None, None, None]
                slack = torch.where(wide, self._slack(state, token, slack), slack)
                state = torch.where(wide, self.family.reference(state, token)[0], state)
        return state, slack

    def _roundings(self, on: torch.Tensor) -> list[tuple[torch.Tensor, dict[int, torch.Tensor]]]:
        """Return what a step may have started from: the states before it, and those as the buffers now hold them.

        What the buffers stand for when the step committed nothing is the state from which it started, where the method
        keeps that; what they stand for after a node to which a walk comes back is what it read there. Both are taken
        only where they are the right state, rounded.
        """
        plain: tuple[torch.Tensor, dict[int, torch.Tensor]] = (self.anchor, {})
        if self.case.state_dtype in ("float32", "float64"):
            return [plain]
        nothing = np.zeros_like(self.pending)
        base = self._rounded(self._stands_for(nothing, nothing), self.anchor, on)
        found = [plain, (base, {})]
        again = self.tree.branch_parents() if self.case.tree is not None else frozenset()
        if again:
            states, _ = self._walk(self.anchor, {})
            stored: dict[int, torch.Tensor] = {}
            for node in sorted(again):
                mask = self._masks[node]
                held = self._stands_for(np.full_like(nothing, mask.bit_count()), np.full_like(nothing, mask))
                has = on & (self._column(self.drafts)[self.rows] > node)
                stored[node] = self._rounded(held, states[:, node], has)
                states, _ = self._walk(self.anchor, stored)
            found.append((self.anchor, stored))
        return found

    def _rounded(self, held: torch.Tensor, exact: torch.Tensor, on: torch.Tensor) -> torch.Tensor:
        """Return ``held`` for the rows in which it is ``exact``, rounded to the state's dtype; elsewhere ``exact``."""
        errors = self._row_errors(
            held, exact, self.tensors["state"].dtype, self._factor("state"), torch.zeros_like(exact)
        )
        return torch.where((on & (errors <= STEP_TOLERANCE))[:, None, None, None], held, exact)

    @staticmethod
    def _row_errors(
        found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, factor: float, slack: torch.Tensor
    ) -> torch.Tensor:
        """Return each row's :func:`perfkit.tolerance.excess_error`; infinite where there are NaNs."""
        beyond = ((found - expected).abs() - half_ulp(expected, dtype, factor) - slack).clamp(min=0.0).flatten(1)
        error: torch.Tensor = torch.linalg.vector_norm(beyond, dim=1)
        error = error / torch.linalg.vector_norm(expected.flatten(1), dim=1).clamp(min=1e-30)
        return torch.nan_to_num(error, float("inf"))

    def _nearest(
        self, found: torch.Tensor, options: list[torch.Tensor], dtype: torch.dtype, factor: float, slack: torch.Tensor
    ) -> torch.Tensor:
        """Return for each row that of the ``options`` which is nearest to what was found."""
        errors = torch.stack([self._row_errors(found, option, dtype, factor, slack) for option in options])
        rows = torch.arange(len(found), device=found.device)
        nearest: torch.Tensor = torch.stack(options)[errors.argmin(0), rows]
        return nearest

    # Perturbation.

    def remembered(self) -> list[str]:
        """Return the buffers that a step must read: the state, records, and the inputs of the step before."""
        records = [name for name, b in self.session.buffers.items() if b.role == "record"]
        return ["state", *records, *self.past]

    def _hold_record(self, row: int, name: str) -> None:
        """Commit one token of several: a step that has to recover its state does so from what was kept."""
        self._forced = row
        self.step()
        self._forced = None

    def _part(self, row: int, name: str) -> torch.Tensor:
        return self.past[name][row] if name in self.past else super()._part(row, name)

    def _row_error(self, mine: torch.Tensor) -> float:
        """Return the worse error of outputs and committed states."""
        written, found = self._written(mine), self.committed()
        expected, _, state, slack = self._expected(mine, written, found)
        dtype = self.tensors["state"].dtype
        return max(self._output_error(expected, written),
                   excess_error(found[mine], state[mine], dtype, self._factor("state"), slack[mine]))  # fmt: skip


def make_checker(case: Case, device: str, config: Config | None = None, seed: int = 0) -> Checker:
    """Return the checker of the case's phase."""
    return (Checker if case.phase == "decode" else VerifyChecker)(case, device, config, seed)
