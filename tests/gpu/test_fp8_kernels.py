"""FP8 ops on a GPU: against references, at any number of rows, repeated, and captured with early launches."""

import pytest
import torch
from torch import Tensor

from tensorrt_lora.kernels.fp8_linear import (
    fp8_linear,
    fp8_linear_reference,
    fp8_linear_triton,
    tile_counters,
)
from tensorrt_lora.kernels.fp8_linear_config import Fp8LinearConfig, fp8_linear_config
from tensorrt_lora.kernels.fp8_quantize import (
    QuantizedActivation,
    quantize_per_group,
    quantize_per_token,
    quantize_reference,
    quantize_static,
)
from tensorrt_lora.kernels.fp8_weight import FP8_DTYPE, quantize_weight, quantize_weight_blocks

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
# Relative over all values, beside a reference in float32 of the same float8 values. Tensor cores sum float8 products to
# about 14 bits, the more coarsely the longer the sum is, and bfloat16 rounds the result by 1.1e-3 in the mean; rounding
# inputs and weights to float8 moves a product by 3.7e-2.
TOLERANCE = {torch.bfloat16: 6e-3, torch.float32: 6e-3}
ROWS = [1, 2, 8, 16, 17, 33, 64, 65, 100, 257, 1000]
SHAPES = [(10240, 5120), (5120, 8192), (1024, 25600), (272, 72), (4096, 1536)]


def reference_quantize(x: Tensor, groups: int, static_scale: Tensor | None) -> QuantizedActivation:
    values = torch.empty(x.shape, dtype=FP8_DTYPE, device=x.device)
    scale = torch.empty((groups, x.shape[0]), device=x.device).t()
    quantize_reference(x, values, scale, static_scale)
    return QuantizedActivation(values, scale)


def assert_same_bits(actual: QuantizedActivation, expected: QuantizedActivation) -> None:
    assert torch.equal(actual.scale, expected.scale)
    assert torch.equal(actual.values.view(torch.uint8), expected.values.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [12, 72, 128, 1536, 5120, 12288, 25600])
