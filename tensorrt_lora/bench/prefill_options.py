"""What `bench prefill` measures.

Owns the options' names, bounds and defaults. Filled by the command line, read by `PrefillBench`.
"""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from tensorrt_lora.bench.bench_mode import BenchMode
from tensorrt_lora.bench.workload import AdapterMix, Workload
from tensorrt_lora.config.model_presets import find_preset
from tensorrt_lora.config.strict_base_model import StrictBaseModel


class PrefillOptions(StrictBaseModel):
    """One run of the prefill benchmark. Raises ValueError (pydantic's) for values out of bounds."""

    preset: str = Field(description="Model shape and weight format, by the name of a preset.")
    tokens: tuple[int, ...] = Field(default=(8192,), min_length=1, description="Tokens of the step, over all prompts.")
    prompts: int = Field(default=1, ge=1, description="Prompts of the step, of equal lengths.")
    lora_rank: int = Field(default=32, ge=1, description="Rank of every adapter, on all seven projections.")
    adapters: int | None = Field(
        default=None, ge=1, description="Most distinct adapters in the step; None leaves it to the mix."
    )
    mix: AdapterMix = Field(default="identical", description="How adapters are spread over the prompts.")
    modes: tuple[BenchMode, ...] = Field(
        default=(BenchMode.BASE, BenchMode.IDLE, BenchMode.SEQUENTIAL),
        min_length=1,
        description="What to compare; base is what the others are held against.",
    )
    repeats: int = Field(default=10, ge=1, description="Measured steps per number of tokens and mode.")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where the model runs.")
    seed: int = Field(default=0, ge=0, description="Of weights, prompts and draws.")

    @field_validator("preset")
    @classmethod
    def _check_preset(cls, name: str) -> str:
        return find_preset(name).name

    @field_validator("tokens")
    @classmethod
    def _check_tokens(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if min(sizes) < 1:
            raise ValueError(f"tokens holds {min(sizes)}: a step has at least one token")
        return tuple(sorted(set(sizes)))

    @field_validator("modes")
    @classmethod
    def _check_modes(cls, modes: tuple[BenchMode, ...]) -> tuple[BenchMode, ...]:
        return tuple(mode for mode in BenchMode if mode in modes)

    @model_validator(mode="after")
    def _check_equal_prompts(self) -> "PrefillOptions":
        for size in self.tokens:
            if size % self.prompts:
                raise ValueError(
                    f"tokens holds {size}, which is no multiple of prompts={self.prompts}: prompts have equal lengths"
                )
        return self

    def workloads(self) -> list[Workload]:
        """The prompts of each number of tokens; each request ends with the token that its prefill gives."""
        return [
            Workload(size // self.prompts, 1, self.prompts, self.mix, self.adapters, self.seed) for size in self.tokens
        ]
