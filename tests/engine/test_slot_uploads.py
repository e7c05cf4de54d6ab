"""Adapters copied to their slot bit by bit: complete before they are used, given up without a trace."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tensorrt_lora import LoraConfig, LoRARequest, SamplingParams, TorchLlmArgs
from tensorrt_lora.engine import slot_uploads
from tensorrt_lora.engine.generation_request import GenerationRequest
from tensorrt_lora.engine.py_executor import PyExecutor
from tensorrt_lora.engine.slot_uploads import SlotUploads
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey, AdapterSlotManager, Slot
from tests.support.tiny_adapters import config_fields, find_sites, random_tensors, write_adapter
from tests.support.tiny_models import make_tiny_model, save_tiny_model

TARGETS = ("q_proj", "v_proj", "down_proj")
PROMPT = list(range(20))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), "qwen3")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[LoRARequest]:
    sites = find_sites(make_tiny_model("qwen3"))
    requests = []
    for number in range(4):
        directory = tmp_path_factory.mktemp("adapter")
        write_adapter(directory, random_tensors(sites, TARGETS, 8, seed=number), config_fields(8, list(TARGETS)))
        requests.append(LoRARequest(f"a{number}", number, str(directory)))
    return requests


@pytest.fixture
def executor(model_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slot_uploads, "_BYTES_PER_STEP", 1)  # a module with each step
    monkeypatch.setattr(slot_uploads, "_HOST_SHARE", 1e9)  # whatever the time it takes
    args = TorchLlmArgs(
        model=str(model_dir),
        device="cpu",
        max_batch_size=8,
        max_seq_len=256,
        lora_config=LoraConfig(max_loras=2, max_lora_rank=8),
    )
    executor = PyExecutor(args)
    yield executor
    executor.shutdown()


def send(executor: PyExecutor, request_id: int, adapter: LoRARequest | None, max_tokens: int = 12) -> None:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    executor.enqueue(GenerationRequest(request_id, PROMPT, params, adapter))


def load(executor: PyExecutor, *adapters: LoRARequest) -> None:
    assert executor.adapter_store is not None
    for adapter in adapters:
        executor.adapter_store.load(adapter).result(30)


def finish(executor: PyExecutor) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    while executor.has_work:
        for response in executor.step():
            assert response.error is None
            tokens.setdefault(response.request_id, []).extend(response.token_ids)
    return tokens


def alone(executor: PyExecutor, adapter: LoRARequest) -> list[int]:
    """The answer when nothing else runs, so that the step itself copies the adapter."""
    send(executor, 0, adapter)
    return finish(executor)[0]


def test_answers_are_those_of_an_adapter_copied_at_once(executor: PyExecutor, adapters: list[LoRARequest]):
    expected = [alone(executor, adapter) for adapter in adapters]
    send(executor, 99, None, max_tokens=120)
    executor.step()
    for number, adapter in enumerate(adapters):
        send(executor, number, adapter)
    tokens = finish(executor)
    assert [tokens[number] for number in range(4)] == expected
    assert len(tokens[99]) == 119  # the first came with the step above


def test_streams_get_a_token_with_every_part(executor: PyExecutor, adapters: list[LoRARequest]):
    load(executor, adapters[0])
    send(executor, 99, None, max_tokens=60)
    executor.step()
    send(executor, 1, adapters[0])
    order = []
    while executor.has_work:
        order += [response.request_id for response in executor.step() if response.token_ids]
    assert order.index(1) == 6  # modules of the adapter: a step each, and the first token with the last
    assert order[:6] == [99] * 6


def test_what_is_aborted_meanwhile_leaves_no_slot(executor: PyExecutor, adapters: list[LoRARequest]):
    load(executor, adapters[0])
    send(executor, 99, None, max_tokens=30)
    executor.step()
    send(executor, 1, adapters[0])
    executor.step()
    executor.step()
    slots = executor._slots
    assert slots is not None and slots.resident() == () and len(slots._free_slots) == 1
    executor.abort(1)
    finish(executor)
    assert slots.resident() == () and len(slots._free_slots) == 2


def test_a_step_that_is_short_of_slots_takes_the_reserved_one(executor: PyExecutor, adapters: list[LoRARequest]):
    expected = [alone(executor, adapter) for adapter in adapters[:3]]
    load(executor, *adapters[:3])
    send(executor, 99, None, max_tokens=60)
    executor.step()
    send(executor, 0, adapters[0])
    executor.step()  # a slot is reserved
    slots = executor._slots
    assert slots is not None
    handles = {handle.adapter_id: handle for handle in executor.adapter_store.resident()}
    slots.assign([handles[1], handles[2]])  # as a step would
    assert slots.reserved(handles[0].key) is None
    for handle in handles.values():
        slots.remove(handle.key)
    for number in (1, 2):
        send(executor, number, adapters[number])
    tokens = finish(executor)
    assert [tokens[number] for number in range(3)] == expected


@dataclass(frozen=True)
class _Adapter:
    key: AdapterKey
    num_pages: int = 1


@dataclass
class _SlowManager:
    """Copies that take time on a clock of their own: 100 modules of an adapter, `seconds` each."""

    seconds: float
    now: float = 50.0
    num_copies: int = 0
    slot_manager: AdapterSlotManager = field(default_factory=lambda: AdapterSlotManager(num_slots=4, num_pages=4))

    def slot_copies(self, slot: Slot, adapter: _Adapter) -> Iterator[int]:
        for _ in range(100):
            self.now += self.seconds
            self.num_copies += 1
            yield 1000

    def copies_by_step(self, uploads: SlotUploads, num_adapters: int, step_seconds: float) -> list[int]:
        """Modules copied before each step until all adapters are ready."""
        wanted = {key: _Adapter(key) for key in (AdapterKey(number, "v") for number in range(num_adapters))}
        copies = []
        while wanted:
            before = self.num_copies
            for key in uploads.advance(wanted, (), is_idle=False):
                del wanted[key]
            copies.append(self.num_copies - before)
            self.now += step_seconds
        return copies


@pytest.mark.parametrize("num_adapters", [1, 3])
@pytest.mark.parametrize(
    ("module_seconds", "step_seconds"), [(0.001, 0.1), (0.004, 0.1), (0.004, 0.001), (0.0001, 2.0)]
)
def test_copies_keep_to_their_share_of_the_hosts_time(module_seconds, step_seconds, num_adapters):
    manager = _SlowManager(module_seconds)
    copies = manager.copies_by_step(
        SlotUploads(manager, on_host=True, clock=lambda: manager.now), num_adapters, step_seconds
    )
    assert sum(copies) == 100 * num_adapters
    assert max(copies) * module_seconds <= 0.05 + module_seconds  # a first part may use up what was saved
    # Later ones have 5 % of the time at hand, give or take a module.
    seconds = sum(copies) * module_seconds
    elapsed = len(copies) * step_seconds + seconds
    assert seconds <= 0.05 * elapsed + 0.05 + module_seconds


def test_time_is_no_bound_where_others_run_the_steps():
    manager = _SlowManager(0.004)
    copies = manager.copies_by_step(SlotUploads(manager, clock=lambda: manager.now), 2, 0.1)
    assert copies == [200]