@pytest.mark.parametrize("rows", [0, 1, 7, 64, 1000])
def test_quantisation_has_the_bits_of_its_reference(rows: int, width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn((rows, width + 8), device=DEVICE, generator=generator) * 3
    x = (x * torch.logspace(-3, 3, rows, device=DEVICE)[:, None]).to(dtype)[:, :width]
    if rows > 1:
        x[0] = 0
    scale = torch.tensor(0.02, device=DEVICE)
    assert_same_bits(quantize_per_token(x), reference_quantize(x, 1, None))
    assert_same_bits(quantize_per_group(x), reference_quantize(x, -(-width // 128), None))
    assert_same_bits(quantize_static(x, scale), reference_quantize(x, 1, scale))


def test_every_bfloat16_value_is_rounded_as_torch_rounds_it() -> None:
    values = torch.arange(2**16, dtype=torch.int32, device=DEVICE).to(torch.int16).view(torch.bfloat16)
    x = torch.where(values.abs() <= 448, values, 0).view(256, 256)
    one = torch.ones((), device=DEVICE)
    assert_same_bits(quantize_static(x, one), reference_quantize(x, 1, one))


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_broken_token_stays_broken_and_alone(broken: float) -> None:
    x = torch.randn((3, 5120), device=DEVICE).bfloat16()
    x[1, 77] = broken
    for quantized in (quantize_per_token(x), quantize_per_group(x)):
        finite = quantized.dequantize().isfinite().all(dim=1)
        assert finite.tolist() == [True, False, True]


def make_weight(shape: tuple[int, int], *, block_scales: bool) -> tuple[Tensor, Tensor]:
    weight = torch.randn(shape, device=DEVICE).bfloat16() * torch.logspace(-1, 1, shape[0], device=DEVICE)[:, None]
    if block_scales:
        return quantize_weight_blocks(weight)
    parts = [quantize_weight(part) for part in weight.chunk(3)]
    scales = [scale.expand(len(values)) for values, scale in parts]
    return torch.cat([values.view(torch.uint8) for values, _ in parts]).view(FP8_DTYPE), torch.cat(scales)


def make_input(rows: int, width: int, *, block_scales: bool) -> QuantizedActivation:
    x = torch.randn((rows, width), device=DEVICE).bfloat16()
    return quantize_per_group(x) if block_scales else quantize_per_token(x)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("block_scales", [False, True], ids=["rows", "blocks"])
@pytest.mark.parametrize("shape", SHAPES)
def test_linear_equals_its_reference(shape: tuple[int, int], block_scales: bool) -> None:
    weight, scale = make_weight(shape, block_scales=block_scales)
    counters = tile_counters(shape[0], DEVICE)
    for rows in ROWS:
        x = make_input(rows, shape[1], block_scales=block_scales)
        for dtype in (torch.bfloat16, torch.float32):
            for bias in (None, torch.randn(shape[0], device=DEVICE).to(dtype)):
                expected = fp8_linear_reference(x, weight, scale, bias, torch.float32)
                actual = fp8_linear(x, weight, scale, bias, dtype, counters)
                error = relative_error(actual, expected)
                assert actual.dtype is dtype and error < TOLERANCE[dtype], (rows, dtype, error)
                assert torch.equal(actual, fp8_linear(x, weight, scale, bias, dtype, counters)), (rows, dtype)
                assert counters.eq(0).all()


@pytest.mark.parametrize("block_scales", [False, True], ids=["rows", "blocks"])
@pytest.mark.parametrize("splits", [1, 2, 3, 8])
@pytest.mark.parametrize(("block_n", "num_warps"), [(16, 1), (32, 2), (64, 4), (128, 8)])
def test_every_tile_and_split(block_n: int, num_warps: int, splits: int, block_scales: bool) -> None:
    shape = (1040, 4096)
    weight, scale = make_weight(shape, block_scales=block_scales)
    counters = tile_counters(shape[0], DEVICE)
    for rows in (1, 16, 50):
        block_m = 16 if rows <= 16 else 64
        config = Fp8LinearConfig(block_m, block_n, 128, splits, num_warps, num_stages=3)
        x = make_input(rows, shape[1], block_scales=block_scales)
        expected = fp8_linear_reference(x, weight, scale, None, torch.float32)
        for programmatic in (False, True):
            actual = fp8_linear_triton(
                x, weight, scale, None, torch.bfloat16, counters, config, programmatic=programmatic
            )
            assert relative_error(actual, expected) < TOLERANCE[torch.bfloat16], (rows, programmatic)


@pytest.mark.parametrize("block_scales", [False, True], ids=["rows", "blocks"])
@pytest.mark.parametrize("rows", [1, 8, 48])
def test_early_launches_in_a_graph_change_nothing(rows: int, block_scales: bool) -> None:
    """A chain of quantisations and projections, replayed with new inputs: a missed wait would read old values."""
    width, depth = 2048, 12
    weights = [make_weight((width, width), block_scales=block_scales) for _ in range(depth)]
    counters = [tile_counters(width, DEVICE) for _ in weights]
    x = torch.zeros((rows, width), device=DEVICE, dtype=torch.bfloat16)

    def chain(*, early: bool) -> Tensor:
        y = x
        config = fp8_linear_config(rows, width, width, block_scales=block_scales)
        for (weight, scale), counter in zip(weights, counters, strict=True):
            if early:
                q = quantize_per_group(y) if block_scales else quantize_per_token(y)
            else:
                q = reference_quantize(y, width // 128 if block_scales else 1, None)
            y = fp8_linear_triton(
                q, weight, scale, None, torch.bfloat16, counter, config, programmatic=None if early else False
            )
            y = y / y.float().std()  # an ordinary kernel in between
            y = y.bfloat16()
        return y

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        chain(early=True)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            result = chain(early=True)
        for seed in range(50):
            x.normal_(generator=torch.Generator(DEVICE).manual_seed(seed))
            graph.replay()
            replayed = result.clone()
            assert torch.equal(replayed, chain(early=False)), seed
