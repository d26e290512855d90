"""Gates that several families compute on chip, in FP32 and to FP32's accuracy."""

from perfkit.kernels.lang import tl, triton


@triton.jit
def softplus(x):
    """log(1 + exp(x)) to FP32 accuracy.

    A time step dt of 0.001 is softplus(−6.9): log(1 + y) evaluated as such loses y's digits in the sum, and the GPU's
    approximate logarithm has an absolute error of its own there. So log1p(y) = 2 atanh(y / (2 + y)) by its series:
    y = exp(−|x|) ≤ 1, so the argument is at most 1/3 and eight terms leave 1e-9.
    """
    y = tl.exp(-tl.abs(x))
    s = y / (2.0 + y)
    z = s * s
    series = 1.0 + z * (1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9 + z * (1 / 11 + z * (1 / 13 + z * (1 / 15)))))))
    return tl.maximum(x, 0.0) + 2.0 * s * series


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(−x)) to FP32 accuracy; at large |x| no exponential overflows."""
    y = tl.exp(-tl.abs(x))
    return tl.where(x < 0, y, 1.0) / (1.0 + y)


@triton.jit
def inverse_norm(squares):
    """1 / √(Σ x² + 1e-6) of sums of squares, to FP32 accuracy: the norm of a delta rule's keys and queries."""
    return 1.0 / tl.sqrt_rn(squares + 1e-6)
