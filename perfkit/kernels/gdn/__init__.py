"""Gated DeltaNet: S_t = α_t S_{t−1}(I − β_t k_t k_tᵀ) + β_t v_t k_tᵀ, o_t = S_t q_t (paper, Eq. 2).

With u_t = β_t (v_t − α_t S_{t−1} k_t) that is S_t = α_t S_{t−1} + u_t k_tᵀ (paper, Eq. 3). Keys and queries have unit
norm, queries are scaled by d_k^−½; α = exp(−exp(a_log) softplus(gate + dt_bias)) and β = sigmoid(beta).
"""
