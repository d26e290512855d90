"""Drafts of a step and the paths between them: what a row verifies, has committed, and which drafts a position sees."""

from perfkit.kernels.lang import tl, triton


@triton.jit
def committed_by(drafts_ptr, took_ptr, ancestors_ptr, p, TREE: tl.constexpr):
    """Positions of a row's step, tokens that its step before committed, and most tokens that this one can commit."""
    n = tl.load(drafts_ptr)
    took = tl.load(took_ptr)
    depth = n
    if TREE:
        took = tl.sum((took >> p) & 1, axis=0)
        masks = tl.load(ancestors_ptr + p, mask=p < n, other=0)
        depth = tl.max(tl.sum((masks[None, :] >> p[:, None]) & 1, axis=0), axis=0)
    return n, took, depth


@triton.jit
def paths(ancestors_ptr, n, j, p, TREE: tl.constexpr):
    """Which drafts a position sees, and which drafts come after which.

    on_path[l, s]: draft l comes before position s on its path, or is s. later[j, l]: l comes after j wherever both
    are on a path. ``ancestors_ptr``: the row's masks, [T] int32, read for a tree.
    """
    if TREE:
        mask_p = tl.load(ancestors_ptr + p, mask=p < n, other=0)
        mask_j = tl.load(ancestors_ptr + j, mask=j < n, other=0)
        on_path = (((mask_p[None, :] >> j[:, None]) & 1) == 1) & (p < n)[None, :]
        later = ((mask_j[:, None] >> j[None, :]) & 1) == 0
    else:
        on_path = (j[:, None] <= p[None, :]) & (p < n)[None, :]
        later = j[None, :] > j[:, None]
    return on_path, later


@triton.jit
def last_node(nodes, MAX: tl.constexpr):
    """Highest bit of a bitmask of MAX nodes at most; −1 of an empty one."""
    last = -1
    for node in tl.static_range(MAX):
        last += ((nodes >> node) > 0).to(tl.int32)
    return last
