"""Matrix products to FP32's accuracy on tensor cores that take BF16, and their factors: rows of keys, slices.

With SPLIT, an FP32 factor is split into BF16 terms and multiplied by exact BF16 inputs. Two terms leave 2⁻¹⁷, enough
for outputs that are rounded to BF16; three hold all of FP32, which states and exponents need. Without SPLIT (inputs in
FP32 or FP16) products are FP32 multiply-adds.
"""

from perfkit.kernels.lang import tl, triton


@triton.jit
def halves(x):
    """Two BF16 terms of an FP32 x: its upper 16 bits as they are, and the rest rounded.

    The first term is cut off, not rounded: taking bits is cheap, and converting back what was rounded is not.
    """
    bits = x.to(tl.int32, bitcast=True) & -65536
    high = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return high, (x - bits.to(tl.float32, bitcast=True)).to(tl.bfloat16)


@triton.jit
def thirds(x):
    """Three BF16 terms of an FP32 x, all of it: its upper 16 bits as they are, and the rest in halves."""
    bits = x.to(tl.int32, bitcast=True) & -65536
    high = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    middle, low = halves(x - bits.to(tl.float32, bitcast=True))
    return high, middle, low


@triton.jit
def product(a, b, SPLIT: tl.constexpr):
    """a·b of an FP32 a and a b in the input dtype; a in two terms."""
    if SPLIT:
        high, low = halves(a)
        found = tl.dot(high, b, tl.dot(low, b))
    else:
        found = tl.dot(a, b.to(tl.float32), input_precision="ieee")
    return found


@triton.jit
def product_onto(acc, a, b, SPLIT: tl.constexpr):
    """acc + a·b of an a in the input dtype and an FP32 b; b in two terms."""
    if SPLIT:
        high, low = halves(b)
        found = tl.dot(a, high, tl.dot(a, low, acc))
    else:
        found = acc + tl.dot(a.to(tl.float32), b, input_precision="ieee")
    return found


@triton.jit
def product_exact(a, b, SPLIT: tl.constexpr):
    """a·b of an FP32 a and a b in the input dtype, to FP32's accuracy; a in three terms."""
    if SPLIT:
        high, middle, low = thirds(a)
        found = tl.dot(high, b, tl.dot(middle, b, tl.dot(low, b)))
    else:
        found = tl.dot(a, b.to(tl.float32), input_precision="ieee")
    return found


@triton.jit
def ones(condition, SPLIT: tl.constexpr):
    """1 where a condition holds, else 0, in the dtype of a product's second factor."""
    return condition.to(tl.bfloat16) if SPLIT else condition.to(tl.float32)


@triton.jit
def of_head(values, mine):
    """The slice of one head of values [heads, …] that are in registers."""
    if len(values.shape) == 3:
        found = tl.sum(tl.where(mine[:, None, None], values, 0.0), axis=0)
    elif len(values.shape) == 2:
        found = tl.sum(tl.where(mine[:, None], values, 0.0), axis=0)
    else:
        found = tl.sum(tl.where(mine, values, 0.0), axis=0)
    return found


@triton.jit
def load_rows(ptr, starts, live, N: tl.constexpr):
    """Rows [n, N] from ``ptr`` + ``starts`` on, zeros where not ``live``; loaded as [n, 2, N / 2].

    The compiler gives all loads of one shape as many elements a thread as the widest vector among them has. A tile of
    an FP32 state beside keys of the same shape in BF16 would be loaded with 32 bytes a thread, by two loads that each
    take half of every sector: twice the traffic from L2. So rows of keys have a shape of their own.
    """
    c = tl.arange(0, 2)[:, None] * (N // 2) + tl.arange(0, N // 2)[None, :]
    found = tl.load(ptr + starts[:, None, None] + c[None, :, :], mask=live[:, None, None], other=0.0)
    return tl.reshape(found, [starts.shape[0], N])


@triton.jit
def store_rows(ptr, starts, rows, live, N: tl.constexpr):
    """Store what :func:`load_rows` returned."""
    c = tl.arange(0, 2)[:, None] * (N // 2) + tl.arange(0, N // 2)[None, :]
    tl.store(ptr + starts[:, None, None] + c[None, :, :], tl.reshape(rows, [starts.shape[0], 2, N // 2]),
             mask=live[:, None, None])  # fmt: skip
