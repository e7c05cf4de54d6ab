"""Random adapters: every site, the right shapes, different from one another, of the stated size."""

import pytest
import torch

from tensorrt_lora.bench.random_adapter_reader import RandomAdapterReader
from tensorrt_lora.lora.lora_site import LoraSite
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.lora_request import LoRARequest

SITES = {
    f"{layer}.{leaf}": LoraSite(layer, module_type, leaf, in_features, out_features)
    for layer in range(2)
    for leaf, module_type, in_features, out_features in (
        ("q_proj", LoraModuleType.ATTENTION_Q, 256, 128),
        ("down_proj", LoraModuleType.MLP_4H_TO_H, 512, 256),
    )
}
RANK = 4


@pytest.fixture
def reader() -> RandomAdapterReader:
    return RandomAdapterReader(SITES, num_adapters=3, ranks=[RANK], dtype=torch.float32, pin_memory=False)


def request_of(adapter: int) -> LoRARequest:
    return LoRARequest(f"random-{adapter}", adapter, "nowhere")


def test_every_site_has_weights_of_its_shape(reader: RandomAdapterReader) -> None:
    weights = reader.read(request_of(2))
    assert set(weights.modules) == {(site.layer_idx, site.module_type) for site in SITES.values()}
    for site in SITES.values():
        module = weights.modules[site.layer_idx, site.module_type]
        assert module.a.shape == (RANK, site.in_features) and module.b.shape == (RANK, site.out_features)
        assert module.a.is_contiguous() and module.b.is_contiguous()
    assert weights.max_rank == RANK
    assert weights.nbytes == 2 * RANK * (256 + 128 + 512 + 256) * 4


def test_adapters_and_sites_differ_and_reading_again_does_not(reader: RandomAdapterReader) -> None:
    first, second, again = (reader.read(request_of(adapter)) for adapter in (0, 1, 0))
    key = (0, LoraModuleType.ATTENTION_Q)
    assert not torch.equal(first.modules[key].a, second.modules[key].a)
    assert not torch.equal(first.modules[key].a, first.modules[1, LoraModuleType.ATTENTION_Q].a)
    assert torch.equal(first.modules[key].b, again.modules[key].b)
    assert first.version != second.version and first.version == again.version


def test_a_delta_is_half_as_large_as_its_input(reader: RandomAdapterReader) -> None:
    x = torch.randn(64, 512)
    module = reader.read(request_of(1)).modules[1, LoraModuleType.MLP_4H_TO_H]
    delta = module.scale * (x @ module.a.T) @ module.b
    assert 0.3 < delta.std() < 0.7


def test_ranks_take_turns() -> None:
    reader = RandomAdapterReader(SITES, num_adapters=3, ranks=[RANK, 16], dtype=torch.float32, pin_memory=False)
    assert [reader.rank(adapter) for adapter in range(3)] == [RANK, 16, RANK]
    adapters = [reader.read(request_of(adapter)) for adapter in range(3)]
    assert [weights.max_rank for weights in adapters] == [RANK, 16, RANK]
    assert adapters[1].nbytes == 16 // RANK * adapters[0].nbytes
    x = torch.randn(64, 512)
    module = adapters[1].modules[1, LoraModuleType.MLP_4H_TO_H]
    assert 0.3 < (module.scale * (x @ module.a.T) @ module.b).std() < 0.7
