"""Device functions of ReplaySSM verify for Gated DeltaNet: corrections of drafts as one small matrix per head.

A step needs the checkpoint times T keys and T queries. The *columns* of a program are both, side by side: COLS = 2 P
for P positions, the key of position s in column s and its query in column P + s. Drafts are counted to COLS as well.
With base = S_h [K_d | Q_d] over normalized columns, corrections U and outputs O of a tile of rows follow from the
values V by

    R = V − base_K D        [U | O] = R M + [0 | base_Q D]        M = B (I + A B)⁻¹ [I | W ⊙ (K_dᵀ Q)]

where A is strictly upper triangular in the order of the drafts (Eq. 10), B = diag(β) and D the decays of the paths. M
[drafts, COLS] belongs to a head and not to its rows, so it is solved for once, by substitution: a Neumann series would
lose digits where keys are correlated.

Source: paper, Eq. 9 to 11; trees by the ancestors of a draft instead of all drafts before it.
"""

from perfkit.kernels.gates import inverse_norm, sigmoid, softplus
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.products import halves, ones, product_exact


@triton.jit
def columns(k_ptr, q_ptr, e, n, stride_k, stride_q, D_K: tl.constexpr, POSITIONS: tl.constexpr):
    """Keys and queries of the drafts as columns [d_k, COLS], and their inverse norms, the queries' with the scale."""
    c = tl.arange(0, D_K)
    s = e % POSITIONS
    start = tl.where(e < POSITIONS, k_ptr + s * stride_k, q_ptr + s * stride_q)
    x = tl.load(start[None, :] + c[:, None], mask=(s < n)[None, :], other=0.0)
    wide = x.to(tl.float32)
    inverse = inverse_norm(tl.sum(wide * wide, axis=0))
    scale: tl.constexpr = D_K**-0.5
    return x, tl.where(e < POSITIONS, inverse, inverse * scale)


@triton.jit
def raw_products(k, x, SPLIT: tl.constexpr):
    """K·X [records, COLS] of k [records, d_k] and x [d_k, COLS] as they came, and the inverse norms of k."""
    wide = k.to(tl.float32)
    if SPLIT:
        found = tl.dot(k, x)
    else:
        found = tl.dot(wide, x.to(tl.float32), input_precision="ieee")
    return found, inverse_norm(tl.sum(wide * wide, axis=1))


@triton.jit
def solve(gate_ptr, beta_ptr, bias_ptr, log_ptr, g_ring, products, ancestors_ptr, place, j, e, n, stride_gate,
          stride_beta, N_V: tl.constexpr, HEADS: tl.constexpr, DRAFTS: tl.constexpr, POSITIONS: tl.constexpr,
          T: tl.constexpr, TREE: tl.constexpr, SPLIT: tl.constexpr):  # fmt: skip
    """M [heads, drafts, COLS] and D of the columns [heads, COLS]; the drafts' g go to ``place`` of the ring.

    ``products`` [drafts, COLS] are k_j·k_s and k_j·q_s of normalized keys and scaled queries.
    """
    i = tl.arange(0, HEADS)
    live = (j < n)[None, :]
    p = tl.arange(0, POSITIONS)
    s = e % POSITIONS
    raw = tl.load(gate_ptr + j[None, :] * stride_gate + i[:, None], mask=live, other=0.0).to(tl.float32)
    rate = -tl.exp(tl.load(log_ptr + i))
    g = tl.where(live, rate[:, None] * softplus(raw + tl.load(bias_ptr + i)[:, None]), 0.0)  # [heads, drafts]
    tl.store(g_ring + place[None, :] * N_V + i[:, None], g, mask=live)
    beta = sigmoid(tl.load(beta_ptr + j[None, :] * stride_beta + i[:, None], mask=live, other=0.0).to(tl.float32))

    if TREE:
        mask_e = tl.load(ancestors_ptr + s, mask=s < n, other=0)
        mask_p = tl.load(ancestors_ptr + p, mask=p < n, other=0)
        mask_j = tl.load(ancestors_ptr + j, mask=j < n, other=0)
        seen = (((mask_e[None, :] >> j[:, None]) & 1) == 1) & (s < n)[None, :]  # [drafts, COLS]: j is on the path to s
        later = ((mask_j[:, None] >> j[None, :]) & 1) == 0  # [j, l]: l comes after j where both are on a path
        path = (((mask_j[:, None] >> j[None, :]) & 1) == 1) & (j < n)[:, None]  # [j, l]: l is on the path to j
        beyond = ((mask_p[None, :] >> j[:, None]) & 1) == 0  # [l, p]: l comes after p where both are on a path
        before = (((mask_j[:, None] >> p[None, :]) & 1) == 1) & (j[:, None] != p[None, :]) & (j < n)[:, None]
    else:
        seen = (j[:, None] <= s[None, :]) & (s < n)[None, :]
        later = j[None, :] > j[:, None]
        path = (j[None, :] <= j[:, None]) & (j < n)[:, None]
        beyond = j[:, None] > p[None, :]
        before = (p[None, :] < j[:, None]) & (j < n)[:, None]

    # Decays between drafts, each exponent a sum of the g on a path: a product with zeros and ones.
    terms = tl.reshape(tl.where(later[None, :, :], g[:, None, :], 0.0), [HEADS * DRAFTS, DRAFTS])
    decay = tl.exp(tl.reshape(product_exact(terms, ones(seen, SPLIT), SPLIT), [HEADS, DRAFTS, 2 * POSITIONS]))
    query = seen & (e >= POSITIONS)[None, :]
    right = tl.where(query[None, :, :], decay * products[None, :, :], 0.0)
    m = tl.where(((j[:, None] == e[None, :]) & (e < POSITIONS)[None, :])[None, :, :], 1.0, right)  # [I | W ⊙ KᵀQ]

    # C = A B transposed, [heads, j, p] = C_pj: how draft j's correction depends on that of p before it.
    terms = tl.reshape(tl.where(path[None, :, :], g[:, None, :], 0.0), [HEADS * DRAFTS, DRAFTS])
    decay = tl.exp(tl.reshape(product_exact(terms, ones(beyond, SPLIT), SPLIT), [HEADS, DRAFTS, POSITIONS]))
    # k_j·k_p is the key half of the products, whose columns p are e < P.
    keys = tl.sum(tl.where((e[None, None, :] == p[None, :, None]), products[:, None, :], 0.0), axis=2)  # [drafts, P]
    c = tl.where(before[None, :, :], decay * keys[None, :, :] * beta[:, :, None], 0.0)
    m = substituted(m, c, j, p, T) * beta[:, :, None]
    column_decay = tl.exp(product_exact(g, ones(seen, SPLIT), SPLIT))
    return m, column_decay


