"""Whether running streams notice that a large adapter loads.

    python -m tensorrt_lora.bench.adapter_load_bench MODEL --megabytes 500 --streams 4
    python -m tensorrt_lora.bench.adapter_load_bench --preset qwen3-8b-bf16

Streams base requests from one engine, loads, uses once and unloads adapters from disk meanwhile, and prints the time
between tokens in each phase. Uses the public calls alone, as a server does.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from tensorrt_lora.bench.percentiles import Percentiles
from tensorrt_lora.bench.random_adapter_files import RandomAdapterFiles
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.config.model_presets import find_preset
from tensorrt_lora.config.peft_cache_config import PeftCacheConfig
from tensorrt_lora.llmapi.llm import LLM
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.sampling_params import SamplingParams

Phase = Literal["before", "loading", "first use"]
_PROMPT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class _Span:
    """When a phase began and ended."""

    phase: Phase
    start: float
    end: float


@dataclass(slots=True)
class LoadBenchResult:
    """The times between consecutive tokens of a stream, of all streams, as (first, second) moments in seconds."""

    tokens: list[tuple[float, float]] = field(default_factory=list)
    spans: list[_Span] = field(default_factory=list)

    @property
    def gaps(self) -> dict[Phase, list[float]]:
        """Seconds between tokens by phase; one that touches several phases counts in the last of them."""
        gaps: dict[Phase, list[float]] = {"before": [], "loading": [], "first use": []}
        for first, second in self.tokens:
            touched = [span.phase for span in self.spans if first < span.end and span.start < second]
            if touched:
                gaps[touched[-1]].append(second - first)
        return gaps

    @property
    def load_seconds(self) -> list[float]:
        return [span.end - span.start for span in self.spans if span.phase == "loading"]

    def table(self) -> Table:
        """One row per phase, in milliseconds."""
        table = Table("phase", "tokens", "median ms", "p99 ms", "worst ms", title="time between tokens")
        for phase, gaps in self.gaps.items():
            if gaps:
                times = Percentiles.of([gap * 1e3 for gap in gaps])
                table.add_row(phase, str(len(gaps)), f"{times.p50:.1f}", f"{times.p99:.1f}", f"{max(gaps) * 1e3:.1f}")
        return table


class AdapterLoadBench:
    """One run on a given engine.

    Args:
        llm: with LoRA, slots for the adapters' rank and host memory for one of them at least.
        adapters: each is loaded, used for one token, and unloaded, in turn.
        num_streams: base requests that run all the time.
        quiet_seconds: how long nothing is loaded before each, since steps grow longer as the streams do.
    """

    def __init__(
        self, llm: LLM, adapters: Sequence[LoRARequest], *, num_streams: int = 4, quiet_seconds: float = 10.0
    ) -> None:
        self._llm = llm
        self._adapters = adapters
        self._num_streams = num_streams
        self._quiet_seconds = quiet_seconds
        self._result = LoadBenchResult()

    def run(self) -> LoadBenchResult:
        """Raises AdapterError for adapters that the engine refuses."""
        asyncio.run(self._run())
        return self._result

    async def _run(self) -> None:
        started = [asyncio.Event() for _ in range(self._num_streams)]
        streams = [asyncio.create_task(self._stream(index, event)) for index, event in enumerate(started)]
        try:
            for event in started:
                await event.wait()
            for adapter in self._adapters:
                with self._span("before"):
                    await asyncio.sleep(self._quiet_seconds)
                await self._load(adapter)
        finally:
            for stream in streams:
                stream.cancel()
                with suppress(asyncio.CancelledError):
                    await stream

    async def _load(self, adapter: LoRARequest) -> None:
        with self._span("loading"):
            await asyncio.wrap_future(self._llm.load_lora_async(adapter))
        with self._span("first use"):
            await self._llm.generate_async([1] * _PROMPT_TOKENS, SamplingParams(max_tokens=1), adapter)
        await asyncio.to_thread(self._llm.unload_lora, adapter.lora_int_id)

    @contextmanager
    def _span(self, phase: Phase) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._result.spans.append(_Span(phase, start, time.perf_counter()))

    async def _stream(self, index: int, started: asyncio.Event) -> None:
        """One stream after the other, so that there is always one."""
        params = SamplingParams(max_tokens=int(self._llm.info["max_seq_len"]) - _PROMPT_TOKENS, ignore_eos=True)
        while True:
            future = self._llm.generate_async([index + 1] * _PROMPT_TOKENS, params, streaming=True)
            before = None
            try:
                async for _ in future:
                    now = time.perf_counter()
                    if before is not None:
                        self._result.tokens.append((before, now))
                    before = now
                    started.set()
            finally:
                future.abort()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time between tokens while adapters load.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("model", nargs="?", help="checkpoint directory, .gguf file or hub id")
    source.add_argument("--preset", help="instead: a model shape with dummy weights, such as qwen3-8b-bf16")
    parser.add_argument("--megabytes", type=int, default=500, help="size of each adapter's file, in 10^6 bytes")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--loads", type=int, default=5, help="adapters that are loaded in turn")
    parser.add_argument("--quiet-seconds", type=float, default=10.0)
    parser.add_argument("--executor", choices=["process", "inline"], default="process")
    parser.add_argument("--max-seq-len", type=int, default=4096)
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as directory:
        model = options.model
        if options.preset:
            model = str(find_preset(options.preset).write(Path(directory) / options.preset))
        files = RandomAdapterFiles.of_size(model, options.megabytes)
        adapters = [
            LoRARequest(f"random-{index}", index, str(files.write(Path(directory) / str(index), seed=index)))
            for index in range(options.loads)
        ]
        with LLM(
            model,
            load_format="dummy" if options.preset else "auto",
            skip_tokenizer_init=options.preset is not None,
            executor=options.executor,
            max_batch_size=options.streams + 1,
            max_seq_len=options.max_seq_len,
            lora_config=LoraConfig(max_loras=1, max_lora_rank=files.rank),
            peft_cache_config=PeftCacheConfig(host_cache_size=4 * options.megabytes * 10**6, device_cache_percent=0.5),
        ) as llm:
            bench = AdapterLoadBench(llm, adapters, num_streams=options.streams, quiet_seconds=options.quiet_seconds)
            result = bench.run()
    console.print(result.table())
    seconds = ", ".join(f"{one:.2f}" for one in result.load_seconds)
    console.print(f"{options.megabytes} MB, rank {files.rank}, {options.executor}: loaded in {seconds} s")


if __name__ == "__main__":
    main()
