"""Which steps are captured as CUDA graphs: decode by batch size, small steps with a prefill by number of tokens.

Owns the graph settings of one engine. Set by users as `TorchLlmArgs.cuda_graph_config`, read by the graph
runner. Must not know whether there is a GPU.
"""

from typing import Annotated

from pydantic import Field, model_validator

from tensorrt_lora.config.strict_base_model import StrictBaseModel

# Up to some 200 tokens a step takes the time of its weights, beyond that every padding row costs: finer from there on.
# Up to some 2,000 the host launches for longer than an H200 computes: 1,024 tokens of Qwen3-32B in FP8 took 67 ms in a
# graph and 97 without, with LoRA 80 and 202.
_PREFILL_BUCKETS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
_LARGEST_PREFILL_BUCKET = 4096


class CudaGraphConfig(StrictBaseModel):
    """CUDA graph settings of one engine. Raises ValueError (pydantic's) for sizes that cannot be captured."""

    batch_sizes: list[int] | None = Field(
        default=None,
        description="Decode batch sizes to capture; None takes a spread of sizes up to max_batch_size.",
    )
    max_batch_size: int | None = Field(
        default=None,
        ge=1,
        description="Largest decode batch to capture; None takes the engine's max_batch_size.",
    )
    enable_padding: bool = Field(
        default=True,
        description="Run a batch in the next larger captured size; False runs batches of other sizes without a graph.",
    )
    prefill_token_buckets: list[Annotated[int, Field(ge=1, le=_LARGEST_PREFILL_BUCKET)]] | None = Field(
        default=None,
        description="Step sizes, in tokens, to capture for steps with a prefill in them; None takes a spread up to "
        "2048, or nothing without padding; an empty list runs all steps with a prefill without a graph.",
    )

    @model_validator(mode="after")
    def _check_batch_sizes(self) -> "CudaGraphConfig":
        if self.batch_sizes is None:
            return self
        if not self.batch_sizes:
            raise ValueError(
                "batch_sizes is empty: leave it out for the defaults, or set cuda_graph_config to null for no graphs"
            )
        if min(self.batch_sizes) < 1:
            raise ValueError(f"batch_sizes holds {min(self.batch_sizes)}: a batch has at least one request")
        if len(set(self.batch_sizes)) != len(self.batch_sizes):
            repeated = next(size for size in self.batch_sizes if self.batch_sizes.count(size) > 1)
            raise ValueError(f"batch_sizes holds {repeated} more than once: remove the copies")
        if self.max_batch_size is not None and max(self.batch_sizes) > self.max_batch_size:
            raise ValueError(
                f"batch_sizes holds {max(self.batch_sizes)}, more than "
                f"max_batch_size={self.max_batch_size} of cuda_graph_config: set one of the two"
            )
        return self

    @model_validator(mode="after")
    def _check_prefill_token_buckets(self) -> "CudaGraphConfig":
        buckets = self.prefill_token_buckets or []
        if len(set(buckets)) != len(buckets):
            repeated = next(size for size in buckets if buckets.count(size) > 1)
            raise ValueError(f"prefill_token_buckets holds {repeated} more than once: remove the copies")
        return self

    def resolve_batch_sizes(self, engine_max_batch_size: int) -> list[int]:
        """The batch sizes to capture, ascending, none above the engine's largest batch (requests)."""
        if self.batch_sizes is not None:
            return sorted(self.batch_sizes)
        largest = min(self.max_batch_size or engine_max_batch_size, engine_max_batch_size)
        # Padding to a multiple of 8 wastes little; without padding, a missing size runs without a graph.
        sizes = [1, 2, 4, *range(8, largest, 8)] if self.enable_padding else list(range(1, largest))
        return [*(size for size in sizes if size < largest), largest]

    def resolve_prefill_token_buckets(self, engine_max_num_tokens: int) -> list[int]:
        """The step sizes with a prefill to capture, ascending, none above the engine's largest step (tokens)."""
        if self.prefill_token_buckets is not None:
            return sorted(self.prefill_token_buckets)
        if not self.enable_padding:
            return []
        largest = min(_PREFILL_BUCKETS[-1], engine_max_num_tokens)
        return [*(size for size in _PREFILL_BUCKETS if size < largest), largest]
