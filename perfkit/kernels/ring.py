"""The replay buffer's cursor: where a head's ring starts and how many committed records it holds.

A cursor is one int32 per slot and value head: bits 15..29 ``origin`` (the ring position of the first committed
record), bits 0..14 ``h``; bit 30 is a mark that one launch leaves for the next one of its step. Every value head owns
its cursor, so no program ever reads what a sibling writes in the same launch: a step needs no commit launch and no
double buffering, and a row that sits out a step (its slot is null) keeps its place. The cost is 4 bytes per head that
a launch reads for the rows that it serves, and that one or two write: 1/8192 of an FP32 state of 64 x 128 each time.

A launch that only looks for rows that flush reads a cursor of the row instead (:mod:`perfkit.kernels.flushing`). It is
that of the first head, without a mark, and is written by the launch that looks at all heads.
"""

from perfkit.kernels.lang import tl, triton

#: Longest ring that a cursor can address.
MAX_SLOTS = 2**15 - 1
_H_BITS = 15
_MASK = 2**15 - 1


def pack(h: int, origin: int = 0) -> int:
    """Return the cursor value of a ring that starts at ``origin`` and holds ``h`` records."""
    return (origin << _H_BITS) | h


def committed_h(cursor):  # int or tensor
    """Return h of a cursor value or tensor of them."""
    return cursor & _MASK


def origin_of(cursor):  # int or tensor
    """Return the origin of a cursor value or tensor of them."""
    return (cursor >> _H_BITS) & _MASK


# Device functions spell the bits out: 15 of h, 15 of origin.


@triton.jit
def cursor_load(cursor_ptr, HEADS: tl.constexpr):
    """The cursor of HEADS heads of a row, which agree; the program that reads them owns them and will write them."""
    cursor = tl.load(cursor_ptr)
    for i in tl.static_range(1, HEADS):
        cursor = tl.maximum(cursor, tl.load(cursor_ptr + i))
    tl.debug_barrier()  # every warp has read the cursor before one of them writes the next one
    return cursor


@triton.jit
def cursor_h(cursor):
    """h of a cursor."""
    return cursor & 0x7FFF


@triton.jit
def cursor_origin(cursor):
    """Origin of a cursor."""
    return (cursor >> 15) & 0x7FFF


@triton.jit
def cursor_pack(h, origin):
    """A cursor from its parts."""
    return h | (origin << 15)


@triton.jit
def cursor_keep(cursor_ptr, row_cursor_ptr, slot, first_head, cursor, N_V: tl.constexpr, HEADS: tl.constexpr):
    """Store the cursor of HEADS heads of a row, and with the first head that of the row."""
    heads = cursor_ptr + slot * N_V + first_head + tl.arange(0, HEADS)
    tl.store(heads, tl.full([HEADS], 0, tl.int32) + cursor)
    tl.store(row_cursor_ptr + slot, cursor, mask=first_head == 0)


@triton.jit
def cursor_marked(cursor):
    """Whether a launch marked the cursor for the next launch of its step: bit 30."""
    return cursor >= 0x40000000


@triton.jit
def cursor_with_mark(cursor):
    """A cursor without a mark, with it."""
    return cursor | 0x40000000


@triton.jit
def cursor_without_mark(cursor):
    """A cursor, its mark taken off."""
    return cursor & 0x3FFFFFFF


@triton.jit
def wrap(position, ring):
    """``position`` modulo ``ring`` for positions below 2·ring, without a division."""
    return tl.where(position >= ring, position - ring, position)
