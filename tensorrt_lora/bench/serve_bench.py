"""`bench serve`: streams through the HTTP server against the same requests through `LLM.generate`.

Owns the order of measurements and the engine's settings, which both sides share. The server is a process of its own, as
users start it; the offline engine stands beside it on the same device, and one of them rests while the other runs.
"""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from tensorrt_lora.bench.bench_header import RunHeader, now
from tensorrt_lora.bench.bench_progress import bench_progress
from tensorrt_lora.bench.client_processes import ClientProcesses, spread
from tensorrt_lora.bench.dummy_tokenizer import write_dummy_tokenizer
from tensorrt_lora.bench.random_adapter_files import RandomAdapterFiles
from tensorrt_lora.bench.run_environment import hardware, versions
from tensorrt_lora.bench.serve_options import ServeOptions
from tensorrt_lora.bench.serve_records import ServedTimes, ServeRecord, ServeResult
from tensorrt_lora.bench.served_engine import BASE_NAME, HOST, ServedEngine
from tensorrt_lora.config.kv_cache_config import KvCacheConfig
from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.config.model_presets import find_preset
from tensorrt_lora.config.peft_cache_config import PeftCacheConfig
from tensorrt_lora.llmapi.llm import LLM
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.sampling_params import SamplingParams

_TOKENS_PER_BLOCK = 16
_WARM_UP_TOKENS = 8
_PATH = "/v1/completions"


