"""Mamba-2: S_t = α_t S_{t−1} + v_t k_tᵀ, o_t = S_t q_t with α = exp(A·dt), v = dt·x (paper, Eq. 1)."""
