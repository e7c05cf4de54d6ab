"""Captured steps with a prefill: near eager ones whatever is in them, and with the same bits when they are repeated.

Captured steps attend with FlashAttention 2, eager ones with 3: their last bits differ.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tensorrt_lora import LLM, LoraConfig, QuantConfig, SamplingParams, TorchLlmArgs
from tensorrt_lora.config.quant_config import QuantAlgo
from tensorrt_lora.engine.cuda_graph_runner import GraphKey
from tensorrt_lora.engine.llm_request import LlmRequest
from tensorrt_lora.engine.model_engine import PyTorchModelEngine, StepOutput
from tensorrt_lora.engine.model_loader import load_model
from tensorrt_lora.engine.sampler import Sampler
from tensorrt_lora.engine.scheduled_requests import ContextChunk, ScheduledRequests
from tests.support.forced_steps import ForcedSteps, whole
from tests.support.random_adapters import RandomAdapter, random_adapter
from tests.support.tiny_models import save_tiny_model

pytestmark = pytest.mark.gpu

BATCH, SLOTS = 8, 4
BUCKETS = [16, 32, 64, 128, 256, 512, 1024]
LARGEST = BUCKETS[-1]
SHAPE: dict[str, object] = {
    "head_dim": 128,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "max_position_embeddings": 2048,
}
FP8_MEAN_BOUND = 0.33  # see tests/models/test_fp8_models.py


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logits of deviation 1: bfloat16 then moves a log-probability by about 0.015, far below the bound of 0.1."""
    directory = tmp_path_factory.mktemp("model")
    return save_tiny_model(directory, "qwen3_untied", dtype=torch.bfloat16, overrides=SHAPE, logit_std=1.0)


def make_args(
    model_dir: Path,
    *,
    graphs: bool,
    overlap: bool = True,
    quant: QuantAlgo | None = None,
    modules: tuple[str, ...] = (),
) -> TorchLlmArgs:
    return TorchLlmArgs(
        model=model_dir,
        dtype="bfloat16",
        device="cuda",
        max_batch_size=BATCH,
        max_num_tokens=LARGEST + 512,
        cuda_graph_config={"batch_sizes": [1, BATCH], "prefill_token_buckets": BUCKETS} if graphs else None,
        kv_cache_config={"max_tokens": BATCH * 2048},
        lora_config=LoraConfig(
            max_loras=SLOTS,
            max_lora_rank=64,
            overlap_lora_and_base=overlap,
            cuda_graph_specialize_lora=True,
            lora_target_modules=list(modules),
        ),
        quant_config=None if quant is None else QuantConfig(quant_algo=quant),
    )


def make_steps(args: TorchLlmArgs) -> ForcedSteps:
    loaded = load_model(args, progress=False)
    return ForcedSteps(PyTorchModelEngine(args, loaded, progress=False), loaded)


def make_adapters(steps: ForcedSteps) -> list[RandomAdapter]:
    """More adapters than slots, of ranks that differ between adapters and modules."""
    manager = steps.loaded.lora_manager
    assert manager is not None
    return [
        random_adapter(manager.sites, number, rank=lambda site, r=rank: max(1, r - int(site.module_type)))
        for number, rank in enumerate([1, 3, 8, 17, 32, 64])
    ]


class Pair:
    """The same steps, captured and eager."""

    def __init__(self, make: Callable[[bool], TorchLlmArgs]) -> None:
        self.captured, self.eager = make_steps(make(True)), make_steps(make(False))
        self.adapters = make_adapters(self.captured)
        assert self.captured.engine.graph_runner.prefill_token_buckets[-1] == LARGEST
        assert not self.eager.engine.graph_runner.enabled

    def run(self, act: Callable[[ForcedSteps], StepOutput], *, replayed: bool = True) -> tuple[StepOutput, StepOutput]:
        """What one action gives in either; `replayed` says whether the captured one must have been a graph."""
        before = self.captured.engine.graph_runner.num_replays
        outputs = act(self.captured), act(self.eager)
        assert self.captured.engine.graph_runner.num_replays - before == int(replayed)
        return outputs


@pytest.fixture(scope="module")
def pair(model_dir: Path) -> Pair:
    return Pair(lambda graphs: make_args(model_dir, graphs=graphs))


def assert_near(logits: torch.Tensor, expected: torch.Tensor) -> None:
    """Log-probabilities of a token per row within 0.15, and of all tokens far closer on average."""
    assert logits.shape == expected.shape and logits.isfinite().all()
    if len(logits) == 0:  # no chunk was the last of its prompt
        return
    difference = (logits.float().log_softmax(-1) - expected.float().log_softmax(-1)).abs()
    forced = torch.arange(len(logits), device=logits.device)[:, None] * 37 % logits.shape[-1]
    assert difference.gather(1, forced).max() < 0.15  # of some 2,000 rows one was at 0.101, with an adapter on the head
    assert difference.mean() < 0.03, f"mean difference {difference.mean()}"