class ServeBench:
    """One run.

    Args:
        command: as it was typed, for the header.
        commit: of the code, for the header.
        progress: show progress on the error stream.
    """

    def __init__(self, options: ServeOptions, *, command: str, commit: str | None, progress: bool = False) -> None:
        self._options = options
        self._progress = progress
        self._vocab_size = int(str(find_preset(options.preset).config["vocab_size"]))
        self._adapters: list[LoRARequest] = []
        self._result = ServeResult(
            RunHeader(
                bench="serve",
                command=command,
                commit=commit,
                started=now(),
                hardware=hardware(),
                versions=versions("fastapi", "starlette", "uvicorn", "uvloop", "httptools"),
                options=options.model_dump(mode="json"),
            )
        )

    def run(self, save: Callable[[ServeResult], None]) -> ServeResult:
        """Measure everything; `save` is called after each repeat with what there is so far.

        Raises ValueError for too little memory, a server that does not start, a request that fails.
        """
        options = self._options
        with TemporaryDirectory() as name, bench_progress(enabled=self._progress) as bar:
            task = bar.add_task("Measuring", total=options.repeats + 2, detail="starting the server")
            directory = Path(name)
            args = self._prepare(directory)
            loras = {adapter.lora_name: adapter.lora_path for adapter in self._adapters}
            with ServedEngine(args, loras, max_sequences=options.concurrency, directory=directory) as server:
                bar.update(task, advance=1, detail="starting the offline engine")
                with LLM(args=args, progress=False) as llm:
                    self._offline(llm, seed=-1, num_tokens=_WARM_UP_TOKENS)
                    self._served(server, seed=-1, num_tokens=_WARM_UP_TOKENS)
                    bar.update(task, advance=1, detail="warm")
                    for repeat in range(options.repeats):
                        record = self._measure(repeat, llm, server)
                        self._result.records.append(record)
                        bar.update(task, advance=1, detail=f"{record.ratio:.1%}")
                        save(self._result)
        return self._result

    def _prepare(self, directory: Path) -> TorchLlmArgs:
        """Write model, tokenizer and adapters; returns the settings of both engines."""
        options = self._options
        model = find_preset(options.preset).write(directory / options.preset)
        write_dummy_tokenizer(model, self._vocab_size)
        if options.adapters:
            files = RandomAdapterFiles.of_rank(str(model), options.lora_rank)
            for index in range(options.adapters):
                path = files.write(directory / f"adapter-{index}", seed=options.seed + index)
                self._adapters.append(LoRARequest(f"adapter-{index}", index + 1, str(path)))
        max_seq_len = options.isl + options.osl + _TOKENS_PER_BLOCK
        return TorchLlmArgs(
            model=str(model),
            load_format="dummy",
            device=options.device,
            max_batch_size=options.concurrency,
            max_num_tokens=max(options.max_num_tokens, options.concurrency),
            max_seq_len=max_seq_len,
            kv_cache_config=KvCacheConfig(
                enable_block_reuse=False,
                tokens_per_block=_TOKENS_PER_BLOCK,
                # A page more for each than the longest request needs; the rest of the device is the other engine's.
                max_tokens=options.concurrency * (max_seq_len + 2 * _TOKENS_PER_BLOCK),
            ),
            # The slots bound what is taken on the device.
            peft_cache_config=PeftCacheConfig(device_cache_percent=0.5, host_cache_size=2**40),
            lora_config=LoraConfig(
                max_loras=options.adapters, max_lora_rank=options.lora_rank, overlap_lora_and_base=True
            )
            if options.adapters
            else None,
            seed=options.seed,
        )

    def _measure(self, repeat: int, llm: LLM, server: ServedEngine) -> ServeRecord:
        """Both sides with the same requests; which goes first alternates."""
        options = self._options
        if repeat % 2:
            served, offline_s = self._served(server, seed=repeat), self._offline(llm, seed=repeat)
        else:
            offline_s, served = self._offline(llm, seed=repeat), self._served(server, seed=repeat)
        return ServeRecord(
            bench="serve",
            preset=options.preset,
            isl=options.isl,
            osl=options.osl,
            concurrency=options.concurrency,
            num_requests=options.num_requests,
            adapters=options.adapters,
            rank=options.lora_rank,
            repeat=repeat,
            tokens=served.tokens,
            offline_s=offline_s,
            served_s=served.served_s,
            offline_tokens_per_s=served.tokens / offline_s,
            served_tokens_per_s=served.tokens / served.served_s,
            ratio=offline_s / served.served_s,
            ttft_ms=served.ttft_ms,
            itl_ms=served.itl_ms,
            e2e_s=served.e2e_s,
            tokens_per_event=served.tokens_per_event,
        )

    def _requests(self, seed: int) -> list[tuple[list[int], LoRARequest | None]]:
        """(prompt, adapter) of each; equal seeds give equal requests."""
        draw = random.Random(self._options.seed * 1000 + seed)
        models = [None, *self._adapters]
        return [
            ([draw.randrange(self._vocab_size) for _ in range(self._options.isl)], models[index % len(models)])
            for index in range(self._options.num_requests)
        ]

    def _offline(self, llm: LLM, *, seed: int, num_tokens: int | None = None) -> float:
        """Seconds of `LLM.generate`."""
        requests = self._requests(seed)
        num_tokens = num_tokens or self._options.osl
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        start = time.perf_counter()
        outputs = llm.generate([prompt for prompt, _ in requests], params, [adapter for _, adapter in requests])
        seconds = time.perf_counter() - start
        for output in outputs:
            if output.error is not None:
                raise ValueError(f"a request of the benchmark failed: {output.error}")
            assert len(output.outputs[0].token_ids) == num_tokens
        return seconds

    def _served(self, server: ServedEngine, *, seed: int, num_tokens: int | None = None) -> ServedTimes:
        """The same through the server."""
        options = self._options
        num_tokens = num_tokens or options.osl
        bodies = [
            json.dumps(
                {
                    "model": BASE_NAME if adapter is None else adapter.lora_name,
                    "prompt": prompt,
                    "max_tokens": num_tokens,
                    "temperature": 0,
                    "ignore_eos": True,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                }
            )
            for prompt, adapter in self._requests(seed)
        ]
        jobs = spread(
            bodies, streams=options.concurrency, processes=options.clients, host=HOST, port=server.port, path=_PATH
        )
        times = ServedTimes.of(ClientProcesses(jobs).run())
        assert times.tokens == options.num_requests * num_tokens
        return times
