import pytest
import torch

from tensorrt_lora.adapters.piecewise import copy_finite, pieces


@pytest.mark.parametrize("shape", [(7,), (40_000,), (3, 50_000), (1000, 72), (0, 5), (5, 0)])
def test_pieces_are_all_rows_in_order(shape):
    values = torch.arange(torch.Size(shape).numel()).view(shape)
    parts = [part for part, _ in pieces(values, values)]
    assert torch.equal(torch.cat(parts) if parts else values, values)
    assert all(part.shape[0] == 1 or part.numel() <= 32768 for part in parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(700, 72), (3, 40_000), (40_000,), (0, 8)])
@pytest.mark.parametrize("transposed", [False, True])
def test_copies_equal_torchs_own(shape, dtype, transposed):
    source = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    if transposed:
        source = source.mT if source.dim() == 2 else source
    target = torch.empty(source.shape, dtype=dtype)
    assert copy_finite(target, source)
    assert torch.equal(target, source.to(dtype))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e39])
@pytest.mark.parametrize("place", [(0, 0), (399, 99)])
@pytest.mark.parametrize("transposed", [False, True])
def test_what_is_not_finite_in_the_targets_dtype_is_told_and_the_rest_is_copied(value, place, transposed):
    source = torch.ones(400, 100, dtype=torch.float64)
    source[place] = value
    wanted = source.mT if transposed else source
    target = torch.zeros(wanted.shape)
    assert not copy_finite(target, wanted)
    assert torch.equal(target.nan_to_num(), wanted.float().nan_to_num())
