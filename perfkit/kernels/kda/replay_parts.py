"""Device functions of ReplaySSM verify for Kimi Delta Attention: what a head's drafts and records are to each other.

With G_h the sums of log decays of the h committed records and G_s those on the path to draft s, a step needs the
checkpoint times the *columns* X_s ⊙ e^{G_h + G_s} of its keys and queries: COLS = 2 P for P positions, the key of s in
column s and its query in column P + s. Pivoted at h, records meet the columns as

    P_c = (K_c ⊙ e^{G_h − G_c})ᵀ (X ⊙ e^{G_s})

Drafts meet each other as Σ_c k_jc e^{(G_s − G_j)_c} x_sc, which is no product of two matrices: e^{−G_j} overflows. So
pairs (j, s) of a draft and a later one are enumerated, 16 a tile of the matrix unit, and exponents are the product of a
tile's zeros and ones with the drafts' g: sums of what lies between j and s on a path, at most 0, never differences of
sums. What pairs leave goes to its place [drafts, COLS] by another such product.

The rest is Gated DeltaNet's (:mod:`perfkit.kernels.gdn.replay_parts`). What a head has of this is computed for some of
its channels at a time: all at once would take more registers than there are.

Source: arXiv 2510.26692; paper, Eq. 9 to 11; trees by the ancestors of a draft instead of all drafts before it.
"""

from perfkit.kernels.gates import inverse_norm, sigmoid, softplus
from perfkit.kernels.gdn.replay_parts import substituted
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.products import load_rows, ones, product_exact, thirds
from perfkit.kernels.ring import wrap


@triton.jit
def sums(chosen, g, SPLIT: tl.constexpr):
    """Σ of the chosen [n, tokens] of g [tokens, channels] to FP32's accuracy: SPLIT: g in three BF16 terms.

    Without SPLIT the compiler takes g apart, in two TF32 terms: with zeros and ones as the other factor they leave
    2⁻²⁴, and FP32 multiply-adds of a whole tile would take more registers than there are.
    """
    if SPLIT:
        high, middle, low = thirds(g)
        one = chosen.to(tl.bfloat16)
        found = tl.dot(one, high, tl.dot(one, middle, tl.dot(one, low)))
    else:
        found = tl.dot(chosen.to(tl.float32), g, input_precision="tf32x3")
    return found


