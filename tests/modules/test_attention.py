from typing import cast

import pytest
import torch
from transformers import LlamaConfig

from tensorrt_lora.attention_backend import AttentionBatch, AttentionMetadata, get_attention_backend
from tensorrt_lora.attention_backend.vanilla import VanillaAttention, VanillaAttentionMetadata
from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.kernels.decode_attention import HeadNormRope, PageTables, fused_decode_attention
from tensorrt_lora.kernels.decode_attention_config import balanced_slice
from tensorrt_lora.kernels.decode_attention_workspace import DecodeAttentionWorkspace
from tensorrt_lora.kernels.lora_delta import LoraDelta
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.lora_site import find_lora_sites
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.modules.attention import Attention
from tensorrt_lora.modules.rotary_embedding import RotaryEmbedding
from tests.support.completed import completed
from tests.support.merged_lora import patch_lora

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, TOKENS = 12, 4, 2, 8, 7
CPU = torch.device("cpu")
Q_SIZE, KV_SIZE = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM


def make_attention(qk_norm_eps: float | None = None) -> Attention:
    hf_config = LlamaConfig(
        hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM
    )
    rotary_emb = RotaryEmbedding(config=ModelConfig.from_hf(hf_config, None), max_positions=16, device=CPU)
    attention = Attention(
        layer_idx=0,
        hidden_size=HIDDEN,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        qkv_bias=True,
        o_bias=True,
        qk_norm_eps=qk_norm_eps,
        rotary_emb=rotary_emb,
        attn_backend=get_attention_backend("VANILLA"),
        dtype=torch.float32,
        device=CPU,
    )
    for parameter in attention.parameters():
        parameter.normal_(std=0.4)
    return attention


def run(attention: Attention, x: torch.Tensor, lora_params: LoraParams | None) -> torch.Tensor:
    metadata = attention.attn.Metadata(
        kv_cache=torch.zeros(1, 4, 2, 4, KV_HEADS, HEAD_DIM),
        num_heads=HEADS,
        max_num_requests=1,
        max_num_tokens=TOKENS,
        use_cuda_graph=False,
    )
    metadata.prepare(AttentionBatch(1, [TOKENS], [TOKENS], [[2, 1]]))
    return completed(*attention(torch.arange(TOKENS), x, metadata, lora_params))


def test_lora_equals_changed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, x = make_attention(qk_norm_eps=1e-6), torch.randn(TOKENS, HIDDEN)
    qkv_delta = 0.3 * torch.randn(Q_SIZE + 2 * KV_SIZE, HIDDEN)
    o_delta = 0.3 * torch.randn(HIDDEN, Q_SIZE)
    params = cast(LoraParams, {})
    base = run(attention, x, None)
    with monkeypatch.context() as patch:
        patch_lora(patch, {("q_proj", "k_proj", "v_proj"): qkv_delta, ("o_proj",): o_delta}, params, layer_idx=0)
        adapted = run(attention, x, params)
    attention.qkv_proj.weight.add_(qkv_delta)
    attention.o_proj.weight.add_(o_delta)
    torch.testing.assert_close(adapted, run(attention, x, None), rtol=1e-5, atol=1e-5)
    assert (adapted - base).abs().max() > 0.1


def test_head_norms_come_before_the_rotation_and_see_single_heads() -> None:
    """A scale of one head's query weights changes nothing: its norm takes it out again."""
    attention, x = make_attention(qk_norm_eps=1e-12), torch.randn(TOKENS, HIDDEN)
    before = run(attention, x, None)
    attention.qkv_proj.weight[HEAD_DIM : 2 * HEAD_DIM] *= 3
    assert attention.qkv_proj.bias is not None
    attention.qkv_proj.bias[HEAD_DIM : 2 * HEAD_DIM] *= 3
    torch.testing.assert_close(run(attention, x, None), before, rtol=1e-5, atol=1e-5)


def test_sites_have_tensorrt_llms_types() -> None:
    sites = find_lora_sites(torch.nn.ModuleDict({"self_attn": make_attention()}))
    assert {name: (site.module_type, site.in_features, site.out_features) for name, site in sites.items()} == {
        "self_attn.q_proj": (LoraModuleType.ATTENTION_Q, HIDDEN, Q_SIZE),
        "self_attn.k_proj": (LoraModuleType.ATTENTION_K, HIDDEN, KV_SIZE),
        "self_attn.v_proj": (LoraModuleType.ATTENTION_V, HIDDEN, KV_SIZE),
        "self_attn.o_proj": (LoraModuleType.ATTENTION_DENSE, Q_SIZE, HIDDEN),
    }


class _FusingMetadata(VanillaAttentionMetadata):
    """Says that decode steps are fused, and keeps their page tables as a device would read them."""

    def prepare(self, batch: AttentionBatch) -> None:
        super().prepare(batch)
        self.batch = batch

    @property
    def fuses_decode(self) -> bool:
        return self.batch.num_contexts == 0

    def tables(self) -> PageTables:
        counts = torch.tensor([0] + [len(ids) for ids in self.batch.page_ids])
        last_page_len = (torch.tensor(self.batch.kv_lens) - 1) % self.page_size + 1
        page_ids = torch.tensor([page for ids in self.batch.page_ids for page in ids])
        slice_tokens = torch.tensor([balanced_slice(sum(self.batch.kv_lens), self.num_kv_heads)])
        return PageTables(counts.cumsum(0).int(), page_ids.int(), last_page_len.int(), slice_tokens.int())


class _FusingAttention(VanillaAttention):
    Metadata = _FusingMetadata

    def decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        norm_rope: HeadNormRope,
        metadata: AttentionMetadata,
        delta: LoraDelta | None = None,
    ) -> torch.Tensor:
        assert isinstance(metadata, _FusingMetadata)
        cache = metadata.kv_cache[self.layer_idx]
        workspace = DecodeAttentionWorkspace.create(cache, self.num_heads, q.shape[0])
        return fused_decode_attention(q, k, v, norm_rope, cache, metadata.tables(), workspace, delta)


@pytest.mark.parametrize("qk_norm_eps", [None, 1e-6])
def test_a_backend_that_fuses_decode_gets_projections(qk_norm_eps: float | None) -> None:
    attention, x = make_attention(qk_norm_eps), torch.randn(2, HIDDEN)
    backends = [
        backend(layer_idx=0, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM)
        for backend in (VanillaAttention, _FusingAttention)
    ]
    cache = torch.randn(1, 4, 2, 4, KV_HEADS, HEAD_DIM)
    outputs, caches = [], []
    for backend in backends:
        attention.attn = backend
        metadata = backend.Metadata(
            kv_cache=cache.clone(), num_heads=HEADS, max_num_requests=2, max_num_tokens=2, use_cuda_graph=False
        )
        metadata.prepare(AttentionBatch(0, [1, 1], [6, 3], [[2, 1], [3]]))
        outputs.append(completed(*attention(torch.tensor([5, 2]), x, metadata, None)))
        caches.append(metadata.kv_cache)
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(caches[1], caches[0])
    assert not torch.equal(caches[0], cache)
