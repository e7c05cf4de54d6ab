"""Kernel names, as cuBLAS, FlashInfer, torch and Triton give them."""

import pytest

from tensorrt_lora.bench.kernel_kind import KernelKind, kernel_kind, short_name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_lora_shrink_kernel", KernelKind.LORA),
        ("_lora_expand_kernel", KernelKind.LORA),
        ("_lora_linear_kernel", KernelKind.PROJECTION),
        ("_lora_silu_and_mul_kernel", KernelKind.OTHER),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", KernelKind.PROJECTION),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>(P)", KernelKind.PROJECTION),
        ("void gemvNSP_kernel<__nv_bfloat16, 1>(P)", KernelKind.PROJECTION),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64", KernelKind.PROJECTION),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<0>(P)", KernelKind.ATTENTION),
        ("_fused_decode_attention_kernel", KernelKind.ATTENTION),
        ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<0>(P)", KernelKind.ATTENTION),
        ("void flashinfer::PersistentVariableLengthMergeStatesKernel<8>(P)", KernelKind.ATTENTION),
        ("void at::native::vectorized_elementwise_kernel<4, F>(int)", KernelKind.ELEMENTWISE),
        ("void flashinfer::norm::FusedAddRMSNormKernel<8>(P)", KernelKind.OTHER),
        ("_rotary_embedding_kernel", KernelKind.OTHER),
    ],
)
def test_kind(name: str, kind: KernelKind) -> None:
    assert kernel_kind(name) is kind


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("_lora_shrink_kernel", "_lora_shrink_kernel"),
        ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(a*, b*)", "FusedAddRMSNormKernel"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, T>(int, T)",
            "CUDAFunctor_add",
        ),
    ],
)
def test_short_name(name: str, short: str) -> None:
    assert short_name(name) == short
