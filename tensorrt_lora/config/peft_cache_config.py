"""How much memory adapters may take.

Owns the byte limits of the adapter store. Set by users as `TorchLlmArgs.peft_cache_config`, read by the
adapter store and the slot tables. The counts in `LoraConfig` bind beside them.
"""

from pydantic import Field

from tensorrt_lora.config.strict_base_model import StrictBaseModel


class PeftCacheConfig(StrictBaseModel):
    """Adapter memory of one engine. Raises ValueError (pydantic's) for values out of bounds."""

    host_cache_size: int = Field(default=2**30, ge=1, description="Host memory for adapters, in bytes.")
    device_cache_percent: float = Field(
        default=0.02,
        gt=0.0,
        lt=1.0,
        description="Share (0 to 1) of the device memory left after the model's weights for adapters.",
    )
