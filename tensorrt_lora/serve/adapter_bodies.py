"""The bodies of the admin routes, by vLLM's names."""

from pydantic import Field

from tensorrt_lora.config.strict_base_model import StrictBaseModel


class LoadLoraAdapterBody(StrictBaseModel):
    """POST /v1/load_lora_adapter."""

    lora_name: str = Field(description="What clients call the adapter.")
    lora_path: str = Field(
        min_length=1, description="Its directory inside the server's lora_root, absolute or relative to that."
    )
    load_inplace: bool = Field(
        default=False,
        description="Replace the adapter of that name. Requests that run finish on the version they began with.",
    )
    pinned: bool = Field(default=False, description="Keep it in memory, whatever else is loaded.")


class UnloadLoraAdapterBody(StrictBaseModel):
    """POST /v1/unload_lora_adapter."""

    lora_name: str = Field(description="The adapter's name.")
    lora_int_id: int | None = Field(default=None, description="Taken, and without effect: the name decides.")
