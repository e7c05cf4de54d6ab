"""Which decode batch sizes are captured as CUDA graphs.

Owns the graph settings of one engine. Set by users as `TorchLlmArgs.cuda_graph_config`, read by the graph
runner. Must not know whether there is a GPU.
"""

from pydantic import Field, model_validator

from tensorrt_lora.config.strict_base_model import StrictBaseModel


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

    def resolve_batch_sizes(self, engine_max_batch_size: int) -> list[int]:
        """The batch sizes to capture, ascending, none above the engine's largest batch (requests)."""
        if self.batch_sizes is not None:
            return sorted(self.batch_sizes)
        largest = min(self.max_batch_size or engine_max_batch_size, engine_max_batch_size)
        # Padding to a multiple of 8 wastes little; without padding, a missing size runs without a graph.
        sizes = [1, 2, 4, *range(8, largest, 8)] if self.enable_padding else list(range(1, largest))
        return [*(size for size in sizes if size < largest), largest]
