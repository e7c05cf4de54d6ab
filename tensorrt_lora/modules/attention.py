"""Self-attention of one decoder layer: projections with LoRA, head norms, rotary embedding, the paged cache.

Called by `DecoderLayer`. How attention is computed is the backend's matter, how LoRA runs `LoraLayer`'s.
"""

import torch
from torch import nn

from tensorrt_lora.attention_backend.interface import AttentionBackend, AttentionMetadata
from tensorrt_lora.kernels.decode_attention import HeadNormRope
from tensorrt_lora.kernels.lora_delta import LoraDelta
from tensorrt_lora.kernels.qk_norm_rope import KvCacheWrite, qk_norm_rope
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization, QuantizedActivation
from tensorrt_lora.lora.layer import LoraLayer
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.modules.linear import Linear
from tensorrt_lora.modules.linear_method_factory import LinearMethodFactory
from tensorrt_lora.modules.rms_norm import RMSNorm
from tensorrt_lora.modules.rotary_embedding import RotaryEmbedding


class Attention(nn.Module):
    """Causal self-attention with grouped key/value heads. `num_heads * head_dim` need not be `hidden_size`.

    Args:
        layer_idx: index of the decoder layer.
        hidden_size: width of input and output.
        num_heads: query heads.
        num_kv_heads: key/value heads; divides `num_heads`.
        head_dim: size of a head.
        qkv_bias: whether q, k and v have biases.
        o_bias: whether the output projection has one.
        qk_norm_eps: None, or the epsilon of an RMSNorm over each query and key head (Qwen3).
        rotary_emb: shared by all layers of the model.
        attn_backend: the class that attends over the paged cache.
        dtype: of the weights.
        device: where they live.
        methods: of the projections; None leaves them unquantised.
    """

    def __init__(
        self,
        *,
        layer_idx: int,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        qkv_bias: bool,
        o_bias: bool,
        qk_norm_eps: float | None,
        rotary_emb: RotaryEmbedding,
        attn_backend: type[AttentionBackend],
        dtype: torch.dtype,
        device: torch.device,
        methods: LinearMethodFactory | None = None,
    ) -> None:
        super().__init__()
        methods = methods or LinearMethodFactory()
        self.layer_idx = layer_idx
        self.head_dim = head_dim
        self.q_size = num_heads * head_dim
        self.kv_size = num_kv_heads * head_dim
        sizes = (self.q_size, self.kv_size, self.kv_size)
        names = ("q_proj", "k_proj", "v_proj")
        self.qkv_proj = Linear(
            in_features=hidden_size,
            out_features=sum(sizes),
            bias=qkv_bias,
            dtype=dtype,
            device=device,
            checkpoint_parts=tuple(zip(names, sizes, strict=True)),
            method=methods.create(*names),
        )
        self.qkv_lora = LoraLayer(
            module_types=(LoraModuleType.ATTENTION_Q, LoraModuleType.ATTENTION_K, LoraModuleType.ATTENTION_V),
            hf_names=names,
            in_features=hidden_size,
            output_sizes=sizes,
        )
        self.o_proj = Linear(
            in_features=self.q_size,
            out_features=hidden_size,
            bias=o_bias,
            dtype=dtype,
            device=device,
            method=methods.create("o_proj"),
            lora=LoraLayer(
                module_types=(LoraModuleType.ATTENTION_DENSE,),
                hf_names=("o_proj",),
                in_features=self.q_size,
                output_sizes=(hidden_size,),
            ),
        )
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if qk_norm_eps is not None:
            self.q_norm = RMSNorm(size=head_dim, eps=qk_norm_eps, dtype=dtype, device=device)
            self.k_norm = RMSNorm(size=head_dim, eps=qk_norm_eps, dtype=dtype, device=device)
        self.rotary_emb = rotary_emb
        self.attn = attn_backend(layer_idx=layer_idx, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)

    @property
    def input_quantization(self) -> ActivationQuantization | None:
        """How the first projection reads its input, as in `Linear`."""
        return self.qkv_proj.input_quantization

    def forward(
        self,
        position_ids: torch.Tensor,
        hidden_states: torch.Tensor,
        attn_metadata: AttentionMetadata,
        lora_params: LoraParams | None,
        quantized: QuantizedActivation | None = None,
    ) -> tuple[torch.Tensor, LoraDelta | None]:
        """[T, hidden] at `position_ids` [T] -> [T, hidden], and what the next op has yet to add to it.

        Keys and values go to the metadata's cache. `quantized` is `hidden_states` under `input_quantization`, if that
        is done already.
        """
        base = self.qkv_proj.base(hidden_states, quantized)
        qkv, delta = self.qkv_lora.forward_with_delta(base, lora_params, self.layer_idx)
        q, k, v = qkv.split((self.q_size, self.kv_size, self.kv_size), dim=-1)
        norm_rope = self._norm_rope(position_ids)
        if attn_metadata.fuses_decode:
            output = self.attn.decode(q, k, v, norm_rope, attn_metadata, delta)
        else:
            self._norm_rotate_and_write(q, k, v, norm_rope, attn_metadata, delta)
            output = self.attn.forward(q, attn_metadata)
        return self.o_proj.forward_with_delta(output, lora_params, self.layer_idx)

    def _norm_rope(self, position_ids: torch.Tensor) -> HeadNormRope:
        return HeadNormRope(
            position_ids,
            self.rotary_emb.cos_sin_cache,
            q_weight=None if self.q_norm is None else self.q_norm.weight,
            k_weight=None if self.k_norm is None else self.k_norm.weight,
            eps=0.0 if self.q_norm is None else self.q_norm.eps,
        )

    def _norm_rotate_and_write(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        norm_rope: HeadNormRope,
        attn_metadata: AttentionMetadata,
        delta: LoraDelta | None,
    ) -> None:
        qk_norm_rope(
            q,
            k,
            norm_rope.position_ids,
            norm_rope.cos_sin_cache,
            self.head_dim,
            norm_rope.q_weight,
            norm_rope.k_weight,
            norm_rope.eps,
            KvCacheWrite(
                v, attn_metadata.kv_cache[self.layer_idx], attn_metadata.cache_slots[: attn_metadata.num_tokens]
            ),
            delta,
        )
