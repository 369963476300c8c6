"""The ops of ``torch.ops.hpu`` that are called here, as Intel's software registers them, with all their overloads.

Source: HabanaAI/gaudi-pytorch-bridge v1.19.0 (5a56187), habana_eager/eager_custom_op_register.cpp, TORCH_LIBRARY(hpu).
torch checks calls against them, so that what the real library refuses is refused here.
"""

from __future__ import annotations

_MOE = "Tensor hidden_states, Tensor expert_routing_table, Tensor router_weights"
_MOE_REST = "bool permuted_weights, str activation, int experts_min, int experts_max"
_GEMM = "Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor? D, ScalarType out_dtype"
_GEMM_REST = "Tensor? bias=None, bool accumulate=False, int[]? B_scale_shape=None"
_CAST_REST = "bool stochastic_rounding=False, bool is_amax=False, ScalarType dtype=None, int[]? scale_shape=None"

SCHEMAS = (
    "cast_from_fp8(Tensor input, Tensor? scale, ScalarType out_dtype, int[]? scale_shape=None) -> Tensor",
    "cast_from_fp8.scalar(Tensor input, float scale, ScalarType out_dtype, int[]? scale_shape=None) -> Tensor",
    "cast_from_fp8.scalar_list(Tensor input, float[] scale, ScalarType out_dtype, int[]? scale_shape=None) -> Tensor",
    f"cast_to_fp8_v2(Tensor input, Tensor? scale=None, {_CAST_REST}) -> (Tensor, Tensor)",
    f"cast_to_fp8_v2.scalar(Tensor input, float scale, {_CAST_REST}) -> (Tensor, Tensor)",
    f"cast_to_fp8_v2.scalar_list(Tensor input, float[] scale, {_CAST_REST}) -> (Tensor, Tensor)",
    "convert_from_uint4(Tensor input, Tensor scale, Tensor? zero_point, ScalarType out_dtype) -> Tensor",
    f"fp8_gemm_v2({_GEMM}, Tensor? A_scale_inv=None, Tensor? B_scale_inv=None, {_GEMM_REST}) -> Tensor",
    f"fp8_gemm_v2.scalar({_GEMM}, float A_scale_inv, float B_scale_inv, {_GEMM_REST}) -> Tensor",
    f"fp8_gemm_v2.scalar_list({_GEMM}, float[] A_scale_inv, float[] B_scale_inv, {_GEMM_REST}) -> Tensor",
    f"mixture_of_experts({_MOE}, Tensor[] w1, Tensor[] w2, Tensor[] w3, {_MOE_REST}) -> Tensor",
    f"mixture_of_experts.fused_weights({_MOE}, Tensor[] w12, Tensor[] w3, {_MOE_REST}) -> Tensor",
    f"mixture_of_experts.fp8_measurement({_MOE}, Tensor[] w1, Tensor[] w2, Tensor[] w3, {_MOE_REST}, "
    "bool measurement_mode) -> (Tensor, Tensor)",
    f"mixture_of_experts.fp8_measurement_fused_weights({_MOE}, Tensor[] w12, Tensor[] w3, {_MOE_REST}, "
    "bool measurement_mode) -> (Tensor, Tensor)",
)
