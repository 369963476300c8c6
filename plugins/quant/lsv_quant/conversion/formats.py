"""The formats that can be written as compressed-tensors. Imports no torch."""

WRITABLE = (
    "int8", "int8_weight_only", "experts_int8", "sym_int4", "sym_int4_g32", "sym_int4_g64", "sym_int4_g128", "mxfp4",
    "fp8", "fp8_tensor",
)  # fmt: skip
