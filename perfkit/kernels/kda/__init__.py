"""Kimi Delta Attention: S_t = S_{t−1} diag(α_t) + u_t k_tᵀ with u_t = β_t (v_t − S_{t−1} (α_t ⊙ k_t)), o_t = S_t q_t.

The delta rule of Gated DeltaNet with a decay per key channel. Keys and queries have unit norm, queries are scaled by
d_k^−½; α = exp(−exp(a_log) softplus(gate + dt_bias)) per channel and β = sigmoid(beta). Every value head has its own
key head.

Source: arXiv 2510.26692.
"""
