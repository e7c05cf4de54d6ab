"""A LoRA delta added by the norm and by SiLU-and-mul on a GPU: the bits of `lora_add` and the op, and in graphs."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tensorrt_lora.kernels.activation import silu_and_mul
from tensorrt_lora.kernels.linear import linear
from tensorrt_lora.kernels.linear_weight import LinearWeight, tile_counters
from tensorrt_lora.kernels.lora_add import lora_add
from tensorrt_lora.kernels.lora_delta import LoraDelta
from tensorrt_lora.kernels.lora_expand import lora_expand
from tensorrt_lora.kernels.lora_shrink import lora_shrink, num_splits
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization, QuantizedActivation
from tensorrt_lora.kernels.rms_norm import fused_add_rms_norm
from tests.support.graph_replay import replay_equals
from tests.support.lora_deltas import ALL_SLOTS, added, make_lora_delta, random_output, same_bits
from tests.support.lora_tables import make_lora_batch, make_lora_tables

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
EPS = 1e-6
TOKEN_SLOTS = [[-1], [2], [5], list(range(-1, 7)), (ALL_SLOTS * 6)[:64]]


def quantizations() -> list[ActivationQuantization | None]:
    static = ActivationQuantization(static_scale=torch.tensor(0.02, device=DEVICE))
    return [None, ActivationQuantization(), ActivationQuantization(by_group=True), static]


def assert_same(actual: QuantizedActivation | None, expected: QuantizedActivation | None) -> None:
    assert (actual is None) is (expected is None)
    if actual is not None and expected is not None:
        assert same_bits(actual.values, expected.values) and same_bits(actual.scale, expected.scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [5120, 1000, 75])
@pytest.mark.parametrize("token_slots", TOKEN_SLOTS)
def test_norm_has_the_bits_of_two_ops(token_slots: list[int], width: int, dtype: torch.dtype) -> None:
    delta = make_lora_delta((width,), token_slots, dtype, DEVICE)
    x = random_output(delta)
    residual = torch.randn((len(token_slots), width), device=DEVICE).to(dtype)
    weight = torch.randn(width, device=DEVICE).to(dtype)
    for how in quantizations():
        expected_x, expected_residual = added(delta, x), residual.clone()
        expected = fused_add_rms_norm(expected_x, expected_residual, weight, EPS, how)
        for _ in range(2):
            actual_x, actual_residual = x.clone(), residual.clone()
            actual = fused_add_rms_norm(actual_x, actual_residual, weight, EPS, how, delta)
            assert same_bits(actual_residual, expected_residual)
            assert same_bits(actual_x, expected_x)
            assert_same(actual, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [25600, 1000, 75])
@pytest.mark.parametrize("token_slots", TOKEN_SLOTS)
def test_silu_and_mul_has_the_bits_of_two_ops(token_slots: list[int], width: int, dtype: torch.dtype) -> None:
    delta = make_lora_delta((width, width), token_slots, dtype, DEVICE)
    gate_up = random_output(delta)
    for how in quantizations():
        expected_product, expected = silu_and_mul(added(delta, gate_up), how)
        for _ in range(2):
            product, actual = silu_and_mul(gate_up, how, delta)
            assert same_bits(product, expected_product)
            assert_same(actual, expected)


@dataclass(slots=True)
class Projection:
    """A weight, and where its LoRA branch leaves h and the delta."""

    weight: LinearWeight
    h: Tensor
    delta: LoraDelta

    def run(self, x: Tensor, aux_stream: torch.cuda.Stream) -> Tensor:
        """The base output; the delta comes on a second stream, as in the engine."""
        main_stream = torch.cuda.current_stream()
        aux_stream.wait_stream(main_stream)
        with torch.cuda.stream(aux_stream):
            lora_shrink(x, self.delta.tables, self.delta.batch, self.h)
            lora_expand(self.h, self.delta.tables, self.delta.batch, self.delta.values, accumulate=False)
        out = linear(x, self.weight, x.dtype)
        main_stream.wait_stream(aux_stream)
        return out


def make_projection(in_features: int, output_sizes: tuple[int, ...], token_slots: list[int]) -> Projection:
    ranks, out_features, rows = [32, 8, 17, 64, 0, 3, 1], sum(output_sizes), len(token_slots)
    tables = make_lora_tables(
        in_features=in_features,
        output_sizes=output_sizes,
        ranks=[ranks, ranks[::-1]][: len(output_sizes)],
        dtype=torch.bfloat16,
        device=DEVICE,
    )
    values = torch.randn((out_features, in_features), device=DEVICE).bfloat16() * in_features**-0.5
    splits = num_splits(rows, in_features, DEVICE)
    return Projection(
        weight=LinearWeight(values, counters=tile_counters(out_features, DEVICE)),
        h=torch.full((splits, len(output_sizes), rows, tables.max_rank), torch.nan, device=DEVICE),
        delta=LoraDelta(
            values=torch.full((rows, out_features), torch.nan, device=DEVICE, dtype=torch.bfloat16),
            tables=tables,
            batch=make_lora_batch(token_slots, len(ranks), device=DEVICE),
        ),
    )


@pytest.mark.parametrize("token_slots", [[1], list(range(-1, 7)), [0] * 20 + [-1, 2] * 14])
def test_a_chain_in_a_graph(token_slots: list[int]) -> None:
    """Gate and up, down, norm, over and over, early launches and all: a missed wait would read old values."""
    hidden, width, depth = 2048, 4096, 8
    layers = [
        (make_projection(hidden, (width, width), token_slots), make_projection(width, (hidden,), token_slots))
        for _ in range(depth)
    ]
    norm_weight = (1 + 0.1 * torch.randn(hidden, device=DEVICE)).bfloat16()
    x = torch.zeros((len(token_slots), hidden), device=DEVICE, dtype=torch.bfloat16)
    aux_stream = torch.cuda.Stream()

    def left_to_add(projection: Projection, out: Tensor, *, deferred: bool) -> LoraDelta | None:
        delta = projection.delta
        if deferred:
            return delta
        lora_add(delta.values, delta.tables, delta.batch, out)
        return None

    def chain(*, deferred: bool) -> Tensor:
        y, residual = x.clone(), x.clone()
        for gate_up, down in layers:
            out = gate_up.run(y, aux_stream)
            product, _ = silu_and_mul(out, delta=left_to_add(gate_up, out, deferred=deferred))
            y = down.run(product, aux_stream)
            delta = left_to_add(down, y, deferred=deferred)
            fused_add_rms_norm(y, residual, norm_weight, EPS, delta=delta)
        return y

    replay_equals(lambda: chain(deferred=True), lambda: chain(deferred=False), x)
    assert chain(deferred=True).isfinite().all()
