"""Base projections against float64, by the reference, and by the streaming kernel in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.linear import linear, linear_reference
from tensorrt_lora.kernels.linear_weight import LinearWeight, tile_counters
from tensorrt_lora.kernels.quantized_activation import QuantizedActivation
from tensorrt_lora.kernels.scale_product import scale_product, scale_product_reference
from tensorrt_lora.kernels.streamed_linear import streamed_linear_triton
from tensorrt_lora.kernels.streamed_linear_config import StreamedLinearConfig, streamed_linear_config, use_cublas

INTERPRETED = use_triton(torch.zeros(1))
FP8 = torch.float8_e4m3fn
CPU = torch.device("cpu")


def make_case(
    tokens: int, out_features: int, in_features: int, *, scales: str, bias: bool
) -> tuple[Tensor | QuantizedActivation, LinearWeight]:
    dtype = FP8 if scales != "none" else torch.float32
    x = torch.randn(tokens, in_features).to(dtype)
    values = torch.randn(out_features, in_features).to(dtype)
    weight = LinearWeight(
        values, torch.randn(out_features) if bias else None, counters=tile_counters(out_features, CPU)
    )
    if scales == "none":
        return x, weight
    groups = -(-in_features // 128) if scales == "blocks" else 1
    shape = (-(-out_features // 128), groups) if scales == "blocks" else (out_features,)
    weight.scale = torch.rand(shape).add(0.5)
    return QuantizedActivation(x, torch.rand(groups, tokens).add(0.5).t()), weight


def expected_output(x: Tensor | QuantizedActivation, weight: LinearWeight) -> Tensor:
    """In float64, one block of K after the other."""
    rows = x.values if isinstance(x, QuantizedActivation) else x
    out_features, in_features = weight.values.shape
    total = torch.zeros(rows.shape[0], out_features, dtype=torch.float64)
    for start in range(0, in_features, 128):
        columns, group = slice(start, start + 128), start // 128
        part = rows[:, columns].double() @ weight.values[:, columns].double().T
        if isinstance(x, QuantizedActivation) and weight.scale is not None and weight.scale.dim() == 2:
            scales = weight.scale[:, group].repeat_interleave(128)[:out_features]
            part = part * scales.double() * x.scale[:, group : group + 1].double()
        total += part
    if isinstance(x, QuantizedActivation) and weight.scale is not None and weight.scale.dim() == 1:
        total = total * weight.scale.double() * x.scale.double()
    return total if weight.bias is None else total + weight.bias.double()


@pytest.mark.parametrize("scales", ["none", "rows", "blocks"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 256, 384), (5, 144, 200), (3, 20, 72)])
def test_reference(shape: tuple[int, int, int], bias: bool, scales: str) -> None:
    case = make_case(*shape, bias=bias, scales=scales)
    expected = expected_output(*case)
    torch.testing.assert_close(linear_reference(*case, torch.float32).double(), expected, rtol=1e-4, atol=1e-3)
    if not INTERPRETED:
        out = linear(*case, torch.bfloat16)
        assert out.dtype is torch.bfloat16
        torch.testing.assert_close(out.double(), expected, rtol=2**-8, atol=1e-3)


CONFIGS = [
    StreamedLinearConfig(block_m=16, block_n=16, block_k=128, splits=1, num_warps=1, num_stages=1),
    StreamedLinearConfig(block_m=16, block_n=32, block_k=128, splits=3, num_warps=1, num_stages=1),
]


@pytest.mark.skipif(not INTERPRETED, reason="the kernel, in Triton's interpreter")
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("scales", ["none", "rows", "blocks"])
@pytest.mark.parametrize(
    ("shape", "bias"), [((1, 48, 384), False), ((5, 144, 520), True), ((16, 40, 200), False), ((3, 20, 72), True)]
)
def test_kernel(shape: tuple[int, int, int], bias: bool, scales: str, config: StreamedLinearConfig) -> None:
    x, weight = make_case(*shape, bias=bias, scales=scales)
    for _ in range(2):  # the counters are as they were
        out = streamed_linear_triton(x, weight, torch.float32, config)
        assert weight.counters is not None and weight.counters.eq(0).all()
        torch.testing.assert_close(out.double(), expected_output(x, weight), rtol=1e-4, atol=1e-3)


@pytest.mark.skipif(not INTERPRETED, reason="the kernel, in Triton's interpreter")
def test_kernel_with_several_tiles_of_tokens() -> None:
    x, weight = make_case(37, 40, 200, scales="blocks", bias=True)
    out = streamed_linear_triton(x, weight, torch.float32, CONFIGS[0])
    torch.testing.assert_close(out.double(), expected_output(x, weight), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(0, 16), (1, 40), (19, 1100)])
def test_scale_product(shape: tuple[int, int], bias: bool) -> None:
    out, x_scale, weight_scale = torch.randn(shape), torch.rand(shape[0], 1), torch.rand(shape[1])
    added = torch.randn(shape[1]) if bias else None
    expected = out.double() * x_scale.double() * weight_scale.double() + (0 if added is None else added.double())
    for op in (scale_product, scale_product_reference):
        actual = out.clone()
        op(actual, x_scale, weight_scale, added)
        torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("itemsize", "block_scales"), [(1, False), (1, True), (2, False)])
@pytest.mark.parametrize("features", [(10240, 5120), (5120, 25600), (272, 72), (51200, 5120), (64, 17)])
def test_configurations_keep_the_kernels_rules(features: tuple[int, int], itemsize: int, block_scales: bool) -> None:
    for tokens in (1, 2, 16, 17, 33, 64, 65, 129, 4096):
        config = streamed_linear_config(tokens, *features, itemsize=itemsize, block_scales=block_scales)
        assert config.splits >= 1 and (config.splits == 1 or tokens <= config.block_m)
        assert not block_scales or (config.block_k == 128 and 128 % config.block_n == 0)
        if use_cublas(tokens, *features, itemsize=itemsize):
            assert itemsize == 2 or features[0] % 16 == features[1] % 16 == 0