@triton.jit
def substituted(m, c, j, p, T: tl.constexpr):
    """(I + A B)⁻¹ m of m [heads, drafts j, COLS]; c [heads, drafts j, P] is A B transposed: 0 but for p before j."""
    for t in tl.range(0, T):  # backward: row p of the solution needs the rows after it
        row = T - 1 - t
        depends = tl.sum(tl.where((p == row)[None, None, :], c, 0.0), axis=2)  # [heads, drafts]
        found = tl.sum(depends[:, :, None] * m, axis=1)  # [heads, COLS]
        m = tl.where((j == row)[None, :, None], m - found[:, None, :], m)
    return m


@triton.jit
def folds(g_ring, at, j, h, N_V: tl.constexpr, HEADS: tl.constexpr, SPLIT: tl.constexpr):
    """Weights γ_{j+1:h} of the committed records [heads, records], 0 beyond them, and γ_h [heads]."""
    i = tl.arange(0, HEADS)
    g = tl.load(g_ring + at[None, :] * N_V + i[:, None], mask=(j < h)[None, :], other=0.0)
    later = ones(j[:, None] > j[None, :], SPLIT)  # [record after it, record]
    weight = tl.where((j < h)[None, :], tl.exp(product_exact(g, later, SPLIT)), 0.0)
    return weight, tl.exp(tl.sum(g, axis=1))


@triton.jit
def corrections_times(u, weight, SPLIT: tl.constexpr):
    """U·F of cached corrections u [rows, records] and F [records, COLS] in FP32, whose entries are at most 1.

    SPLIT: u is FP16, and so are the two terms of F: together they hold 22 bits. F is lifted by 2^14, as far as FP16
    reaches: without that, what decay leaves of a weight would lose its second term below 2^-14.
    """
    lift: tl.constexpr = 16384.0
    if SPLIT:
        weight = weight * lift
        high = weight.to(tl.float16)
        low = (weight - high.to(tl.float32)).to(tl.float16)
        found = tl.dot(u, high, tl.dot(u, low)) * (1 / lift)
    else:
        found = tl.dot(u.to(tl.float32), weight, input_precision="ieee")
    return found


@triton.jit
def wide_product(a, b, SPLIT: tl.constexpr):
    """a·b of two FP32 factors, each in two BF16 terms; the product of the small ones is left out."""
    if SPLIT:
        a_high, a_low = halves(a)
        b_high = b.to(tl.bfloat16)
        b_low = (b - b_high.to(tl.float32)).to(tl.bfloat16)
        found = tl.dot(a_high, b_high, tl.dot(a_low, b_high, tl.dot(a_high, b_low)))
    else:
        found = tl.dot(a, b, input_precision="ieee")
    return found


@triton.jit
def finish(seen, v_new, u_tile, out_tile, m, j, n, place, stride_v, rows_at, live,
           TOKEN: tl.constexpr, POSITIONS: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr):  # fmt: skip
    """Corrections and outputs of a tile from S_h times the decayed columns (Eq. 10, 11).

    Corrections go to ``place`` of the ring; TOKEN elements are from one token's output to the next one's.
    """
    key = (j < POSITIONS)[None, :]
    v = tl.load(v_new + j[None, :] * stride_v + rows_at, mask=live & (j < n)[None, :], other=0.0).to(tl.float32)
    found = wide_product(tl.where(key, v - seen, 0.0), m, SPLIT) + tl.where(key, 0.0, seen)
    tl.store(u_tile + place[None, :] * BLOCK, saturated(found, u_tile.dtype.element_ty),
             mask=live & (j < n)[None, :])  # fmt: skip
    s = j - POSITIONS
    tl.store(out_tile + s[None, :] * TOKEN, found.to(out_tile.dtype.element_ty),
             mask=live & ((s >= 0) & (s < n))[None, :])  # fmt: skip


@triton.jit
def saturated(u, DTYPE: tl.constexpr):
    """u in the dtype of its ring; FP16 clamps, since an infinity would poison the state for good."""
    if tl.float16 == DTYPE:
        u = tl.minimum(tl.maximum(u, -65504.0), 65504.0)
    return u.to(DTYPE)
