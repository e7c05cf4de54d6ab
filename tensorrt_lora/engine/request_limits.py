"""What one request may ask for, so that everything the scheduler accepts can be served.

Built by the scheduler from the engine's sizes. Answers with texts for users; raises nothing.
"""

from dataclasses import dataclass

from tensorrt_lora.engine.llm_request import LlmRequest


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The sizes that bound a single request.

    Attributes:
        vocab_size: token ids are below this; one beyond it would read outside the embedding.
        max_seq_len: prompt and output tokens together.
        max_whole_prompt: longest prompt where prompts are not prefilled in chunks, else None.
        max_cached_tokens: tokens that the whole KV cache holds.
    """

    vocab_size: int
    max_seq_len: int
    max_whole_prompt: int | None
    max_cached_tokens: int

    def refusal(self, request: LlmRequest) -> str | None:
        """Why the request can never run, with the way out; None if it can."""
        num_prompt, max_tokens = request.num_prompt_tokens, request.sampling_params.max_tokens
        if num_prompt == 0:
            return "the prompt is empty: give at least one token"
        outside = next((token for token in request.prompt_token_ids if not 0 <= token < self.vocab_size), None)
        if outside is not None:
            return f"the prompt holds token id {outside}, but the model's ids are 0 to {self.vocab_size - 1}"
        if request.sampling_params.min_tokens > 0 and len(request.stop_ids) >= self.vocab_size:
            return "stop_token_ids holds the whole vocabulary, so that min_tokens leaves no token to choose: lower one"
        lengths = f"the prompt's {num_prompt} tokens and max_tokens={max_tokens}"
        if num_prompt + max_tokens > self.max_seq_len:
            return f"{lengths} exceed max_seq_len={self.max_seq_len}: shorten the prompt or lower max_tokens"
        if self.max_whole_prompt is not None and num_prompt > self.max_whole_prompt:
            return (
                f"the prompt's {num_prompt} tokens exceed max_num_tokens={self.max_whole_prompt}, and "
                f"enable_chunked_prefill is off: shorten the prompt, or change one of the two"
            )
        if num_prompt + max_tokens - 1 > self.max_cached_tokens:  # the last token's K/V is never written
            return (
                f"{lengths} exceed the KV cache's {self.max_cached_tokens} tokens: shorten the prompt, lower "
                f"max_tokens, or enlarge kv_cache_config"
            )
        return None
