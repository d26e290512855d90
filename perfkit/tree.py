"""Draft trees: parents of a step's positions, and what kernels and byte models derive from them.

A step verifies N *nodes* in topological order: node 0 is the last committed token, the root; nodes 1 … N − 1 are
drafts, each with an earlier node as its parent. A chain is the tree in which every node's parent is the node before.
People write the parents of the drafts, ``0,0,1,1,2``: two children of the root, two of node 1, one of node 2.

A set of nodes is an int32 bitmask, bit l for node l. Nodes are numbered so that parents come first, so a prefix of a
tree is a tree, and an accepted path in ascending order is the order of its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from perfkit.errors import InputError

#: Most positions of a step, of a chain and of a tree.
MAX_NODES = 16
FIELD = "--tree"


@dataclass(frozen=True, slots=True)
class Tree:
    """A draft tree.

    Attributes:
        parents: [N], of each node; −1 for the root.
    """

    parents: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Tree:
        """Return the tree whose drafts have the parents of a list such as ``0,0,1,1,2``.

        Raises:
            InputError: not whole numbers, a parent that does not come before its node, or more than MAX_NODES nodes.
        """
        parents = [-1]
        for node, item in enumerate((part.strip() for part in text.split(",")), start=1):
            if not item.isdecimal():
                raise InputError("not a list of parents", field=FIELD, value=text,
                                 allowed="the parent of each draft, such as 0,0,1,1; the root is 0")  # fmt: skip
            if int(item) >= node:
                raise InputError(f"the parent of node {node} must come before it", field=FIELD, value=item,
                                 allowed=f"0..{node - 1}")  # fmt: skip
            parents.append(int(item))
        if len(parents) > MAX_NODES:
            raise InputError("too many nodes, the root included", field=FIELD, value=len(parents),
                             allowed=f"2..{MAX_NODES}")  # fmt: skip
        return cls(tuple(parents))

    @classmethod
    def chain(cls, n_nodes: int) -> Tree:
        """Return the chain of ``n_nodes`` positions."""
        return cls(tuple(range(-1, n_nodes - 1)))

    def __str__(self) -> str:
        return ",".join(map(str, self.parents[1:]))

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def ancestors(self) -> tuple[int, ...]:
        """Bitmask of each node's ancestors, itself included."""
        masks: list[int] = []
        for node, parent in enumerate(self.parents):
            masks.append((masks[parent] if parent >= 0 else 0) | (1 << node))
        return tuple(masks)

    @property
    def depths(self) -> tuple[int, ...]:
        """Tokens on the path to each node: 1 for the root."""
        return tuple(mask.bit_count() for mask in self.ancestors)

    @property
    def depth(self) -> int:
        """Most tokens that a step can commit."""
        return max(self.depths)

    def prefix(self, n_nodes: int) -> Tree:
        """Return the tree of the first ``n_nodes`` nodes."""
        return Tree(self.parents[:n_nodes])

    def at_depth(self, depth: int) -> tuple[int, ...]:
        """Return the nodes whose path has ``depth`` tokens: where a step may end that commits that many."""
        return tuple(node for node, found in enumerate(self.depths) if found == depth)

    def branch_parents(self) -> frozenset[int]:
        """Return the nodes that a walk in order has to come back to: parents of a node that does not follow them."""
        return frozenset(parent for node, parent in enumerate(self.parents) if parent not in (-1, node - 1))


def last_node(path: int) -> int:
    """Return the last node of an accepted path; −1 of an empty one."""
    return path.bit_length() - 1


@cache
def of_case(text: str | None, draft_len: int) -> Tree:
    """Return the tree of a case: its own, else the chain of its T positions."""
    return Tree.chain(draft_len) if text is None else Tree.parse(text)
