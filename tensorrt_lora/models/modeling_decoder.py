"""The decoder that every served architecture is a case of: embedding, pre-norm layers, final norm, head.

Module paths ("model.layers.3.self_attn") are those of Hugging Face checkpoints: weights and adapters bind by
name. Built by `create_model`, called by the engine. Knows nothing of requests, adapters or streams.
"""

import torch
from torch import nn

from tensorrt_lora.attention_backend.interface import AttentionBackend, AttentionMetadata
from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.kernels.lora_delta import LoraDelta
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.modules.attention import Attention
from tensorrt_lora.modules.embedding import Embedding, LMHead
from tensorrt_lora.modules.gated_mlp import GatedMLP
from tensorrt_lora.modules.linear_method_factory import LinearMethodFactory
from tensorrt_lora.modules.mlp import MLP
from tensorrt_lora.modules.rms_norm import RMSNorm
from tensorrt_lora.modules.rotary_embedding import RotaryEmbedding


class DecoderLayer(nn.Module):
    """Attention and feed-forward block, each behind a norm, around a residual stream."""

    def __init__(
        self,
        *,
        self_attn: Attention,
        mlp: GatedMLP | MLP,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(size=config.hidden_size, eps=config.rms_norm_eps, dtype=dtype, device=device)
        self.self_attn = self_attn
        self.post_attention_layernorm = RMSNorm(
            size=config.hidden_size, eps=config.rms_norm_eps, dtype=dtype, device=device
        )
        self.mlp = mlp

    def forward(
        self,
        position_ids: torch.Tensor,
        hidden_states: torch.Tensor,
        residual: torch.Tensor | None,
        delta: LoraDelta | None,
        attn_metadata: AttentionMetadata,
        lora_params: LoraParams | None,
    ) -> tuple[torch.Tensor, torch.Tensor, LoraDelta | None]:
        """One layer over T tokens.

        Args:
            position_ids: [T].
            hidden_states: [T, hidden], the previous block's output; may be overwritten.
            residual: [T, hidden], the stream it is still to be added to; may be overwritten. None in layer 0.
            delta: what is still to be added to `hidden_states`.
            attn_metadata: prepared for these tokens.
            lora_params: None when no token has an adapter.

        Returns:
            `hidden_states`, `residual` and `delta` for the next layer.
        """
        if residual is None:
            residual = hidden_states
            hidden_states, quantized = self.input_layernorm(hidden_states, self.self_attn.input_quantization)
        else:
            hidden_states, residual, quantized = self.input_layernorm.add_and_norm(
                hidden_states, residual, self.self_attn.input_quantization, delta
            )
        hidden_states, delta = self.self_attn(position_ids, hidden_states, attn_metadata, lora_params, quantized)
        hidden_states, residual, quantized = self.post_attention_layernorm.add_and_norm(
            hidden_states, residual, self.mlp.input_quantization, delta
        )
        hidden_states, delta = self.mlp(hidden_states, lora_params, quantized)
        return hidden_states, residual, delta


class DecoderModel(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(
        self, *, layers: list[DecoderLayer], config: ModelConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.embed_tokens = Embedding(
            vocab_size=config.vocab_size, hidden_size=config.hidden_size, dtype=dtype, device=device
        )
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(size=config.hidden_size, eps=config.rms_norm_eps, dtype=dtype, device=device)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attn_metadata: AttentionMetadata,
        lora_params: LoraParams | None,
    ) -> torch.Tensor:
        """[T] ids and positions -> [T, hidden]."""
        hidden_states = self.embed_tokens(input_ids, lora_params)
        residual, delta = None, None
        for layer in self.layers:
            hidden_states, residual, delta = layer(
                position_ids, hidden_states, residual, delta, attn_metadata, lora_params
            )
        assert residual is not None, "a decoder has at least one layer"
        hidden_states, _, _ = self.norm.add_and_norm(hidden_states, residual, delta=delta)
        return hidden_states


class DecoderModelForCausalLM(nn.Module):
    """A decoder with its language-model head. An architecture's subclass says what differs.

    Args:
        config: the model's shape.
        dtype: of the weights, which are left uninitialised, and of the forward.
        device: where they live.
        attn_backend: the class that attends over the paged cache.
        max_positions: longest sequence to serve.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        attn_backend: type[AttentionBackend],
        max_positions: int,
    ) -> None:
        super().__init__()
        self.config = config
        rotary_emb = RotaryEmbedding(config=config, max_positions=max_positions, device=device)
        layers = [
            DecoderLayer(
                self_attn=Attention(
                    layer_idx=layer_idx,
                    hidden_size=config.hidden_size,
                    num_heads=config.num_heads,
                    num_kv_heads=config.num_kv_heads,
                    head_dim=config.head_dim,
                    qkv_bias=config.qkv_bias,
                    o_bias=config.o_bias,
                    qk_norm_eps=config.rms_norm_eps if config.qk_norm else None,
                    rotary_emb=rotary_emb,
                    attn_backend=attn_backend,
                    dtype=dtype,
                    device=device,
                    methods=LinearMethodFactory(config.quantization, f"model.layers.{layer_idx}.self_attn"),
                ),
                mlp=self.make_mlp(
                    config,
                    layer_idx,
                    dtype,
                    device,
                    LinearMethodFactory(config.quantization, f"model.layers.{layer_idx}.mlp"),
                ),
                config=config,
                dtype=dtype,
                device=device,
            )
            for layer_idx in range(config.num_layers)
        ]
        self.model = DecoderModel(layers=layers, config=config, dtype=dtype, device=device)
        self.lm_head = LMHead(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            dtype=dtype,
            device=device,
            tied_to=self.model.embed_tokens if config.tie_word_embeddings else None,
        )

    @staticmethod
    def make_mlp(
        config: ModelConfig, layer_idx: int, dtype: torch.dtype, device: torch.device, methods: LinearMethodFactory
    ) -> GatedMLP | MLP:
        """The feed-forward block of one layer."""
        return GatedMLP(
            layer_idx=layer_idx,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            bias=config.mlp_bias,
            hidden_act=config.hidden_act,
            dtype=dtype,
            device=device,
            methods=methods,
        )

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attn_metadata: AttentionMetadata,
        lora_params: LoraParams | None,
    ) -> torch.Tensor:
        """Token ids [T] at positions [T] -> hidden states [T, hidden], ready for `compute_logits`."""
        return self.model(input_ids, position_ids, attn_metadata, lora_params)

    def compute_logits(self, hidden_states: torch.Tensor, lora_params: LoraParams | None) -> torch.Tensor:
        """[n, hidden] -> [n, vocab] float32; `lora_params` is prepared for these n rows, None: no LoRA on the head."""
        return self.lm_head(hidden_states, lora_params).float()
