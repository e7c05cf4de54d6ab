"""The ops between a layer's projections on a GPU: against float64, repeated, at any row count, captured."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from tensorrt_lora.kernels.activation import silu_and_mul, silu_and_mul_reference
from tensorrt_lora.kernels.fp8_quantize import quantize, quantize_reference
from tensorrt_lora.kernels.qk_norm_rope import KvCacheWrite, qk_norm_rope, qk_norm_rope_reference
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization, QuantizedActivation
from tensorrt_lora.kernels.rms_norm import fused_add_rms_norm, rms_norm, rms_norm_reference
from tests.support.lora_deltas import ALL_SLOTS, added, make_lora_delta, random_output, same_bits

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
EPS = 1e-6
POSITIONS, PAGE_SIZE, PAGES = 4096, 16, 600
# Relative, over all values: a bfloat16 rounding is about 1.2e-3, there are up to four, and rows may be short.
TOLERANCE = {torch.bfloat16: 6e-3, torch.float32: 2e-6}
# To a reference that rounds at the same places: a rounding more or less would be above.
SAME_ROUNDING = {torch.bfloat16: 5e-4, torch.float32: 2e-6}
DTYPES = [torch.bfloat16, torch.float32]
WIDTHS = [12, 64, 5120, 25600]  # rows of 12 bfloat16 values do not begin on 16 bytes
ROWS = [0, 1, 7, 64, 1000]


def random_rows(num_rows: int, width: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn((num_rows, width), device=DEVICE, dtype=dtype, generator=generator)


def random_weight(size: int, dtype: torch.dtype) -> Tensor:
    return (1 + 0.3 * random_rows(1, size, torch.float32, seed=9)[0]).to(dtype)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """NaN, which passes no comparison, if either has one."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-6))


def same_rounding(x: Tensor) -> float:
    """A bound of the error beside a reference of the same roundings: of a few values one may fall to the other side."""
    one_value = 2**-7 / max(x.numel(), 1) ** 0.5 if x.dtype is torch.bfloat16 else 0.0
    return SAME_ROUNDING[x.dtype] + one_value


def norm64(x: Tensor, weight: Tensor) -> Tensor:
    x64 = x.double()
    return x64 / torch.sqrt(x64.pow(2).mean(-1, keepdim=True) + EPS) * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
