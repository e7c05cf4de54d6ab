"""What the routes of one server share.

Made once by `create_app`; its phase changes as adapters are loaded and the server drains.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from tensorrt_lora.llmapi.prompt import PromptDict
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.sampling_params import SamplingParams
from tensorrt_lora.serve.adapter_catalog import AdapterCatalog, AdapterEngine
from tensorrt_lora.serve.adapter_root import AdapterRoot
from tensorrt_lora.serve.admission_gate import AdmissionGate
from tensorrt_lora.serve.answer_service import AnswerService, GenerationEngine
from tensorrt_lora.serve.api_error import ApiError
from tensorrt_lora.serve.prompt_reader import PromptEngine, PromptReader
from tensorrt_lora.serve.request_record import RequestObserver
from tensorrt_lora.serve.serve_config import ServeConfig
from tensorrt_lora.serve.server_metrics import MeasuredEngine
from tensorrt_lora.serve.token_text import TokenText
from tensorrt_lora.utils.logger import logger

_TOKENIZER_THREADS = 4
_ADAPTER_THREADS = 4  # of their own, so that no prompt waits for a disk


class ServedEngine(AdapterEngine, GenerationEngine, MeasuredEngine, PromptEngine, Protocol):
    """What a server needs of `LLM`."""

    info: Mapping[str, int | str]


class ServerState:
    """The parts of one server, wired. Raises ValueError for a `lora_root` that cannot be used."""

    def __init__(self, engine: ServedEngine, config: ServeConfig, observer: RequestObserver) -> None:
        assert engine.tokenizer is not None, "ServeConfig refuses an engine without tokenizer"
        self.config = config
        self.engine = engine
        self.failure: str | None = None
        """Why the server cannot go on, once it cannot."""
        self.gate = AdmissionGate(config.max_concurrent_sequences)
        self.tokens = TokenText(engine.tokenizer)
        self._threads = [
            ThreadPoolExecutor(count, name)
            for name, count in (("text", _TOKENIZER_THREADS), ("lora", _ADAPTER_THREADS))
        ]
        text_threads, adapter_threads = self._threads
        self.catalog = AdapterCatalog(
            engine if config.engine.lora_config is not None else None,
            AdapterRoot(config.lora_root) if config.lora_root is not None else None,
            base_names=config.base_names,
            threads=adapter_threads,
        )
        self.prompts = PromptReader(
            engine,
            max_seq_len=int(engine.info["max_seq_len"]),
            vocab_size=int(engine.info["vocab_size"]),
            max_prompts=config.max_prompts,
            max_output_tokens=config.max_output_tokens,
            threads=text_threads,
        )
        self.answers = AnswerService(engine, self.catalog, self.gate, observer, timeout_s=config.request_timeout_s)

    async def warm_up(self) -> None:
        """Load the operator's adapters, answer with the base model and each of them once, and open the gate.

        What goes wrong is put into `failure`.
        """
        try:
            await self._answer(None)
            for name, path in self.config.loras.items():
                await self.catalog.preload(name, path)
                await self._answer(self.catalog.current(name))
        except ApiError as error:
            self.failure = error.message
        except (ValueError, RuntimeError) as error:
            self.failure = str(error)
        else:
            self.gate.open()
            logger.info("ready: %s with %d adapters", self.config.base_names[0], len(self.config.loras))

    def close(self) -> None:
        """Let the threads go; what they do is not waited for."""
        for pool in self._threads:
            pool.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, adapter: LoRARequest | None) -> None:
        prompt: PromptDict = {"prompt_token_ids": [0]}
        await self.engine.generate_async(prompt, SamplingParams(max_tokens=1), adapter)