@triton.jit
def repeated(x, N: tl.constexpr):
    """x [n, …] again and again along its first axis, to N in all."""
    if len(x.shape) == 1:
        found = tl.reshape(tl.broadcast_to(x[None, :], [N // x.shape[0], x.shape[0]]), [N])
    else:
        # A broadcast would do, but the compiler takes it for cheap and computes again, in every copy, what leads to x.
        at = tl.broadcast_to((tl.arange(0, N) % x.shape[0])[:, None], [N, x.shape[1]])
        found = tl.gather(x, at, axis=0)
    return found


@triton.jit
def on_path(ancestors_ptr, early, late, n, TREE: tl.constexpr):
    """Whether draft ``early`` is on the path to draft ``late``, its end included; both broadcast, late below n."""
    if TREE:
        mask = tl.load(ancestors_ptr + late, mask=late < n, other=0)
        found = ((mask >> early) & 1) == 1
    else:
        found = early <= late
    return found & (late < n)


@triton.jit
def pair_of(p):
    """Drafts j < s of pair p in the order (0, 1), (0, 2), (1, 2), (0, 3) and so on."""
    # p = s (s − 1) / 2 + j; what is added outweighs an approximate root's error, and is less than the next s takes.
    s = ((1.0 + tl.sqrt(8.0 * p.to(tl.float32) + 1.0)) * 0.5 + 0.01).to(tl.int32)
    return p - s * (s - 1) // 2, s


@triton.jit
def decayed_records(k_ring, g_ring, at, j, h, FIRST: tl.constexpr, N: tl.constexpr, D_K: tl.constexpr,
                    SPLIT: tl.constexpr):  # fmt: skip
    """N channels of the committed records' keys, decayed to h [records, N], the sums of their squares, and G_h [N]."""
    c = FIRST + tl.arange(0, N)
    k = load_rows(k_ring + FIRST, at * D_K, j < h, N).to(tl.float32)
    g = tl.load(g_ring + at[:, None] * D_K + c[None, :], mask=(j < h)[:, None], other=0.0)
    return k * tl.exp(sums(j[None, :] > j[:, None], g, SPLIT)), tl.sum(k * k, axis=1), tl.sum(g, axis=0)


@triton.jit
def log_decays(gate_base, bias_base, rate, d, c, n, stride_gate):
    """g of channels c of the drafts d [drafts, c]; 0 of those from n on."""
    live = (d < n)[:, None]
    raw = tl.load(gate_base + d[:, None] * stride_gate + c[None, :], mask=live, other=0.0).to(tl.float32)
    return tl.where(live, rate * softplus(raw + tl.load(bias_base + c)[None, :]), 0.0)


@triton.jit
def meetings(
    k_ring, g_ring, k_base, q_base, gate_base, bias_base, rate, ancestors_ptr, first, n_ring, n, stride_q, stride_k,
    stride_gate,
    D_K: tl.constexpr, T: tl.constexpr, TREE: tl.constexpr, SPLIT: tl.constexpr, DRAFTS: tl.constexpr,
    POSITIONS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """What a head's drafts are to each other, WIDTH channels at a time; their k and g go into the ring.

    Returns products of decayed raw vectors, of draft j's key with that of p before it [drafts j, P] and with the
    queries from it on [drafts j, COLS], and the squares of the drafts' keys and queries and their products [DRAFTS].
    """
    COLS: tl.constexpr = 2 * POSITIONS
    d = tl.arange(0, DRAFTS)
    live = (d < n)[:, None]
    here = wrap(first + d, n_ring)[:, None] * D_K
    j = tl.arange(0, COLS)
    p = tl.arange(0, POSITIONS)
    keys, queries = tl.zeros([COLS, POSITIONS], tl.float32), tl.zeros([COLS, COLS], tl.float32)
    k_squares, q_squares = tl.zeros([DRAFTS], tl.float32), tl.zeros([DRAFTS], tl.float32)
    own = tl.zeros([DRAFTS], tl.float32)
    for start in tl.range(0, D_K, WIDTH, num_stages=1):
        c = start + tl.arange(0, WIDTH)
        k_raw = tl.load(k_base + d[:, None] * stride_k + c[None, :], mask=live, other=0.0)
        q = tl.load(q_base + d[:, None] * stride_q + c[None, :], mask=live, other=0.0).to(tl.float32)
        g = log_decays(gate_base, bias_base, rate, d, c, n, stride_gate)
        tl.store(k_ring + here + c[None, :], k_raw, mask=live)
        tl.store(g_ring + here + c[None, :], g, mask=live)
        k = k_raw.to(tl.float32)
        k_squares += tl.sum(k * k, axis=1)
        q_squares += tl.sum(q * q, axis=1)
        own += tl.sum(k * q, axis=1)
        g = repeated(g, COLS)  # the matrix unit sums 16 at least; zeros choose none of those that repeat
        for first_pair in tl.range(0, T * (T - 1) // 2, 16, num_stages=1):
            early, late = pair_of(first_pair + tl.arange(0, 16))
            there = on_path(ancestors_ptr, early, late, n, TREE)[:, None]
            # What lies on the path to the later one, and not on the path to the earlier one.
            between = on_path(ancestors_ptr, j[None, :], late[:, None], n, TREE)
            if TREE:
                between = between & (on_path(ancestors_ptr, j[None, :], early[:, None], n, TREE) == 0)
            else:
                between = between & (j[None, :] > early[:, None])
            met = tl.load(k_base + early[:, None] * stride_k + c[None, :], mask=there, other=0.0).to(tl.float32)
            met = met * tl.exp(sums(between, g, SPLIT))
            key = tl.load(k_base + late[:, None] * stride_k + c[None, :], mask=there, other=0.0).to(tl.float32)
            query = tl.load(q_base + late[:, None] * stride_q + c[None, :], mask=there, other=0.0).to(tl.float32)
            with_key = (j[:, None] == late[None, :]).to(tl.float32) * tl.sum(met * key, axis=1)[None, :]
            with_query = (j[:, None] == early[None, :]).to(tl.float32) * tl.sum(met * query, axis=1)[None, :]
            keys += product_exact(with_key, ones(early[:, None] == p[None, :], SPLIT), SPLIT)
            queries += product_exact(with_query, ones(late[:, None] + POSITIONS == j[None, :], SPLIT), SPLIT)
    return keys, queries, k_squares, q_squares, own


@triton.jit
def columns(
    k_base, q_base, gate_base, bias_base, rate, ancestors_ptr, c, n, stride_q, stride_k, stride_gate,
    TREE: tl.constexpr, SPLIT: tl.constexpr, DRAFTS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Channels c of the drafts' raw keys and queries, decayed from h on [c, COLS]."""
    j = tl.arange(0, 2 * POSITIONS)
    s = j % POSITIONS
    start = tl.where(j < POSITIONS, k_base + s * stride_k, q_base + s * stride_q)
    x = tl.load(start[None, :] + c[:, None], mask=(s < n)[None, :], other=0.0).to(tl.float32)
    g = repeated(log_decays(gate_base, bias_base, rate, tl.arange(0, DRAFTS), c, n, stride_gate), 2 * POSITIONS)
    path = ones(on_path(ancestors_ptr, j[:, None], s[None, :], n, TREE), SPLIT)
    return x * tl.exp(product_exact(tl.trans(g), path, SPLIT))


@triton.jit
def solution(
    keys, queries, k_squares, q_squares, own, beta_base, n, stride_beta,
    D_K: tl.constexpr, T: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """M [drafts, COLS] of a head from its :func:`meetings`, and what normalizes and scales its columns [COLS]."""
    COLS: tl.constexpr = 2 * POSITIONS
    scale: tl.constexpr = D_K**-0.5
    j = tl.arange(0, COLS)
    p = tl.arange(0, POSITIONS)
    s = j % POSITIONS
    k_norm = inverse_norm(k_squares)
    q_norm = inverse_norm(q_squares) * scale
    k_rows, k_keys = repeated(k_norm, COLS), repeated(k_norm, POSITIONS)
    factors = tl.where(j < POSITIONS, k_rows, repeated(q_norm, COLS))
    beta = sigmoid(tl.load(beta_base + j * stride_beta, mask=j < n, other=0.0).to(tl.float32))
    query = (j >= POSITIONS)[None, :] & (s < n)[None, :]
    right = queries + tl.where(j[:, None] == s[None, :], repeated(own, COLS)[:, None], 0.0)
    right = tl.where(query, right * k_rows[:, None] * factors[None, :], 0.0)
    m = tl.where(((j[:, None] == j[None, :]) & (j < POSITIONS)[None, :]), 1.0, right)  # [I | P_q]
    c = keys * k_rows[:, None] * k_keys[None, :] * beta[:, None]
    m = substituted(m[None, :, :], c[None, :, :], j, p, T)
    return tl.reshape(m, [COLS, COLS]) * beta[:, None], factors
