"""The shape of one state-space layer, and the sizes of the dtypes that perfkit knows by name."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from perfkit.errors import InputError

FAMILIES = ("mamba2", "gdn", "kda")

#: Bytes per element. Sub-byte formats count their payload; their scales are declared by the method that uses them.
DTYPE_BYTES = MappingProxyType(
    {"float64": 8.0, "float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "int64": 8.0, "int32": 4.0, "uint8": 1.0,
     "float8_e4m3fn": 1.0, "float4_e2m1": 0.5}
)  # fmt: skip
#: Short names accepted wherever a dtype is read from a user.
DTYPE_ALIASES = MappingProxyType(
    {"fp32": "float32", "f32": "float32", "fp16": "float16", "f16": "float16", "half": "float16", "bf16": "bfloat16",
     "fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "nvfp4": "float4_e2m1", "fp4": "float4_e2m1"}
)  # fmt: skip


def dtype_name(text: str, *, field: str = "dtype", allowed: tuple[str, ...] | None = None) -> str:
    """Return the full name of a dtype.

    Raises:
        InputError: the dtype is unknown, or not among ``allowed``.
    """
    name = DTYPE_ALIASES.get(text.strip().lower(), text.strip().lower())
    choices = allowed or tuple(DTYPE_BYTES)
    if name not in choices:
        raise InputError("unknown dtype", field=field, value=text, allowed=choices)
    return name


@dataclass(frozen=True, slots=True)
class Shape:
    """One layer of recurrent state: ``n_v_heads`` states S of [d_v, d_k] per sequence.

    Attributes:
        family: mamba2, gdn or kda.
        n_v_heads: value heads; each has its own state.
        n_k_heads: key heads (Mamba-2's groups); each serves ``n_v_heads / n_k_heads`` value heads.
        d_v: rows of the state (Mamba-2's headdim).
        d_k: columns of the state (Mamba-2's dstate).
    """

    family: str
    n_v_heads: int
    n_k_heads: int
    d_v: int
    d_k: int

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise InputError("unknown family", field="family", value=self.family, allowed=FAMILIES)
        for field in ("n_v_heads", "n_k_heads", "d_v", "d_k"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError("must be a whole number of at least 1", field=field, value=value)
        if self.n_v_heads % self.n_k_heads:
            raise InputError(f"must be a multiple of n_k_heads = {self.n_k_heads}", field="n_v_heads",
                             value=self.n_v_heads)  # fmt: skip

    @property
    def heads_per_group(self) -> int:
        """Value heads that share one key head."""
        return self.n_v_heads // self.n_k_heads

    @property
    def state_elements(self) -> int:
        """Elements of one sequence's state in this layer."""
        return self.n_v_heads * self.d_v * self.d_k

    @property
    def conv_channels(self) -> int:
        """Channels of the layer's short convolution: x (v), k and q packed side by side."""
        if self.family == "kda":
            return 2 * self.n_k_heads * self.d_k + self.n_v_heads * self.d_v
        return self.n_v_heads * self.d_v + 2 * self.n_k_heads * self.d_k
