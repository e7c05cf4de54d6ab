"""The model engine around graphs, on the CPU: which step replays which, and that padding changes no answer."""

from pathlib import Path

import pytest
import torch

from tensorrt_lora import LoraConfig, TorchLlmArgs
from tensorrt_lora.engine.cuda_graph_runner import GraphKey
from tensorrt_lora.engine.model_engine import PyTorchModelEngine
from tensorrt_lora.engine.model_loader import load_model
from tensorrt_lora.engine.sampler import Sampler
from tensorrt_lora.engine.scheduled_requests import ContextChunk, ScheduledRequests
from tensorrt_lora.models.modeling_decoder import DecoderModelForCausalLM
from tests.support.forced_steps import ForcedSteps, whole
from tests.support.random_adapters import random_adapter
from tests.support.replayed_engine import make_replayed_engine
from tests.support.tiny_models import save_tiny_model

MAX_BATCH_SIZE = 5
BUCKETS = [4, 8, 24]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), "qwen3_untied", tokenizer=False)


def make_args(model_dir: Path, buckets: list[int], modules: list[str] | None = None) -> TorchLlmArgs:
    targets = {} if modules is None else {"lora_target_modules": modules}
    return TorchLlmArgs(
        model=model_dir,
        device="cpu",
        max_batch_size=MAX_BATCH_SIZE,
        max_num_tokens=64,
        max_seq_len=96,
        cuda_graph_config={"batch_sizes": [2, MAX_BATCH_SIZE], "prefill_token_buckets": buckets},
        kv_cache_config={"tokens_per_block": 8, "max_tokens": 800},
        lora_config=LoraConfig(max_loras=2, max_lora_rank=8, cuda_graph_specialize_lora=True, **targets),
    )


def test_the_smallest_bucket_that_holds_a_step_is_replayed(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, runner, loaded = make_replayed_engine(make_args(model_dir, BUCKETS), monkeypatch)
    steps = ForcedSteps(engine, loaded)
    for length, bucket in ((1, 4), (4, 4), (5, 8), (9, 24), (24, 24), (25, None)):
        runner.replayed.clear()
        steps.run(whole(steps.request(length)))
        assert runner.replayed == ([] if bucket is None else [GraphKey(bucket, None, is_prefill=True)]), length
    mixed = steps.request(3)
    steps.run(whole(mixed))
    runner.replayed.clear()
    steps.run(whole(steps.request(3)), whole(steps.request(2)), generation=steps.decode(mixed))
    steps.run(generation=steps.decode(mixed))
    assert runner.replayed == [GraphKey(8, None, is_prefill=True), GraphKey(2, None)]


def test_steps_too_long_for_a_graph_run_once_before_any_request(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, bool]] = []
    forward = DecoderModelForCausalLM.forward

    def spy(self, input_ids, position_ids, metadata, lora_params):  # type: ignore[no-untyped-def]
        sizes.append((len(input_ids), lora_params is not None))
        return forward(self, input_ids, position_ids, metadata, lora_params)

    monkeypatch.setattr(DecoderModelForCausalLM, "forward", spy)
    make_replayed_engine(make_args(model_dir, BUCKETS), monkeypatch)
    assert sizes[-6:] == [(24, False), (24, True), (48, False), (48, True), (64, False), (64, True)]


