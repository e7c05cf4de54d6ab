"""How the paged KV cache is sized and shared.

Owns the cache settings of one engine. Set by users as `TorchLlmArgs.kv_cache_config`, read by the engine when
it builds its cache. Must not know devices or models.
"""

from pydantic import Field, model_validator

from tensorrt_lora.config.strict_base_model import StrictBaseModel


class KvCacheConfig(StrictBaseModel):
    """KV cache settings of one engine. Raises ValueError (pydantic's) for values out of bounds."""

    enable_block_reuse: bool = Field(
        default=True,
        description="Share pages of equal prompt beginnings between requests of the same adapter.",
    )
    tokens_per_block: int = Field(default=16, ge=1, le=1024, description="Tokens in a page; a power of two.")
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens in the cache; None leaves it to free_gpu_memory_fraction alone.",
    )
    free_gpu_memory_fraction: float = Field(
        default=0.9,
        gt=0.0,
        lt=1.0,
        description="Share of the memory left after weights, adapters and graphs that the cache may take.",
    )

    @model_validator(mode="after")
    def _check_blocks(self) -> "KvCacheConfig":
        size = self.tokens_per_block
        if size & (size - 1):
            raise ValueError(f"tokens_per_block={size} is not a power of two: use 16, 32 or 64")
        if self.max_tokens is not None and self.max_tokens < size:
            raise ValueError(
                f"max_tokens={self.max_tokens} of the KV cache does not fill one page of "
                f"tokens_per_block={size}: raise it"
            )
        return self
