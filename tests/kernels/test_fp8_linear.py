"""Float8 products against float64, by the reference, and by the kernel in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.fp8_linear import fp8_linear, fp8_linear_reference, fp8_linear_triton, tile_counters
from tensorrt_lora.kernels.fp8_linear_config import Fp8LinearConfig, fp8_linear_config, use_cublas
from tensorrt_lora.kernels.fp8_quantize import QuantizedActivation

INTERPRETED = use_triton(torch.zeros(1))
FP8 = torch.float8_e4m3fn


def make_case(
    tokens: int, out_features: int, in_features: int, *, blocks: bool, bias: bool
) -> tuple[QuantizedActivation, Tensor, Tensor, Tensor | None]:
    x = torch.randn(tokens, in_features).to(FP8)
    weight = torch.randn(out_features, in_features).to(FP8)
    groups = -(-in_features // 128) if blocks else 1
    x_scale = torch.rand(groups, tokens).add(0.5).t()
    weight_scale = torch.rand((-(-out_features // 128), groups) if blocks else (out_features,)).add(0.5)
    return QuantizedActivation(x, x_scale), weight, weight_scale, torch.randn(out_features) if bias else None


def expected_output(x: QuantizedActivation, weight: Tensor, weight_scale: Tensor, bias: Tensor | None) -> Tensor:
    """In float64, one block of K after the other."""
    total = torch.zeros(x.values.shape[0], weight.shape[0], dtype=torch.float64)
    blocks = weight_scale.dim() == 2
    for start in range(0, weight.shape[1], 128):
        columns, group = slice(start, start + 128), start // 128
        part = x.values[:, columns].double() @ weight[:, columns].double().T
        if blocks:
            rows = weight_scale[:, group].repeat_interleave(128)[: weight.shape[0]]
            part = part * rows.double() * x.scale[:, group : group + 1].double()
        total += part
    if not blocks:
        total = total * weight_scale.double() * x.scale.double()
    return total if bias is None else total + bias.double()


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 256, 384), (5, 144, 200), (3, 20, 72)])
def test_reference(shape: tuple[int, int, int], bias: bool, blocks: bool) -> None:
    case = make_case(*shape, blocks=blocks, bias=bias)
    expected = expected_output(*case)
    torch.testing.assert_close(fp8_linear_reference(*case, torch.float32).double(), expected, rtol=1e-4, atol=1e-3)
    if not INTERPRETED:
        out = fp8_linear(*case, torch.bfloat16, tile_counters(shape[1], torch.device("cpu")))
        assert out.dtype is torch.bfloat16
        torch.testing.assert_close(out.double(), expected, rtol=2**-8, atol=1e-3)


CONFIGS = [
    Fp8LinearConfig(block_m=16, block_n=16, block_k=128, splits=1, num_warps=1, num_stages=1),
    Fp8LinearConfig(block_m=16, block_n=32, block_k=128, splits=3, num_warps=1, num_stages=1),
]


@pytest.mark.skipif(not INTERPRETED, reason="the kernel, in Triton's interpreter")
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(
    ("shape", "bias"), [((1, 48, 384), False), ((5, 144, 520), True), ((16, 40, 200), False), ((3, 20, 72), True)]
)
def test_kernel(shape: tuple[int, int, int], bias: bool, blocks: bool, config: Fp8LinearConfig) -> None:
    case = make_case(*shape, blocks=blocks, bias=bias)
    counters = tile_counters(shape[1], torch.device("cpu"))
    for _ in range(2):  # the counters are as they were
        out = fp8_linear_triton(*case, torch.float32, counters, config)
        assert counters.eq(0).all()
        torch.testing.assert_close(out.double(), expected_output(*case), rtol=1e-4, atol=1e-3)


@pytest.mark.skipif(not INTERPRETED, reason="the kernel, in Triton's interpreter")
def test_kernel_with_several_tiles_of_tokens() -> None:
    case = make_case(37, 40, 200, blocks=True, bias=True)
    out = fp8_linear_triton(*case, torch.float32, tile_counters(40, torch.device("cpu")), CONFIGS[0])
    torch.testing.assert_close(out.double(), expected_output(*case), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("block_scales", [False, True])
@pytest.mark.parametrize("features", [(10240, 5120), (5120, 25600), (272, 72), (51200, 5120), (64, 17)])
def test_configurations_keep_the_kernels_rules(features: tuple[int, int], block_scales: bool) -> None:
    out_features, in_features = features
    for tokens in (1, 2, 16, 17, 33, 64, 65, 129, 4096):
        config = fp8_linear_config(tokens, out_features, in_features, block_scales=block_scales)
        assert config.splits >= 1 and (config.splits == 1 or tokens <= config.block_m)
        assert not block_scales or (config.block_k == 128 and 128 % config.block_n == 0)
        if use_cublas(tokens, out_features, in_features):
            assert out_features % 16 == in_features % 16 == 0
