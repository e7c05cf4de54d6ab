"""Base projections by themselves: every way to compute them, in CUDA graphs, with weights rotated past the cache.

What `streamed_linear_config` decides comes from here. Called by `tensorrt-lora bench kernels`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import triton
from triton import TritonError

from tensorrt_lora.bench.graph_timer import time_in_graph
from tensorrt_lora.bench.linear_case import ONE_SCALE, Candidate, LinearCase, Stored, projection_shapes
from tensorrt_lora.kernels.streamed_linear_config import MAX_STREAMED_TOKENS, StreamedLinearConfig

_LARGEST_ERROR = 0.06  # relative: rounding to float8 alone gives 0.026 to 0.037
_PROGRAMS = (60, 1700)  # outside, a configuration is not worth its time
# block_n, bytes of a block's K, warps, stages. Below 64 rows tensor cores run at half their width.
_FEW_TOKENS = (
    (32, 512, 4, 4),
    (64, 128, 4, 4),
    (64, 128, 4, 6),
    (64, 256, 4, 2),
    (64, 256, 4, 3),
    (64, 256, 4, 4),
    (64, 512, 4, 2),
    (128, 128, 4, 4),
    (128, 256, 4, 3),
    (128, 256, 8, 3),
)
_MORE_TOKENS = (
    (64, 128, 4, 4),
    (64, 128, 4, 6),
    (64, 256, 4, 3),
    (128, 128, 4, 4),
    (128, 128, 8, 5),
    (128, 256, 8, 3),
)
_SPLITS = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class LinearTiming:
    """One candidate at one shape and number of tokens; `problem` says why there is no time."""

    preset: str
    shape: str
    tokens: int
    candidate: str
    seconds: float
    bytes_per_second: float  # of weights
    error: float  # relative to the dequantised product of unrounded inputs
    config: StreamedLinearConfig | None = None
    problem: str = ""


class LinearBench:
    """Times every candidate at every shape.

    Args:
        presets: names of model shapes ("qwen3-32b-fp8").
        tokens: rows of the input.
        stored: how the weights are, for the kernel.
        sweep: try many configurations of the kernel, and report the best; else the one that the engine takes.

    Raises:
        ValueError: the device is not a GPU.
    """

    def __init__(
        self, presets: list[str], tokens: list[int], stored: list[Stored], *, device: torch.device, sweep: bool
    ) -> None:
        if device.type != "cuda":
            raise ValueError("kernels are timed on a CUDA device; there is none here")
        self._presets = presets
        self._tokens = tokens
        self._stored = stored
        self._device = device
        self._sweep = sweep

    def run(self, report: Callable[[LinearTiming], None]) -> None:
        """Time everything; `report` gets each result as it comes."""
        for preset in self._presets:
            for shape in projection_shapes(preset):
                case = LinearCase(shape, self._device)
                for tokens in self._tokens:
                    case.with_tokens(tokens)
                    for candidate in case.fixed_candidates():
                        report(self._time(preset, case, candidate))
                    if tokens <= MAX_STREAMED_TOKENS:
                        for stored in self._stored:
                            report(self._best_configuration(preset, case, stored))
                del case
                torch.cuda.empty_cache()

    def _best_configuration(self, preset: str, case: LinearCase, stored: Stored) -> LinearTiming:
        configs = list(_configs(case, stored)) if self._sweep else []
        timings = [
            self._time(preset, case, case.triton_candidate(config, stored), config)
            for config in [case.default_config(stored), *configs]
        ]
        return min(timings, key=lambda timing: timing.seconds if not timing.problem else float("inf"))

    def _time(
        self, preset: str, case: LinearCase, candidate: Candidate, config: StreamedLinearConfig | None = None
    ) -> LinearTiming:
        blank = LinearTiming(preset, case.shape.name, case.tokens, candidate.name, 0.0, 0.0, 0.0, config)
        try:
            error = ((candidate.call(0).float() - case.expected).norm() / case.expected.norm()).item()
            calls = [lambda i=i: candidate.call(i) for i in range(case.copies)]
            seconds = time_in_graph(calls, self._device)
        except (RuntimeError, ValueError, TritonError) as problem:
            return replace(blank, problem=f"{type(problem).__name__}: {str(problem).splitlines()[0]}")
        # The one that leaves the tokens' scales out is there to be compared with.
        if candidate.name != ONE_SCALE and not error < _LARGEST_ERROR:
            return replace(blank, error=error, problem=f"wrong by {error:.3f}")
        return replace(blank, seconds=seconds, bytes_per_second=candidate.weight_bytes / seconds, error=error)


def _configs(case: LinearCase, stored: Stored) -> Iterator[StreamedLinearConfig]:
    block_m, itemsize = case.default_config(stored).block_m, 2 if stored == "bf16" else 1
    for block_n, block_bytes, num_warps, num_stages in _FEW_TOKENS if block_m == 16 else _MORE_TOKENS:
        block_k = block_bytes // itemsize
        if stored == "blocks" and block_k != 128:
            continue
        tiles = triton.cdiv(case.shape.out_features, block_n)
        blocks = triton.cdiv(case.shape.in_features, block_k)
        for splits in _SPLITS:
            if _PROGRAMS[0] <= tiles * splits <= _PROGRAMS[1] and blocks >= 3 * splits:
                yield StreamedLinearConfig(block_m, block_n, block_k, splits, num_warps, num_stages)