def test_adapters_decide_the_plan(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, runner, loaded = make_replayed_engine(make_args(model_dir, BUCKETS), monkeypatch)
    steps = ForcedSteps(engine, loaded)
    manager = loaded.lora_manager
    assert manager is not None
    adapter = random_adapter(manager.sites, 0, rank=4, dtype=torch.float32)
    steps.run(whole(steps.request(3)), whole(steps.request(4, adapter)))
    expected = GraphKey(8, manager.graph_plan([None, adapter], 8), is_prefill=True)
    assert runner.replayed == [expected] and expected.plan is not None


def test_no_buckets_means_that_every_prefill_runs_eagerly(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, runner, loaded = make_replayed_engine(make_args(model_dir, []), monkeypatch)
    steps = ForcedSteps(engine, loaded)
    request = steps.request(2)
    steps.run(whole(request))
    steps.run(generation=steps.decode(request))
    assert runner.replayed == [GraphKey(2, None)]


def test_more_requests_than_the_graph_holds_run_eagerly(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorrt_lora.engine.model_engine._MAX_PREFILL_GRAPH_REQUESTS", 2)
    engine, runner, loaded = make_replayed_engine(make_args(model_dir, BUCKETS), monkeypatch)
    steps = ForcedSteps(engine, loaded)
    steps.run(*(whole(steps.request(2)) for _ in range(2)), whole(steps.request(4)))  # three, and no padding
    steps.run(*(whole(steps.request(2)) for _ in range(3)))  # three, and one for the padding
    assert runner.replayed == [GraphKey(8, None, is_prefill=True)]


@pytest.mark.parametrize("modules", [None, ["attn_q", "mlp_4h_to_h", "lm_head"]], ids=["default", "head"])
def test_replayed_steps_answer_as_eager_ones(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, modules: list[str] | None
) -> None:
    """Chunks with a prefix, several requests, decodes between them, adapters that take each other's slots."""
    args = make_args(model_dir, BUCKETS, modules)
    engine, runner, loaded = make_replayed_engine(args, monkeypatch)
    eager_loaded = load_model(args, progress=False)
    drivers = [
        ForcedSteps(engine, loaded),
        ForcedSteps(PyTorchModelEngine(args, eager_loaded, progress=False), eager_loaded),
    ]
    assert loaded.lora_manager is not None
    adapters = [random_adapter(loaded.lora_manager.sites, n, rank=2 + n, dtype=torch.float32) for n in range(3)]
    answers = []
    for steps in drivers:
        outputs = []
        long, short = steps.request(30, adapters[0], prompt_logprobs=0), steps.request(3)
        outputs.append(steps.run(ContextChunk(long, 0, 13), whole(short)))
        outputs.append(steps.run(ContextChunk(long, 13, 7), generation=steps.decode(short)))
        outputs.append(steps.run(ContextChunk(long, 20, 10)))
        other = steps.request(5, adapters[2])
        outputs.append(steps.run(whole(other), generation=steps.decode(long, short)))
        outputs.append(steps.run(whole(steps.request(4, adapters[1])), whole(steps.request(1))))
        answers.append(outputs)
    assert len(runner.replayed) == 5 and all(key.is_prefill for key in runner.replayed)
    for replayed, eager in zip(*answers, strict=True):
        torch.testing.assert_close(replayed.logits, eager.logits, atol=1e-4, rtol=1e-4)
        assert [rows.positions for rows in replayed.prompt_rows] == [rows.positions for rows in eager.prompt_rows]
        # Later replays have overwritten the static output since: these are copies.
        for rows, expected in zip(replayed.prompt_rows, eager.prompt_rows, strict=True):
            torch.testing.assert_close(rows.hidden, expected.hidden, atol=1e-4, rtol=1e-4)
    rows = [rows.positions for output in answers[0] for rows in output.prompt_rows]
    assert rows == [range(0, 13), range(13, 20), range(20, 29)]


def test_a_replayed_prefill_takes_tokens_in_flight_from_the_device(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, runner, loaded = make_replayed_engine(make_args(model_dir, BUCKETS), monkeypatch)
    steps = ForcedSteps(engine, loaded)
    sampler, logits = Sampler(), []
    for in_flight in (True, False):
        first = steps.request(5)
        first.prompt_token_ids = [1, 2, 3, 4, 5]
        pending = sampler.launch(steps.run(whole(first)).logits, [first])
        first.reserve_token()
        if not in_flight:
            first.resolve_token(pending.fetch()[0].token_id)
        assert steps.pages.allocate(first, first.num_tokens)
        second = steps.request(6)
        second.prompt_token_ids = [9, 8, 7, 6, 5, 4]
        scheduled = ScheduledRequests([whole(second)], [first])
        logits.append(engine.forward(scheduled, pending if in_flight else None).logits)
    assert torch.equal(*logits)
    assert [key.batch_size for key in runner.replayed] == [8, 8, 8, 8]
