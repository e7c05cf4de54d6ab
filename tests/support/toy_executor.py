"""An engine without a model, for tests of everything in front of it.

It answers a prompt with the prompt, over and over; adapter k adds k to every token (a combination the weighted sum),
and sequence i of n starts i tokens later. One token for each sequence a step.
"""

import os
import time
from dataclasses import dataclass, field

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_status import AdapterStatus
from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.control_messages import ControlReply, ControlRequest, GetStats, ListAdapters, LoadAdapter
from tensorrt_lora.engine.engine_stats import EngineStats
from tensorrt_lora.engine.generation_request import FinishReason, GenerationRequest, GenerationResponse
from tensorrt_lora.lora_request import WeightedLoRARequests
from tensorrt_lora.sampling_params import Logprob

MAX_SEQ_LEN = 1000
CRASH_TOKEN = 66_000
EXIT_TOKEN = 67_000


@dataclass
class _Sequence:
    request: GenerationRequest
    index: int
    tokens: list[int] = field(default_factory=list)

    def next_token(self) -> int:
        prompt, adapter = self.request.prompt_token_ids, self.request.lora_request
        token = prompt[(len(self.tokens) + self.index) % len(prompt)]
        if isinstance(adapter, WeightedLoRARequests):
            return token + round(sum(part.lora_int_id * weight for part, weight in adapter.parts))
        return token + (0 if adapter is None else adapter.lora_int_id)


class ToyExecutor:
    """Follows the same contract as `PyExecutor`. Some tokens break it: see the constants above."""

    def __init__(self, args: TorchLlmArgs, *, progress: bool) -> None:
        self.info = {"max_seq_len": MAX_SEQ_LEN, "pid": os.getpid(), "progress": int(progress)}
        self.aborted: list[int] = []
        self.is_shut_down = False
        self._sequences: list[_Sequence] = []
        self._responses: list[GenerationResponse] = []
        self._adapters: dict[int, AdapterStatus] = {}
        self._replies: list[ControlReply] = []

    @property
    def has_work(self) -> bool:
        return bool(self._sequences or self._responses or self._replies)

    def enqueue(self, request: GenerationRequest) -> None:
        error = self._refusal(request)
        if error is not None:
            self._responses.append(GenerationResponse(request.request_id, finish_reason="error", error=error))
            return
        self._sequences += [_Sequence(request, index) for index in range(request.sampling_params.n)]

    def abort(self, request_id: int) -> None:
        self.aborted.append(request_id)
        for sequence in [one for one in self._sequences if one.request.request_id == request_id]:
            self._sequences.remove(sequence)
            self._responses.append(GenerationResponse(request_id, sequence_index=sequence.index, finish_reason="abort"))

    def step(self) -> list[GenerationResponse]:
        time.sleep(0.0005)  # Lets the front's threads run, as a real step does.
        for sequence in list(self._sequences):
            self._responses.append(self._advance(sequence))
        responses, self._responses = self._responses, []
        return responses

    def control(self, request: ControlRequest) -> None:
        self._replies.append(self._answer(request))

    def take_replies(self) -> list[ControlReply]:
        replies, self._replies = self._replies, []
        return replies

    def _answer(self, request: ControlRequest) -> ControlReply:
        """Adapters are loaded at once, but for those at the path "missing"."""
        if isinstance(request, GetStats):
            running = {sequence.request.request_id for sequence in self._sequences}
            return ControlReply(request.call_id, EngineStats(requests_running=len(running)))
        if isinstance(request, ListAdapters):
            return ControlReply(request.call_id, list(self._adapters.values()))
        if isinstance(request, LoadAdapter):
            adapter = request.lora_request
            if adapter.path == "missing":
                error = AdapterError(adapter.name, adapter.path, ["the path does not exist"])
                return ControlReply(request.call_id, error=error)
            status = AdapterStatus(
                lora_int_id=adapter.lora_int_id,
                name=adapter.name,
                path=adapter.path,
                version="toy",
                state="ready",
                tier="host",
                rank=1,
                host_bytes=1,
                users=0,
                pinned=request.pinned,
                last_used=0.0,
            )
            self._adapters[adapter.lora_int_id] = status
            return ControlReply(request.call_id, status)
        if self._adapters.pop(request.lora_int_id, None) is None:
            error = ValueError(f"lora_int_id {request.lora_int_id} stands for no adapter")
            return ControlReply(request.call_id, error=error)
        return ControlReply(request.call_id)

    def shutdown(self) -> None:
        self.is_shut_down = True

    def _refusal(self, request: GenerationRequest) -> str | None:
        num_prompt, adapter = len(request.prompt_token_ids), request.lora_request
        if num_prompt == 0:
            return "the prompt is empty"
        if num_prompt > MAX_SEQ_LEN:
            return f"the prompt's {num_prompt} tokens exceed max_seq_len={MAX_SEQ_LEN}"
        if adapter is not None and adapter.path == "missing":
            return f"adapter {adapter.name!r} is not there"
        return None

    def _advance(self, sequence: _Sequence) -> GenerationResponse:
        params, token = sequence.request.sampling_params, sequence.next_token()
        if token == CRASH_TOKEN:
            raise RuntimeError("the toy is broken")
        if token == EXIT_TOKEN:
            os._exit(3)
        sequence.tokens.append(token)
        first = len(sequence.tokens) == 1
        reason: FinishReason | None = None
        if token in params.stop_token_ids:
            reason = "stop"
        elif len(sequence.tokens) == params.max_tokens:
            reason = "length"
        if reason is not None:
            self._sequences.remove(sequence)
        prompt = sequence.request.prompt_token_ids
        return GenerationResponse(
            sequence.request.request_id,
            sequence_index=sequence.index,
            token_ids=[token],
            logprobs=None if params.logprobs is None else [{token: Logprob(-0.5, 1), 0: Logprob(-9.0, 2)}],
            prompt_logprobs=[None] + [{one: Logprob(-1.0, 1)} for one in prompt[1:]]
            if first and params.prompt_logprobs is not None
            else None,
            finish_reason=reason,
            stop_reason=token if reason == "stop" else None,
            num_cached_tokens=2 if first else 0,
        )


class RefusingExecutor(ToyExecutor):
    """Does not start, for a reason that its user can mend."""

    def __init__(self, args: TorchLlmArgs, *, progress: bool) -> None:
        raise ValueError(f"max_batch_size={args.max_batch_size} is not to the toy's taste: use 7")


class BrokenExecutor(ToyExecutor):
    """Does not start, for a reason of its own."""

    def __init__(self, args: TorchLlmArgs, *, progress: bool) -> None:
        raise ZeroDivisionError("a bug in the toy")


class DyingExecutor(ToyExecutor):
    """Takes its process down while it starts."""

    def __init__(self, args: TorchLlmArgs, *, progress: bool) -> None:
        os._exit(5)


class SleepingExecutor(ToyExecutor):
    """Takes very long to start."""

    def __init__(self, args: TorchLlmArgs, *, progress: bool) -> None:
        time.sleep(600)