def test_norms(rows: int, width: int, dtype: torch.dtype) -> None:
    x, residual = (3 * random_rows(rows, width, dtype, seed) for seed in (1, 2))
    weight = random_weight(width, dtype)
    normed, _ = rms_norm(x, weight, EPS)
    assert relative_error(normed, norm64(x, weight)) < TOLERANCE[dtype]
    assert relative_error(normed, rms_norm_reference(x, weight, EPS)) < same_rounding(x)
    assert torch.equal(normed, rms_norm(x, weight, EPS)[0])

    total = x + residual
    fused_x, fused_residual = x.clone(), residual.clone()
    fused_add_rms_norm(fused_x, fused_residual, weight, EPS)
    assert torch.equal(fused_residual, total)
    assert torch.equal(fused_x, rms_norm(total, weight, EPS)[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
def test_silu_and_mul(rows: int, width: int, dtype: torch.dtype) -> None:
    gate_up = 2 * random_rows(rows, 2 * width, dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    actual, _ = silu_and_mul(gate_up)
    assert actual.shape == (rows, width) and actual.dtype == dtype
    assert relative_error(actual, gate / (1 + torch.exp(-gate)) * up) < TOLERANCE[dtype]
    assert relative_error(actual, silu_and_mul_reference(gate_up)) < same_rounding(actual)
    assert torch.equal(actual, silu_and_mul(gate_up)[0])


def test_rows_at_any_address() -> None:
    rows = random_rows(4, 65 * 64, torch.bfloat16)
    shifted = rows.flatten()[1 : 1 + 4 * 64].view(4, 64)
    weight = random_weight(64, torch.bfloat16)
    for x in (rows[:, :64], rows[:, 3:67], shifted, rows.unflatten(1, (65, 64))):
        assert torch.equal(rms_norm(x, weight, EPS)[0], rms_norm(x.contiguous().clone(), weight, EPS)[0])
    for x in (rows[:, :128], rows[:, 5:133]):
        assert torch.equal(silu_and_mul(x)[0], silu_and_mul(x.contiguous())[0])


def quantizations() -> list[ActivationQuantization]:
    scale = torch.tensor(0.02, device=DEVICE)
    return [
        ActivationQuantization(),
        ActivationQuantization(by_group=True),
        ActivationQuantization(static_scale=scale),
    ]


def assert_is_quantised(x: Tensor, actual: QuantizedActivation | None, how: ActivationQuantization) -> None:
    assert actual is not None
    assert_same_bits(actual, quantize(x, how))


def assert_same_bits(actual: QuantizedActivation, expected: QuantizedActivation) -> None:
    assert torch.equal(actual.scale, expected.scale)
    assert torch.equal(actual.values.view(torch.uint8), expected.values.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [12, 72, 128, 1536, 5120, 8192, 12288, 25600])
@pytest.mark.parametrize("rows", [0, 1, 7, 64, 1000, 8192])
def test_fused_quantisation_has_the_bits_of_two_ops(rows: int, width: int, dtype: torch.dtype) -> None:
    """The outputs, too: in bfloat16 a norm adds up in one order, whether or not it quantises."""
    x, residual = (3 * random_rows(rows, width, dtype, seed) for seed in (1, 2))
    weight = random_weight(width, dtype)
    gate_up = 2 * random_rows(rows, 2 * width, dtype)
    plain, plain_product = rms_norm(x, weight, EPS)[0], silu_and_mul(gate_up)[0]
    plain_sum = rms_norm(x + residual, weight, EPS)[0]
    for how in quantizations():
        product, quantized = silu_and_mul(gate_up, how)
        assert torch.equal(product, plain_product)
        assert_is_quantised(product, quantized, how)

        normed, quantized = rms_norm(x, weight, EPS, how)
        assert_is_quantised(normed, quantized, how)
        fused_x, fused_residual = x.clone(), residual.clone()
        quantized = fused_add_rms_norm(fused_x, fused_residual, weight, EPS, how)
        assert torch.equal(fused_residual, x + residual)
        assert_is_quantised(fused_x, quantized, how)
        if dtype is torch.bfloat16:
            assert torch.equal(normed, plain) and torch.equal(fused_x, plain_sum)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_number_is_divided_as_by_a_division(dtype: torch.dtype) -> None:
    """Bits of float8 and of the scale, of zeros of both signs too; under the scales of largest values, and others."""
    numbers = torch.arange(-(2**15), 2**15, device=DEVICE).to(torch.int16).view(dtype)
    numbers = numbers[numbers.isfinite()]
    mantissas = torch.arange(1024, 2048, 8, device=DEVICE).to(dtype)
    for exponent in (-8, 0, 2):
        largest = mantissas * 2.0**exponent
        rows = torch.where(numbers.abs() <= largest[:, None], numbers, 0)
        assert rows.abs().amax(1).equal(largest)
        for how in (ActivationQuantization(), ActivationQuantization(by_group=True)):
            expected = how.empty(rows)
            quantize_reference(rows, expected.values, expected.scale, None)
            assert_same_bits(quantize(rows, how), expected)
    for scale in (2.0 - 2.0**-23, 1.0, 0.0123, 3e-7, 448.0):
        how = ActivationQuantization(static_scale=torch.tensor(scale, device=DEVICE))
        expected = how.empty(numbers[None])
        quantize_reference(numbers[None], expected.values, expected.scale, how.static_scale)
        assert_same_bits(quantize(numbers[None], how), expected)


@pytest.mark.parametrize("rows", [slice(0, 1), slice(37, 38), slice(36, 100)])
def test_norms_and_activations_of_a_token_do_not_depend_on_its_neighbours(rows: slice) -> None:
    x, weight = random_rows(100, 5120, torch.bfloat16), random_weight(5120, torch.bfloat16)
    gate_up = random_rows(100, 2 * 25600, torch.bfloat16)
    for how in quantizations():
        for together, alone in (
            (rms_norm(x, weight, EPS, how), rms_norm(x[rows], weight, EPS, how)),
            (silu_and_mul(gate_up, how), silu_and_mul(gate_up[rows], how)),
        ):
            assert torch.equal(together[0][rows], alone[0])
            assert together[1] is not None and alone[1] is not None
            assert torch.equal(together[1].dequantize()[rows], alone[1].dequantize())


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_broken_token_stays_broken_and_alone(broken: float) -> None:
    x, gate_up = random_rows(3, 5120, torch.bfloat16), random_rows(3, 10240, torch.bfloat16)
    x[1, 77] = gate_up[1, 77] = broken
    weight = random_weight(5120, torch.bfloat16)
    for how in quantizations()[:2]:
        for _, quantized in (rms_norm(x, weight, EPS, how), silu_and_mul(gate_up, how)):
            assert quantized is not None
            assert quantized.dequantize().isfinite().all(dim=1).tolist() == [True, False, True]


def make_table(head_dim: int) -> Tensor:
    frequencies = 1e4 ** -(torch.arange(0, head_dim, 2, dtype=torch.float64, device=DEVICE) / head_dim)
    angles = torch.outer(torch.arange(POSITIONS, dtype=torch.float64, device=DEVICE), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float()


def rotated64(x: Tensor, position_ids: Tensor, table: Tensor, head_dim: int, weight: Tensor | None) -> Tensor:
    heads = x.double().unflatten(-1, (-1, head_dim))
    if weight is not None:
        heads = norm64(heads, weight)
    first, second = heads.chunk(2, dim=-1)
    cos, sin = table.double()[position_ids].unsqueeze(1).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(1)


class Projection:
    """A step's q, k and v as views of one tensor, with what `qk_norm_rope` wants beside them."""

    def __init__(self, tokens: int, heads: tuple[int, int], head_dim: int, dtype: torch.dtype, norm: bool) -> None:
        self.sizes = [heads[0] * head_dim, heads[1] * head_dim, heads[1] * head_dim]
        self.head_dim = head_dim
        self.qkv = 2 * random_rows(tokens, sum(self.sizes), dtype)
        generator = torch.Generator(DEVICE).manual_seed(3)
        self.position_ids = torch.randint(0, POSITIONS, (tokens,), device=DEVICE, generator=generator)
        self.table = make_table(head_dim)
        self.q_weight = random_weight(head_dim, dtype) if norm else None
        self.k_weight = random_weight(2 * head_dim, dtype)[head_dim:] if norm else None
        self.kv_cache = torch.zeros((PAGES, 2, PAGE_SIZE, heads[1], head_dim), dtype=dtype, device=DEVICE)
        slots = torch.randperm((PAGES - 1) * PAGE_SIZE, device=DEVICE, generator=generator)[:tokens]
        self.cache_slots = slots + PAGE_SIZE

    def run(self, op: Callable[..., None], rows: slice = slice(None), write: bool = True) -> tuple[Tensor, Tensor]:
        """(qkv, cache) after `op` on some of the tokens, from fresh copies."""
        qkv, cache = self.qkv[rows].clone(), self.kv_cache.clone()
        q, k, v = qkv.split(self.sizes, dim=-1)
        op(
            q,
            k,
            self.position_ids[rows],
            self.table,
            self.head_dim,
            self.q_weight,
            self.k_weight,
            EPS,
            KvCacheWrite(v, cache, self.cache_slots[rows]) if write else None,
        )
        return qkv, cache


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "head_dim"), [((64, 8), 128), ((6, 1), 80), ((9, 3), 64)])
@pytest.mark.parametrize("tokens", [0, 1, 7, 70, 8192])
def test_qk_norm_rope(tokens: int, heads: tuple[int, int], head_dim: int, dtype: torch.dtype, norm: bool) -> None:
    case = Projection(tokens, heads, head_dim, dtype, norm)
    qkv, cache = case.run(qk_norm_rope)
    q, k, v = qkv.split(case.sizes, dim=-1)
    q_before, k_before, v_before = case.qkv.split(case.sizes, dim=-1)
    for x, before, weight in ((q, q_before, case.q_weight), (k, k_before, case.k_weight)):
        expected = rotated64(before, case.position_ids, case.table, head_dim, weight)
        assert relative_error(x, expected) < TOLERANCE[dtype]
    assert torch.equal(v, v_before)

    reference_qkv, _ = case.run(qk_norm_rope_reference)
    assert relative_error(qkv, reference_qkv) < SAME_ROUNDING[dtype]

    expected_cache = case.kv_cache.clone()
    pages, offsets = case.cache_slots // PAGE_SIZE, case.cache_slots % PAGE_SIZE
    for part, x in enumerate((k, v)):
        expected_cache[pages, part, offsets] = x.unflatten(-1, (heads[1], head_dim))
    assert torch.equal(cache, expected_cache)

    again, again_cache = case.run(qk_norm_rope)
    assert torch.equal(qkv, again) and torch.equal(cache, again_cache)
    without_write, untouched = case.run(qk_norm_rope, write=False)
    assert torch.equal(qkv, without_write) and torch.equal(untouched, case.kv_cache)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_does_not_depend_on_its_neighbours(dtype: torch.dtype) -> None:
    case = Projection(100, (64, 8), 128, dtype, norm=True)
    together, _ = case.run(qk_norm_rope)
    for rows in (slice(0, 1), slice(37, 38), slice(36, 100)):
        alone, _ = case.run(qk_norm_rope, rows)
        assert torch.equal(alone, together[rows])


def test_row_offsets_beyond_32_bits() -> None:
    far_apart = torch.empty((3, 2**30), dtype=torch.bfloat16, device=DEVICE)
    case = Projection(3, (6, 1), 128, torch.bfloat16, norm=True)
    expected, _ = case.run(qk_norm_rope, write=False)
    qkv = far_apart[:, : sum(case.sizes)]
    qkv.copy_(case.qkv)
    q, k, _ = qkv.split(case.sizes, dim=-1)
    qk_norm_rope(q, k, case.position_ids, case.table, 128, case.q_weight, case.k_weight, EPS)
    assert torch.equal(qkv, expected)


def replay(step: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """`step` captured, and its output of each replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()
    return graph, output


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(("heads", "head_dim"), [((64, 8), 128), ((9, 3), 64), ((6, 1), 80)])
def test_qk_norm_rope_adds_a_delta_as_lora_add_does(heads: tuple[int, int], head_dim: int, norm: bool) -> None:
    case = Projection(len(ALL_SLOTS), heads, head_dim, torch.bfloat16, norm)
    delta = make_lora_delta(case.sizes, ALL_SLOTS, torch.bfloat16, DEVICE)
    case.qkv = random_output(delta).contiguous()

    def step() -> Tensor:
        return torch.cat([x.flatten() for x in case.run(partial(qk_norm_rope, delta=delta))])

    qkv, cache = case.run(partial(qk_norm_rope, delta=delta))
    eager = step()
    graph, output = replay(step)
    graph.replay()
    assert same_bits(output, eager)

    q, k, v = qkv.split(case.sizes, dim=-1)
    assert same_bits(v, case.qkv.split(case.sizes, dim=-1)[2]), "only the cache has the values' delta"
    case.qkv = added(delta, case.qkv)
    expected, expected_cache = case.run(qk_norm_rope)
    for x, wanted in zip((q, k), expected.split(case.sizes, dim=-1), strict=False):
        assert same_bits(x, wanted)
    assert same_bits(cache, expected_cache)


@pytest.mark.parametrize("how", ["none", "token", "group", "static"])
def test_a_captured_chain_equals_the_eager_one(how: str) -> None:
    """The kernels start before their predecessors have ended; a missing wait would show here."""
    tokens, width = 16, 10240
    case = Projection(tokens, (64, 8), 128, torch.bfloat16, norm=True)
    x, residual = (random_rows(tokens, width, torch.bfloat16, seed) for seed in (1, 2))
    weight = random_weight(width, torch.bfloat16)
    static_x, static_residual = x.clone(), residual.clone()
    quantization = {"none": None, **dict(zip(("token", "group", "static"), quantizations(), strict=True))}[how]

    def read(out: Tensor, quantized: QuantizedActivation | None) -> None:
        """Through torch, whose kernels start when their predecessors have ended."""
        static_x.copy_(out if quantized is None else quantized.dequantize())

    def step() -> Tensor:
        for _ in range(3):
            read(static_x, fused_add_rms_norm(static_x, static_residual, weight, EPS, quantization))
            q, k, v = static_x.split(case.sizes, dim=-1)
            write = KvCacheWrite(v, case.kv_cache, case.cache_slots)
            qk_norm_rope(q, k, case.position_ids, case.table, 128, case.q_weight, case.k_weight, EPS, write)
            fused_add_rms_norm(static_x, static_residual, weight, EPS)
            read(*silu_and_mul(torch.cat((static_x, static_residual), dim=-1), quantization))
        return rms_norm(static_x, weight, EPS)[0]

    expected = step().clone()
    graph, output = replay(step)
    for _ in range(3):
        static_x.copy_(x)
        static_residual.copy_(residual)
        graph.replay()
        assert torch.equal(output, expected)


@pytest.mark.parametrize("captured", [False, True])
def test_an_early_launch_behind_a_join_waits_for_both_streams(captured: bool) -> None:
    """One side ends long after the other, and in turn; the norm behind the join reads what both wrote."""
    width, aux_stream = 5120, torch.cuda.Stream()
    x, long_residual = (random_rows(4, width, torch.bfloat16, seed) for seed in (1, 2))
    weight = random_weight(width, torch.bfloat16)
    factor = random_rows(width, width, torch.bfloat16, 3) / width**0.5
    buffers = [torch.empty_like(x) for _ in range(2)]

    def long_side(out: Tensor) -> None:
        product = long_residual.repeat(1024, 1)
        for _ in range(4):
            product = product @ factor
        out.copy_(product[:4])

    def short_side(out: Tensor) -> None:
        out.copy_(x)
        for _ in range(3):
            rms_norm_into(out)

    def rms_norm_into(out: Tensor) -> None:
        fused_add_rms_norm(out, x.clone(), weight, EPS)

    def step(main_is_long: bool, parallel: bool) -> Tensor:
        main, aux = (long_side, short_side) if main_is_long else (short_side, long_side)
        for buffer in buffers:
            buffer.zero_()
        if parallel:
            aux_stream.wait_stream(torch.cuda.current_stream())
            main(buffers[0])
            with torch.cuda.stream(aux_stream):
                aux(buffers[1])
            torch.cuda.current_stream().wait_stream(aux_stream)
        else:
            main(buffers[0])
            aux(buffers[1])
        fused_add_rms_norm(buffers[0], buffers[1], weight, EPS)
        return rms_norm(buffers[0], weight, EPS)[0]

    for main_is_long in (False, True):
        expected = step(main_is_long, parallel=False).clone()
        torch.cuda.synchronize()
        if captured:
            graph, output = replay(lambda main_is_long=main_is_long: step(main_is_long, parallel=True))
            for _ in range(5):
                graph.replay()
                assert torch.equal(output, expected)
        else:
            for _ in range(5):
                assert torch.equal(step(main_is_long, parallel=True), expected)
