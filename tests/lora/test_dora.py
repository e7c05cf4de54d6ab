"""DoRA's gain against PEFT's own weight norm."""

import pytest
import torch
from peft.tuners.lora.dora import DoraEmbeddingLayer, DoraLinearLayer

from tensorrt_lora.lora import dora
from tensorrt_lora.lora.dora import dora_gain


@pytest.mark.parametrize("block_values", [1, 60, 1 << 24])
@pytest.mark.parametrize("is_embedding", [True, False])
def test_gain_is_that_of_peft(is_embedding: bool, block_values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dora, "_BLOCK_VALUES", block_values)
    out, in_features, rank, scale = 12, 20, 3, 0.7
    weight = torch.randn(in_features, out) if is_embedding else torch.randn(out, in_features)
    a, b, magnitude = torch.randn(rank, in_features), torch.randn(rank, out), torch.rand(out) + 0.5
    theirs = DoraEmbeddingLayer(True) if is_embedding else DoraLinearLayer(False)
    norm = theirs.get_weight_norm(weight, b.T @ a, scale)
    gain = dora_gain(weight, a, b, scale, magnitude, is_embedding=is_embedding)
    torch.testing.assert_close(gain, magnitude / norm - 1, atol=1e-6, rtol=1e-5)


def test_bfloat16_weights_are_computed_with_in_float32() -> None:
    weight, a, b = torch.randn(8, 64).bfloat16(), torch.randn(2, 64).bfloat16(), torch.randn(2, 8).bfloat16()
    exact = (weight.double() + 0.5 * b.double().T @ a.double()).norm(dim=1)
    gain = dora_gain(weight, a, b, 0.5, torch.full((8,), 8.0))
    assert gain.dtype == torch.float32
    torch.testing.assert_close(gain.double(), 8.0 / exact - 1, atol=1e-6, rtol=1e-5)


def test_an_output_without_weights_has_no_gain() -> None:
    weight = torch.zeros(2, 4)
    weight[1] = 1.0
    gain = dora_gain(weight, torch.zeros(1, 4), torch.zeros(1, 2), 1.0, torch.tensor([0.0, 3.0]))
    assert gain.tolist() == [0.0, 0.5]
