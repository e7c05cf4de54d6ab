"""From the message of a request to its sequences.

Made by `PyExecutor`, and called by it once for each request, when its adapter is there. Knows what all requests of an
engine share: its seed, the model's end tokens, and how a prescribed form becomes a grammar.
"""

from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.config.guided_decoding_params import GuidedDecodingParams
from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.engine.counter_rng import derive_seed
from tensorrt_lora.engine.generation_request import GenerationRequest
from tensorrt_lora.engine.guided_decoder import GuidedDecoder
from tensorrt_lora.engine.llm_request import LlmRequest
from tensorrt_lora.engine.token_grammar import TokenGrammar


class LlmRequestFactory:
    """Each sequence gets a seed of its own: from the request's seed and the sequence index, or, without one, from the
    engine's seed, the request id and the sequence index.

    Args:
        guided_decoder: None refuses requests that prescribe a form.
    """

    def __init__(
        self, *, eos_token_ids: tuple[int, ...], engine_seed: int, guided_decoder: GuidedDecoder | None = None
    ) -> None:
        self._eos_token_ids = eos_token_ids
        self._engine_seed = engine_seed
        self._guided_decoder = guided_decoder

    @classmethod
    def for_model(cls, args: TorchLlmArgs, config: ModelConfig) -> "LlmRequestFactory":
        """With guided decoding where the arguments ask for it. Raises ValueError as `GuidedDecoder` does."""
        eos_token_ids, guided_decoder = config.eos_token_ids, None
        if args.guided_decoding_backend is not None:
            guided_decoder = GuidedDecoder.for_model(args, vocab_size=config.vocab_size, eos_token_ids=eos_token_ids)
        return cls(eos_token_ids=eos_token_ids, engine_seed=args.seed, guided_decoder=guided_decoder)

    def create(self, message: GenerationRequest, arrival: int, adapter: AdapterHandle | None) -> list[LlmRequest]:
        """The `n` sequences of a request. Raises ValueError for a form that cannot be followed."""
        grammar = self._compile_grammar(message.sampling_params.guided_decoding)
        params = message.sampling_params
        origin = (params.seed,) if params.seed is not None else (self._engine_seed, message.request_id)
        return [
            LlmRequest(
                request_id=message.request_id,
                prompt_token_ids=message.prompt_token_ids,
                sampling_params=params,
                sequence_index=index,
                adapter=adapter,
                seed=derive_seed(*origin, index),
                arrival=arrival,
                eos_token_ids=self._eos_token_ids,
                grammar=None if grammar is None else grammar.copy(),
            )
            for index in range(params.n)
        ]

    def _compile_grammar(self, params: GuidedDecodingParams | None) -> TokenGrammar | None:
        if params is None:
            return None
        if self._guided_decoder is None:
            raise ValueError("guided_decoding was asked for, but guided_decoding_backend is None: set it")
        return self._guided_decoder.compile(params)