@pytest.mark.parametrize("adapted", [False, True], ids=["base", "LoRA"])
@pytest.mark.parametrize("length", [1, 3, 17, 255, 256, 257, 511, 700, LARGEST])
def test_a_prefill_of_any_length(pair: Pair, length: int, adapted: bool):
    adapter = pair.adapters[length % len(pair.adapters)] if adapted else None
    replayed, eager = pair.run(lambda steps: steps.run(whole(steps.request(length, adapter))))
    assert_near(replayed.logits, eager.logits)


def test_a_step_beyond_the_largest_bucket_runs_eagerly(pair: Pair):
    replayed, eager = pair.run(lambda steps: steps.run(whole(steps.request(LARGEST + 1))), replayed=False)
    assert torch.equal(replayed.logits, eager.logits)


@pytest.mark.parametrize("overlap", [False, True], ids=["sequential", "overlap"])
def test_mixed_steps_while_adapters_swap(model_dir: Path, overlap: bool):
    """Several prompts at once, chunks behind a prefix, decodes beside them; every request with its own adapter."""
    pair = Pair(lambda graphs: make_args(model_dir, graphs=graphs, overlap=overlap))
    rng = random.Random(0)
    running: list[tuple[LlmRequest, LlmRequest]] = []  # captured, eager
    waiting: list[tuple[LlmRequest, LlmRequest, list[int]]] = []  # with the ends of the chunks to come
    for _ in range(60):
        held = {request.adapter_key for request, *_ in [*running, *waiting]} - {None}
        while len(running) + len(waiting) < BATCH and (not waiting or rng.random() < 0.7):
            length, adapter = rng.choice([1, 2, 5, 17, 40, 90]), rng.choice([None, *pair.adapters])
            if adapter is not None and len(held | {adapter.key}) > SLOTS:
                continue
            held |= set() if adapter is None else {adapter.key}
            ends = sorted({*(rng.randrange(1, length + 1) for _ in range(rng.choice([0, 0, 2]))), length})
            waiting.append((pair.captured.request(length, adapter), pair.eager.request(length, adapter), ends))
        replayed, eager = (mixed_step(pair, side, running, waiting) for side in (0, 1))
        assert_near(replayed.logits, eager.logits)
        for *_, ends in waiting:
            ends.pop(0)
        running += [(captured, eager) for captured, eager, ends in waiting if not ends]
        waiting = [entry for entry in waiting if entry[2]]
        for requests in [requests for requests in running if rng.random() < 0.2]:
            running.remove(requests)
            pair.captured.pages.free(requests[0])
            pair.eager.pages.free(requests[1])
    assert pair.captured.engine.graph_runner.num_replays > 50


def mixed_step(
    pair: Pair,
    side: int,
    running: list[tuple[LlmRequest, LlmRequest]],
    waiting: list[tuple[LlmRequest, LlmRequest, list[int]]],
) -> StepOutput:
    """The next chunk of all that wait and a token of all that run, on one side of the pair."""
    steps = (pair.captured, pair.eager)[side]
    chunks = []
    for *requests, ends in waiting:
        start = requests[side].num_computed_tokens
        chunks.append(ContextChunk(requests[side], start, ends[0] - start))
        requests[side].num_computed_tokens = ends[0]
    return steps.run(*chunks, generation=steps.decode(*(requests[side] for requests in running)))


def test_repeated_replays_have_the_same_bits(pair: Pair):
    """With other steps and other adapters in between, which take the same slots and the same memory."""
    steps, adapters = pair.captured, pair.adapters
    decoding = steps.request(9)
    steps.run(whole(decoding))
    generation = steps.decode(decoding)
    prompts = [steps.request(70, adapters[0]), steps.request(33), steps.request(5, adapters[4])]
    first = steps.run(*map(whole, prompts), generation=generation).logits.clone()
    for number in (1, 2, 3, 5):
        steps.run(whole(steps.request(40 * number, adapters[number])))
    again = steps.run(*map(whole, prompts), generation=generation).logits
    assert torch.equal(first, again)


def test_base_rows_have_the_same_bits_with_and_without_adapters_beside_them(pair: Pair):
    steps = pair.captured
    base = steps.request(20)
    mixed = steps.run(whole(base), whole(steps.request(20, pair.adapters[3]))).logits[0].clone()
    alone = steps.run(whole(base), whole(steps.request(20))).logits[0]
    assert torch.equal(mixed, alone)


def test_the_host_may_run_ahead(pair: Pair):
    """Steps queued while earlier ones still wait on the device give what they give one at a time."""
    steps = pair.captured
    decoding = steps.request(9)
    steps.run(whole(decoding))
    generation = steps.decode(decoding)
    prompts = [steps.request(length, pair.adapters[length % 3]) for length in (200, 3, 64, 130, 17)]
    scheduled = [ScheduledRequests([whole(prompt)], generation) for prompt in prompts]
    scheduled.insert(2, ScheduledRequests(generation=generation))
    expected = []
    for step in scheduled:
        expected.append(steps.engine.forward(step).logits.clone())
        torch.cuda.synchronize()
    ahead = []
    for step in scheduled:
        torch.cuda._sleep(2_000_000)
        ahead.append(steps.engine.forward(step).logits.clone())
    torch.cuda.synchronize()
    assert all(torch.equal(got, want) for got, want in zip(ahead, expected, strict=True))


