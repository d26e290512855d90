"""Device functions of ReplaySSM verify: split products, paths of drafts, weights of records.

Names: RECORDS committed records of a row, h of them there; DRAFTS draft records j and POSITIONS positions s of the
step, n of each there. A draft of a tree sees its ancestors, of a chain all drafts before it.

Tensor cores take BF16: with SPLIT, an FP32 factor is split into BF16 terms and multiplied by exact BF16 inputs. Two
terms leave 2⁻¹⁷, enough for outputs that are rounded to BF16; three hold all of FP32, which states and exponents need.
Without SPLIT (inputs in FP32 or FP16) products are FP32 multiply-adds.

Source: paper, Eq. 6, its sum over committed records written as D_s Σ_j (γ_{j+1:h} dt_j k_j·q_s) x_j, so that what a
flush folds and what outputs need are the same weights.
"""

from perfkit.kernels.gates import softplus
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
        bits = a.to(tl.int32, bitcast=True) & -65536
        high = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
        middle, low = halves(a - bits.to(tl.float32, bitcast=True))
        found = tl.dot(high, b, tl.dot(middle, b, tl.dot(low, b)))
    else:
        found = tl.dot(a, b.to(tl.float32), input_precision="ieee")
    return found


@triton.jit
def ones(condition, SPLIT: tl.constexpr):
    """1 where a condition holds, else 0, in the dtype of a product's second factor."""
    return condition.to(tl.bfloat16) if SPLIT else condition.to(tl.float32)


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
def key_products(k, q, SPLIT: tl.constexpr):
    """K·Q [records, positions] of k [records, d_k] and q [d_k, positions] in the input dtype."""
    if SPLIT:
        found = tl.dot(k, q)
    else:
        found = tl.dot(k.to(tl.float32), q.to(tl.float32), input_precision="ieee")
    return found


@triton.jit
def draft_weights(dt_ring, dt_ptr, a, bias_ptr, skip_ptr, kq, on_path, later, place, j, p, n, stride_dt,
                  N_V: tl.constexpr, HEADS: tl.constexpr, DRAFTS: tl.constexpr, POSITIONS: tl.constexpr,
                  SPLIT: tl.constexpr):  # fmt: skip
    """M [heads, drafts, positions] and D [heads, positions]; the drafts' dt go to ``place`` of the ring.

    M is W ⊙ (KᵀQ) with dt of the values, and the D skip where a draft is the position itself; D the decays of the
    paths. All heads of a program at once: each waits for its loads and for exp, and they wait together.
    """
    i = tl.arange(0, HEADS)
    live = (j < n)[None, :]
    raw = tl.load(dt_ptr + j[None, :] * stride_dt + i[:, None], mask=live, other=0.0).to(tl.float32)
    skip = tl.load(skip_ptr + i)
    dt = tl.where(live, softplus(raw + tl.load(bias_ptr + i)[:, None]), 0.0)  # [heads, drafts]
    tl.store(dt_ring + place[None, :] * N_V + i[:, None], dt, mask=live)
    g = dt * a[:, None]
    # exponent[j, s] = Σ g of the drafts after j on the path to s: a product with zeros and ones, so that no exponent
    # is a difference of sums.
    terms = tl.reshape(tl.where(later[None, :, :], g[:, None, :], 0.0), [HEADS * DRAFTS, DRAFTS])
    seen = ones(on_path, SPLIT)
    exponent = product_exact(terms, seen, SPLIT)
    weight = tl.exp(tl.reshape(exponent, [HEADS, DRAFTS, POSITIONS])) * dt[:, :, None] * kq[None, :, :]
    weight = tl.where(on_path[None, :, :], weight, 0.0)
    weight += tl.where((j[:, None] == p[None, :])[None, :, :], skip[:, None, None], 0.0)
    return weight, tl.exp(product_exact(g, seen, SPLIT))


@triton.jit
def folds(dt_ring, a, at, j, h, N_V: tl.constexpr, HEADS: tl.constexpr, SPLIT: tl.constexpr):
    """Weights γ_{j+1:h} dt_j of the committed records [heads, records], and the checkpoint's decay γ_h [heads]."""
    i = tl.arange(0, HEADS)
    dt = tl.load(dt_ring + at[None, :] * N_V + i[:, None], mask=(j < h)[None, :], other=0.0)
    g = dt * a[:, None]
    later = ones(j[:, None] > j[None, :], SPLIT)  # [record after it, record]
    return dt * tl.exp(product_exact(g, later, SPLIT)), tl.exp(tl.sum(g, axis=1))


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
