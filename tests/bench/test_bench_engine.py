"""Batches through a real engine of the tiny preset: their tokens, their adapters, their times."""

import pytest

from tensorrt_lora.bench.bench_engine import BenchEngine
from tensorrt_lora.bench.workload import Workload
from tensorrt_lora.lora.lora_plan import LoraPlan

SMALL, LARGE = Workload(6, 5, 1, "distinct"), Workload(6, 5, 3, "distinct")
LONG = Workload(40, 2, 1)


@pytest.fixture(scope="module")
def engine():
    engine = BenchEngine(
        "tiny", [SMALL, LARGE, LONG], lora_ranks=[4], plans=(None, *LoraPlan), device="cpu", max_num_tokens=8
    )
    yield engine
    engine.close()


def test_times_of_a_batch(engine: BenchEngine) -> None:
    times = engine.submit(LARGE, LoraPlan.SEQUENTIAL).finish()
    # Three prompts of 6 tokens in steps of 8: once all have a token, the last one has four to go.
    assert times.num_decode_steps == 4
    assert 0.0 < times.ttft_s < times.e2e_s
    assert 0.0 < times.host_ms_per_step <= times.ms_per_token * 4
    assert times.ms_per_token == pytest.approx((times.e2e_s - times.ttft_s) / 4 * 1e3)


def test_fewer_tokens_for_a_trial(engine: BenchEngine) -> None:
    assert engine.submit(SMALL, None, num_tokens=3).finish().num_decode_steps == 2


def test_every_request_has_its_adapter_on_the_device(engine: BenchEngine) -> None:
    engine.submit(LARGE, LoraPlan.BOTH_BESIDE).finish()
    slots = engine.lora_manager.slot_manager
    assert sorted(key.adapter_id for key in slots.resident()) == [0, 1, 2]
    assert engine.lora_manager.fixed_plan is LoraPlan.BOTH_BESIDE


def test_a_batch_can_be_stopped_between_steps(engine: BenchEngine) -> None:
    batch = engine.submit(SMALL, LoraPlan.SEQUENTIAL)
    batch.prefill()
    batch.decode_step()
    assert batch.finish().num_decode_steps == 4
    batch.decode_step()  # nothing left to do


def test_equal_prompts_are_computed_every_time(engine: BenchEngine) -> None:
    for _ in range(2):
        engine.submit(LONG, None).finish()
    assert engine.executor.kv_cache_manager.stats().hit_tokens == 0


def test_a_failed_request_ends_the_run(engine: BenchEngine) -> None:
    with pytest.raises(ValueError, match=r"of the benchmark failed.*max_seq_len"):
        engine.submit(Workload(1000, 5, 1), None).finish()