@pytest.mark.parametrize("length", [100, LARGEST + 1], ids=["captured", "eager"])
def test_a_step_with_a_prefill_does_not_wait_for_the_device(pair: Pair, length: int):
    steps, sampler = pair.captured, Sampler()
    decoding = steps.request(9, pair.adapters[0])
    steps.run(whole(decoding))
    generation = steps.decode(decoding)
    scheduled = ScheduledRequests([whole(steps.request(length, pair.adapters[1]))], generation)
    steps.engine.forward(scheduled)  # adapters are copied to their slots, kernels may be loaded
    torch.cuda.set_sync_debug_mode("error")
    try:
        output = steps.engine.forward(scheduled)
        pending = sampler.launch(output.logits, scheduled.sampled_requests)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(pending.fetch()) == 2


@pytest.mark.parametrize("modules", [(), ("attn_q", "mlp_4h_to_h", "lm_head")], ids=["default", "head"])
def test_prompt_rows_outlive_the_next_replay(model_dir: Path, modules: tuple[str, ...]):
    pair = Pair(lambda graphs: make_args(model_dir, graphs=graphs, modules=modules))
    adapter = pair.adapters[2]
    logits = []
    for steps in (pair.captured, pair.eager):
        request = steps.request(150, adapter, prompt_logprobs=0)
        outputs = [steps.run(ContextChunk(request, 0, 70)), steps.run(ContextChunk(request, 70, 80))]
        steps.run(whole(steps.request(200)))
        kept = [rows for output in outputs for rows in output.prompt_rows]
        assert [rows.positions for rows in kept] == [range(0, 70), range(70, 149)]
        logits.append(
            torch.cat(
                [steps.engine.compute_logits(rows.hidden, [adapter], [len(rows.positions)]).clone() for rows in kept]
            )
        )
    assert_near(*logits)


@pytest.mark.parametrize("algo", ["FP8_PER_TENSOR", "FP8_BLOCK_SCALES"])
def test_an_fp8_model(model_dir: Path, algo: QuantAlgo):
    """Apart by the rounding of activations, which a last bit of attention sets off; the same bits when repeated."""
    pair = Pair(lambda graphs: make_args(model_dir, graphs=graphs, quant=algo))
    differences = []
    for length in (5, 40, 200, 300):
        request = pair.captured.request(length, pair.adapters[1]), pair.eager.request(length, pair.adapters[1])
        replayed = pair.captured.run(whole(request[0])).logits.clone()
        eager = pair.eager.run(whole(request[1])).logits
        differences.append((replayed.log_softmax(-1) - eager.log_softmax(-1)).abs())
        assert torch.equal(pair.captured.run(whole(request[0])).logits, replayed)
    assert torch.stack(differences).mean() < FP8_MEAN_BOUND


def test_every_bucket_and_plan_is_captured_most_rows_first(pair: Pair):
    runner = pair.captured.engine.graph_runner
    keys = list(runner.graph_memory)
    for bucket in BUCKETS:
        assert GraphKey(bucket, None, is_prefill=True) in keys
        assert any(key.plan is not None for key in keys if key.is_prefill and key.batch_size == bucket)
    assert [key.batch_size for key in keys] == sorted((key.batch_size for key in keys), reverse=True)
    assert sum(runner.graph_memory.values()) < 2**30


def test_an_engine_answers_the_same_with_and_without_prefill_graphs(model_dir: Path):
    """Prompts of many lengths through the whole engine, one step ahead: their log-probabilities and first tokens."""
    rng = random.Random(1)
    prompts = [[rng.randrange(256) for _ in range(rng.choice([1, 2, 9, 30, 100, 300]))] for _ in range(24)]
    params = SamplingParams(max_tokens=4, prompt_logprobs=0, logprobs=2, ignore_eos=True)
    answers = []
    for buckets in (None, []):
        with LLM(
            model=model_dir,
            executor="inline",
            device="cuda",
            max_batch_size=BATCH,
            max_num_tokens=700,
            max_seq_len=512,
            cuda_graph_config={"prefill_token_buckets": buckets},
            kv_cache_config={"enable_block_reuse": False},
        ) as llm:
            answers.append(llm.generate(prompts, params))
    for prompt, replayed, eager in zip(prompts, *answers, strict=True):
        assert replayed.error is None and eager.error is None
        assert replayed.prompt_logprobs is not None and eager.prompt_logprobs is not None
        assert len(replayed.prompt_logprobs) == len(eager.prompt_logprobs) == len(prompt)
        entries = zip(prompt, replayed.prompt_logprobs, eager.prompt_logprobs, strict=True)
        for token, ours, theirs in [*entries][1:]:
            assert abs(ours[token].logprob - theirs[token].logprob) < 0.1
        first, expected = (answer.outputs[0].logprobs[0] for answer in (replayed, eager))
        common = first.keys() & expected.keys()
        assert common and all(abs(first[token].logprob - expected[token].logprob) < 0.1 for token in common)
