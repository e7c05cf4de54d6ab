"""The Qwen3 sanity checks: adapters change what they should, and nothing else. Run on a CPU and on a GPU.

The cases are those of TensorRT-LLM's sanity tests (base against adapter, mixed batch, with and without overlap and
specialised graphs), with equality where its tests ask only whether outputs differ.
"""

import pytest

from tensorrt_lora import LLM, Logprob, LoRARequest, RequestOutput, SamplingParams

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=5)
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8], [1, 6, 1, 8, 0, 3, 3, 9, 8]]


def tokens(output: RequestOutput) -> list[int]:
    assert output.error is None, output.error
    return output.outputs[0].token_ids


def entries(output: RequestOutput) -> list[dict[int, Logprob]]:
    """Per token: the log-probabilities of the five best tokens, by token id."""
    result = output.outputs[0].logprobs
    assert result is not None
    return result


def logprobs(output: RequestOutput) -> list[float]:
    return [entry[token].logprob for entry, token in zip(entries(output), tokens(output), strict=True)]


class Qwen3LoRASanity:
    """Subclasses provide `llm` (for each flag setting), `adapters` (two) and `tolerance` for log-probabilities."""

    tolerance: float

    def same(self, first: RequestOutput, second: RequestOutput) -> None:
        """Equal tokens with equal log-probabilities, up to the first near tie: what follows one may differ."""
        for ours, theirs, entry in zip(tokens(first), tokens(second), entries(first), strict=True):
            assert theirs in entry, f"{theirs} is not among the best tokens of the other: {entry}"
            if ours != theirs:
                assert entry[ours].logprob - entry[theirs].logprob < 2 * self.tolerance, entry
                return
        assert logprobs(first) == pytest.approx(logprobs(second), abs=self.tolerance)

    def differ(self, first: RequestOutput, second: RequestOutput) -> None:
        """At the first token: whatever follows may differ because of it."""
        gap = abs(logprobs(first)[0] - logprobs(second)[0])
        assert tokens(first)[0] != tokens(second)[0] or gap > max(10 * self.tolerance, 1e-2)

    def test_an_adapter_changes_the_output(self, llm: LLM, adapters: list[LoRARequest]) -> None:
        for prompt in PROMPTS:
            base = llm.generate(prompt, PARAMS)
            first, second = (llm.generate(prompt, PARAMS, adapter) for adapter in adapters)
            self.differ(base, first)
            self.differ(base, second)
            self.differ(first, second)

    def test_the_base_is_the_same_before_and_after_an_adapter(self, llm: LLM, adapters: list[LoRARequest]) -> None:
        before = llm.generate(PROMPTS[0], PARAMS)
        llm.generate(PROMPTS[0], PARAMS, adapters[0])
        self.same(before, llm.generate(PROMPTS[0], PARAMS))

    def test_every_row_of_a_mixed_batch_answers_as_alone(self, llm: LLM, adapters: list[LoRARequest]) -> None:
        rows: list[LoRARequest | None] = [None, adapters[0], None, adapters[1], adapters[0]]
        prompts = [PROMPTS[index % len(PROMPTS)] for index in range(len(rows))]
        together = llm.generate(prompts, PARAMS, rows)
        for prompt, row, output in zip(prompts, rows, together, strict=True):
            self.same(output, llm.generate(prompt, PARAMS, row))

    def test_the_order_of_rows_does_not_matter(self, llm: LLM, adapters: list[LoRARequest]) -> None:
        rows: list[LoRARequest | None] = [None, adapters[0], adapters[1]]
        forwards = llm.generate([PROMPTS[0]] * 3, PARAMS, rows)
        backwards = llm.generate([PROMPTS[0]] * 3, PARAMS, rows[::-1])
        for first, second in zip(forwards, reversed(backwards), strict=True):
            self.same(first, second)
