"""What `bench latency` measures.

Owns the options' names, bounds and defaults. Filled by the command line, read by `LatencyBench`.
"""

from typing import Literal

from pydantic import Field, field_validator

from tensorrt_lora.bench.bench_mode import BenchMode
from tensorrt_lora.bench.workload import AdapterMix, Workload
from tensorrt_lora.config.model_presets import find_preset
from tensorrt_lora.config.strict_base_model import StrictBaseModel


class LatencyOptions(StrictBaseModel):
    """One run of the latency benchmark. Raises ValueError (pydantic's) for values out of bounds."""

    preset: str = Field(description="Model shape and weight format, by the name of a preset.")
    isl: int = Field(default=256, ge=1, description="Input sequence length: tokens of each prompt.")
    osl: int = Field(default=256, ge=2, description="Output sequence length: tokens that each request generates.")
    concurrency: tuple[int, ...] = Field(
        default=(1, 8, 64), min_length=1, description="Batch sizes, in requests submitted at once."
    )
    lora_rank: int = Field(default=32, ge=1, description="Rank of every adapter, on all seven projections.")
    lora_ranks: tuple[int, ...] | None = Field(
        default=None, min_length=1, description="Ranks of the adapters in turn; None gives all of them lora_rank."
    )
    adapters: int | None = Field(
        default=None, ge=1, description="Most distinct adapters in a batch; None leaves it to the mix."
    )
    mix: AdapterMix = Field(default="identical", description="How adapters are spread over the requests.")
    modes: tuple[BenchMode, ...] = Field(
        default=tuple(BenchMode), min_length=1, description="What to compare; base is what the others are held against."
    )
    repeats: int = Field(default=3, ge=1, description="Measured batches per concurrency and mode.")
    max_num_tokens: int = Field(default=8192, ge=1, description="Most tokens in one step of the engine.")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where the model runs.")
    seed: int = Field(default=0, ge=0, description="Of weights, prompts and draws.")

    @field_validator("preset")
    @classmethod
    def _check_preset(cls, name: str) -> str:
        return find_preset(name).name

    @field_validator("concurrency")
    @classmethod
    def _check_concurrency(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if min(sizes) < 1:
            raise ValueError(f"concurrency holds {min(sizes)}: a batch has at least one request")
        return tuple(sorted(set(sizes)))

    @field_validator("lora_ranks")
    @classmethod
    def _check_lora_ranks(cls, ranks: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if ranks is not None and min(ranks) < 1:
            raise ValueError(f"lora_ranks holds {min(ranks)}: a rank is at least 1")
        return ranks

    @field_validator("modes")
    @classmethod
    def _check_modes(cls, modes: tuple[BenchMode, ...]) -> tuple[BenchMode, ...]:
        return tuple(mode for mode in BenchMode if mode in modes)

    @property
    def adapter_ranks(self) -> tuple[int, ...]:
        """Ranks that adapters have in turn."""
        return self.lora_ranks or (self.lora_rank,)

    def workloads(self) -> list[Workload]:
        """The batch of each concurrency."""
        return [
            Workload(self.isl, self.osl, concurrency, self.mix, self.adapters, self.seed)
            for concurrency in self.concurrency
        ]
