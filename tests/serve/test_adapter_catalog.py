"""Names, ids and the order of loads, on an engine that loads nothing and that the test holds up."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tensorrt_lora.adapters.adapter_error import AdapterError, AdapterErrorKind
from tensorrt_lora.adapters.adapter_status import AdapterStatus
from tensorrt_lora.engine.executor_client import EngineDeadError
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.serve.adapter_catalog import AdapterCatalog
from tensorrt_lora.serve.adapter_root import AdapterRoot
from tensorrt_lora.serve.api_error import ApiError
from tensorrt_lora.serve.sampling_fields import LoraRequestBody


class FakeEngine:
    """Notes what it is asked; `gate` holds loads up, `failure` is what they raise."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(4)
        self.calls: list[tuple[str, int]] = []
        self.loading = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None

    def load_lora_async(self, lora_request: LoRARequest, *, pinned: bool = False) -> "Future[AdapterStatus]":
        return self._threads.submit(self._load, lora_request, pinned)

    def _load(self, lora_request: LoRARequest, pinned: bool) -> AdapterStatus:
        self.loading.release()
        assert self.gate.wait(10)
        if self.failure is not None:
            raise self.failure
        self.calls.append(("load", lora_request.lora_int_id))
        name, path = lora_request.lora_name, lora_request.lora_path
        return AdapterStatus(lora_request.lora_int_id, name, path, "v", "ready", "host", 4, 100, 0, pinned, 0.0)

    def unload_lora(self, lora_int_id: int) -> None:
        self.calls.append(("unload", lora_int_id))

    def list_loras(self) -> list[AdapterStatus]:
        return []


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def catalog(engine: FakeEngine, tmp_path: Path) -> Iterator[AdapterCatalog]:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
    with ThreadPoolExecutor(4) as threads:
        yield AdapterCatalog(engine, AdapterRoot(str(tmp_path)), base_names=["base"], threads=threads)


def test_requests_at_once_load_once(catalog: AdapterCatalog, engine: FakeEngine) -> None:
    async def run() -> None:
        assert await asyncio.gather(*[catalog.choose("a", None) for _ in range(5)]) == ["a"] * 5

    asyncio.run(run())
    assert engine.calls == [("load", 1)]
    found = catalog.find("a")
    assert found is not None and found.request.lora_int_id == 1


def test_a_name_moves_after_the_load_and_before_the_unload(catalog: AdapterCatalog, engine: FakeEngine) -> None:
    async def run() -> None:
        await catalog.load("x", "a", in_place=False, pinned=False)
        engine.gate.clear()
        replacing = asyncio.create_task(catalog.load("x", "b", in_place=True, pinned=True))
        await asyncio.to_thread(engine.loading.acquire)
        await asyncio.to_thread(engine.loading.acquire)
        assert catalog.current("x").lora_int_id == 1  # the old one serves while the new one loads
        engine.gate.set()
        assert (await replacing).pinned
        assert catalog.current("x").lora_int_id == 2

    asyncio.run(run())
    assert engine.calls == [("load", 1), ("load", 2), ("unload", 1)]


def test_replacements_at_once_follow_each_other(catalog: AdapterCatalog, engine: FakeEngine) -> None:
    async def run() -> None:
        await asyncio.gather(*[catalog.load("x", "a", in_place=True, pinned=False) for _ in range(4)])

    asyncio.run(run())
    assert engine.calls == [
        ("load", 1), ("load", 2), ("unload", 1), ("load", 3), ("unload", 2), ("load", 4), ("unload", 3),
    ]  # fmt: skip


def test_a_client_that_goes_away_does_not_part_engine_and_names(catalog: AdapterCatalog, engine: FakeEngine) -> None:
    async def run() -> None:
        engine.gate.clear()
        asking = asyncio.create_task(catalog.choose("a", None))
        await asyncio.to_thread(engine.loading.acquire)
        asking.cancel()
        await asyncio.wait({asking})
        assert catalog.find("a") is None and catalog.is_changing
        engine.gate.set()
        assert await catalog.choose("a", None) == "a"
        assert not catalog.is_changing

    asyncio.run(run())
    assert engine.calls == [("load", 1)]


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        *[
            (AdapterError("x", "p", ["why"], kind), status)
            for kind, status in {
                "bad_adapter": 400, "id_conflict": 409, "does_not_fit": 413, "unloaded": 404, "failed": 503,
            }.items()
        ],
        (ValueError("why"), 400),
        (EngineDeadError("why"), 503),
    ],
)  # fmt: skip
def test_what_the_engine_refuses(catalog: AdapterCatalog, engine: FakeEngine, failure: Exception, status: int) -> None:
    engine.failure = failure

    async def run() -> None:
        for load in (catalog.load("x", "a", in_place=False, pinned=False), catalog.choose("a", None)):
            with pytest.raises(ApiError, match="why") as caught:
                await load
            assert caught.value.status == status

    asyncio.run(run())
    assert catalog.entries == () and engine.calls == []


def test_every_kind_of_error_has_a_status() -> None:
    for kind in AdapterErrorKind.__args__:
        assert ApiError.of_adapter("why", kind).status in (400, 404, 409, 413, 503)


def test_an_unloaded_name_is_gone_at_once(catalog: AdapterCatalog, engine: FakeEngine) -> None:
    async def run() -> None:
        await catalog.load("x", "a", in_place=False, pinned=False)
        await catalog.unload("x")
        with pytest.raises(ApiError) as caught:
            catalog.current("x")
        assert caught.value.status == 404
        await catalog.load("x", "b", in_place=False, pinned=False)  # a fresh id, never the old one again

    asyncio.run(run())
    assert engine.calls == [("load", 1), ("unload", 1), ("load", 2)]


def test_without_a_root_or_without_lora() -> None:
    async def run(catalog: AdapterCatalog) -> list[int]:
        found = []
        for load in (
            catalog.choose("a", None),
            catalog.choose("base", LoraRequestBody(lora_path="a")),
            catalog.load("x", "a", in_place=False, pinned=False),
        ):
            with pytest.raises(ApiError) as caught:
                await load
            found.append(caught.value.status)
        assert await catalog.choose("base", LoraRequestBody()) is None
        assert await catalog.statuses() == []
        return found

    with ThreadPoolExecutor(1) as threads:
        assert asyncio.run(run(AdapterCatalog(None, None, base_names=["base"], threads=threads))) == [404, 400, 400]
