import pytest
import torch

from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey
from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights
from tensorrt_lora.lora.module_types import LoraModuleType


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
