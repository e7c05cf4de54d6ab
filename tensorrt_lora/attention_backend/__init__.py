"""What attention needs per batch, and the implementations of it, by name."""

from tensorrt_lora.attention_backend.interface import AttentionBackend, AttentionBatch, AttentionMetadata
from tensorrt_lora.attention_backend.vanilla import VanillaAttention

__all__ = ["AttentionBackend", "AttentionBatch", "AttentionMetadata", "get_attention_backend"]


def get_attention_backend(name: str) -> type[AttentionBackend]:
    """The backend class called `name`: "VANILLA" or "FLASHINFER".

    Raises:
        ValueError: no such backend.
    """
    if name == "VANILLA":
        return VanillaAttention
    if name == "FLASHINFER":
        # Lazy: FlashInfer is an optional dependency that takes seconds to import.
        from tensorrt_lora.attention_backend.flashinfer import FlashInferAttention

        return FlashInferAttention
    raise ValueError(f"attention backend {name!r} does not exist; choose 'VANILLA' or 'FLASHINFER'")
