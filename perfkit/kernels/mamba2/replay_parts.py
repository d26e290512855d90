"""Device functions of ReplaySSM verify: the weights of records.

Names: RECORDS committed records of a row, h of them there; DRAFTS draft records j and POSITIONS positions s of the
step, n of each there. A draft of a tree sees its ancestors, of a chain all drafts before it.

Source: paper, Eq. 6, its sum over committed records written as D_s Σ_j (γ_{j+1:h} dt_j k_j·q_s) x_j, so that what a
flush folds and what outputs need are the same weights.
"""

from perfkit.kernels.gates import softplus
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.products import ones, product_exact


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
