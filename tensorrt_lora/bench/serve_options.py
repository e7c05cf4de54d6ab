"""What `bench serve` measures.

Owns the options' names, bounds and defaults. Filled by the command line, read by `ServeBench`.
"""

from typing import Literal

from pydantic import Field, field_validator

from tensorrt_lora.config.model_presets import find_preset
from tensorrt_lora.config.strict_base_model import StrictBaseModel


class ServeOptions(StrictBaseModel):
    """One run of the serving benchmark. Raises ValueError (pydantic's) for values out of bounds."""

    preset: str = Field(description="Model shape and weight format, by the name of a preset.")
    isl: int = Field(default=256, ge=1, description="Tokens of each prompt.")
    osl: int = Field(default=256, ge=2, description="Tokens that each request generates.")
    concurrency: int = Field(default=64, ge=1, description="Streams at once; the engine's largest batch.")
    rounds: int = Field(default=2, ge=1, description="Requests of each stream, one after the other.")
    repeats: int = Field(default=3, ge=1, description="Measurements of each side, in turn.")
    adapters: int = Field(default=4, ge=0, description="Adapters; requests take the base model and these in turn.")
    lora_rank: int = Field(default=32, ge=1, description="Rank of every adapter, on all seven projections.")
    clients: int = Field(default=4, ge=1, description="Processes that the streams are spread over.")
    max_num_tokens: int = Field(default=8192, ge=1, description="Most tokens in one step of the engine.")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where the model runs.")
    seed: int = Field(default=0, ge=0, description="Of weights and prompts.")

    @field_validator("preset")
    @classmethod
    def _check_preset(cls, name: str) -> str:
        return find_preset(name).name

    @property
    def num_requests(self) -> int:
        """Requests of one measurement."""
        return self.concurrency * self.rounds
