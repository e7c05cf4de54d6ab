import pytest
import torch

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_handle import COMBINED_ID, AdapterHandle, adapter_ids, source_of
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey
from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests


@pytest.mark.parametrize(("rank", "num_pages"), [(1, 1), (16, 1), (17, 2), (64, 4)])
def test_identity_and_pages(rank, num_pages):
    small = LoraModuleWeights(torch.ones(1, 8), torch.ones(1, 4), 1.0)
    large = LoraModuleWeights(torch.ones(rank, 8), torch.ones(rank, 4), 1.0)
    modules = {(0, LoraModuleType.ATTENTION_Q): small, (1, LoraModuleType.ATTENTION_Q): large}
    handle = AdapterHandle(0, "a1", AdapterWeights("a1", "v1", modules))
    assert handle.key == AdapterKey(0, "v1")
    assert (handle.version, handle.num_pages, handle.host_bytes) == ("v1", num_pages, (1 + rank) * 12 * 4)


def test_a_shared_matrix_counts_once():
    a = torch.ones(2, 8)
    modules = {
        (0, module_type): LoraModuleWeights(a, torch.ones(2, 4), 1.0)
        for module_type in (LoraModuleType.ATTENTION_Q, LoraModuleType.ATTENTION_K)
    }
    assert AdapterHandle(0, "a1", AdapterWeights("a1", "v1", modules)).host_bytes == 4 * (16 + 8 + 8)


def test_a_combination_is_known_by_its_parts():
    module = LoraModuleWeights(torch.ones(1, 8), torch.ones(1, 4), 1.0)
    weights = AdapterWeights("mix", "v1", {(0, LoraModuleType.ATTENTION_Q): module})
    a, b = LoRARequest("a", 3, "/a"), LoRARequest("b", 5, "/b")
    request = WeightedLoRARequests(((a, 0.5), (b, -1)))
    handle = AdapterHandle.create(request, weights)
    assert (handle.adapter_id, handle.name) == (COMBINED_ID, "0.5 * a + -1 * b")
    assert handle.source == source_of(request) == ((3, 0.5), (5, -1.0))
    assert adapter_ids(handle.source) == {3, 5}
    single = AdapterHandle.create(a, weights)
    assert (single.adapter_id, single.source, adapter_ids(single.source)) == (3, 3, {3})


def test_biases_and_magnitudes_count():
    module = LoraModuleWeights(torch.ones(1, 8), torch.ones(1, 4), 1.0, bias=torch.ones(4), magnitude=torch.ones(4))
    weights = AdapterWeights("a1", "v1", {(0, LoraModuleType.ATTENTION_Q): module})
    handle = AdapterHandle(0, "a1", weights)
    assert handle.host_bytes == 4 * (8 + 4 + 4 + 4)
    handle.check_size(LoRARequest("a1", 0, "/a1"), 80)
    with pytest.raises(AdapterError, match=r"it takes 80 bytes .*host_cache_size is 79; raise it to 80 or more"):
        handle.check_size(LoRARequest("a1", 0, "/a1"), 79)
