import numpy as np
import pytest
import torch

from tensorrt_lora.lora.adapter_slot_manager import Slot
from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights
from tensorrt_lora.lora.cuda_graph_lora_params import CudaGraphLoraParams
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.lora_plan import LoraPlan
from tensorrt_lora.lora.lora_plans import LoraPlans
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.modules.embedding import Embedding, LMHead

CPU = torch.device("cpu")


def test_embedding_rows_and_head_products() -> None:
    embedding = Embedding(vocab_size=7, hidden_size=4, dtype=torch.float32, device=CPU)
    head = LMHead(vocab_size=7, hidden_size=4, dtype=torch.float32, device=CPU)
    embedding.weight.normal_()
    head.weight.normal_()
    ids = torch.tensor([6, 0, 6])
    assert torch.equal(embedding(ids, None), embedding.weight[ids])
    hidden = torch.randn(2, 4)
    torch.testing.assert_close(head(hidden, None), hidden @ head.weight.T)


@pytest.mark.parametrize("embedding_is_adapted", [True, False])
def test_lora_moves_one_of_a_tied_pair(embedding_is_adapted: bool) -> None:
    """sglang 18634, peft 2018, unsloth 9326: engines that skip, merge or mix up the two."""
    embedding = Embedding(vocab_size=7, hidden_size=4, dtype=torch.float32, device=CPU)
    head = LMHead(vocab_size=7, hidden_size=4, dtype=torch.float32, device=CPU, tied_to=embedding)
    module_type = LoraModuleType.EMBED_TOKENS if embedding_is_adapted else LoraModuleType.LM_HEAD
    layer = embedding.lora if embedding_is_adapted else head.lora
    embedding.weight.normal_()
    a = torch.randn(2, layer.in_features)
    b = torch.randn(2, *layer.output_sizes)
    params = CudaGraphLoraParams(
        {layer.key(-1): layer.shape},
        num_slots=1,
        num_pages=1,
        max_rank=2,
        max_num_tokens=3,
        dtype=torch.float32,
        device=CPU,
    )
    weights = AdapterWeights("a", "1", {(-1, module_type): LoraModuleWeights(a, b, 0.5)})
    params.load_slot(Slot(0, (0,)), weights, {})
    params.write_batch(np.array([0, -1, 0], dtype=np.int32))
    lora_params = LoraParams(
        cuda_graph_params=params,
        use_cuda_graph_mode=False,
        num_seqs=3,
        lora_aux_stream=None,
        lora_plans=LoraPlans(LoraPlan.SEQUENTIAL),
    )
    ids, hidden, before = torch.tensor([6, 6, 1]), torch.randn(3, 4), embedding.weight.clone()
    vectors, logits = embedding.weight[ids].clone(), hidden @ embedding.weight.T
    if embedding_is_adapted:
        vectors[[0, 2]] += 0.5 * a.T[ids[[0, 2]]] @ b
    else:
        logits[[0, 2]] += 0.5 * hidden[[0, 2]] @ a.T @ b
    torch.testing.assert_close(embedding(ids, lora_params), vectors)
    torch.testing.assert_close(head(hidden, lora_params), logits)
    assert torch.equal(embedding.weight, before)


def test_a_tied_head_is_the_embeddings_parameter() -> None:
    embedding = Embedding(vocab_size=7, hidden_size=4, dtype=torch.float32, device=CPU)
    head = LMHead(vocab_size=7, hidden_size=4, dtype=torch.float32, device=CPU, tied_to=embedding)
    assert head.weight is embedding.weight
