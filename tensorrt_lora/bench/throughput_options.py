"""What `bench throughput` measures.

Owns the options' names, bounds and defaults. Filled by the command line, read by `ThroughputBench`.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, field_validator

from tensorrt_lora.bench.bench_mode import BenchMode
from tensorrt_lora.bench.throughput_workload import ThroughputWorkload
from tensorrt_lora.bench.workload import AdapterMix
from tensorrt_lora.config.model_presets import find_preset
from tensorrt_lora.config.strict_base_model import StrictBaseModel

RequestRate: TypeAlias = Annotated[float, Field(gt=0)] | Literal["inf"]
"""Requests per second; "inf" submits all at once."""

_DEFAULT_MODES = (BenchMode.BASE, BenchMode.SEQUENTIAL, BenchMode.OVERLAP, BenchMode.BEST)


class ThroughputOptions(StrictBaseModel):
    """One run of the throughput benchmark. Raises ValueError (pydantic's) for values out of bounds."""

    preset: str = Field(description="Model shape and weight format, by the name of a preset.")
    isl: int = Field(default=256, ge=1, description="Input sequence length: tokens of each prompt, on average.")
    osl: int = Field(default=256, ge=2, description="Output sequence length: tokens generated, on average.")
    length_spread: float = Field(
        default=0.0, ge=0, lt=1, description="Lengths are drawn evenly from the averages less and plus this share."
    )
    request_rate: tuple[RequestRate, ...] = Field(
        default=(1.0, 4.0, 16.0, "inf"), min_length=1, description="Requests per second; inf is all at once."
    )
    num_requests: int = Field(default=128, ge=1, description="Requests at each rate.")
    lora_rank: int = Field(default=32, ge=1, description="Rank of every adapter, on all seven projections.")
    adapters: int = Field(default=8, ge=1, description="Most distinct adapters; there is a slot for each.")
    mix: AdapterMix = Field(default="identical", description="How adapters are spread over the requests.")
    modes: tuple[BenchMode, ...] = Field(
        default=_DEFAULT_MODES, min_length=1, description="What to compare; base is what the others are held against."
    )
    max_batch_size: int = Field(default=64, ge=1, description="Most requests in one step of the engine.")
    max_num_tokens: int = Field(default=8192, ge=1, description="Most tokens in one step of the engine.")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where the model runs.")
    seed: int = Field(default=0, ge=0, description="Of weights, arrivals, lengths, prompts and draws.")

    @field_validator("preset")
    @classmethod
    def _check_preset(cls, name: str) -> str:
        return find_preset(name).name

    @field_validator("request_rate")
    @classmethod
    def _sort_rates(cls, rates: tuple[RequestRate, ...]) -> tuple[RequestRate, ...]:
        return tuple(sorted(set(rates), key=float))

    @field_validator("modes")
    @classmethod
    def _check_modes(cls, modes: tuple[BenchMode, ...]) -> tuple[BenchMode, ...]:
        return tuple(mode for mode in BenchMode if mode in modes)

    def workload(self) -> ThroughputWorkload:
        """The requests, the same at every rate and in every mode."""
        return ThroughputWorkload(
            self.isl, self.osl, self.length_spread, self.num_requests, self.mix, self.adapters, self.seed
        )
