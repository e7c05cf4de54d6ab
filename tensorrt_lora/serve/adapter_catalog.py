"""Which adapter a name stands for, now.

Owns the names that clients use, and the ids behind them: every load gets a fresh one, so that running requests and the
prefix cache keep to the version they began with. Called by the routes, in the event loop; what waits for a disk or the
engine for a moment runs in threads. Weights and memory are the engine's.
"""

import asyncio
import itertools
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_status import AdapterStatus
from tensorrt_lora.engine.executor_client import EngineDeadError
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.serve.adapter_name import check_adapter_name
from tensorrt_lora.serve.adapter_root import AdapterRoot, shown
from tensorrt_lora.serve.api_error import ENGINE_DEAD, ApiError
from tensorrt_lora.serve.sampling_fields import LoraRequestBody

T = TypeVar("T")


class AdapterEngine(Protocol):
    """What the catalog needs of `LLM`. The engine answers the last two between two steps, a load when it is done."""

    def load_lora_async(self, lora_request: LoRARequest, *, pinned: bool = False) -> "Future[AdapterStatus]": ...

    def unload_lora(self, lora_int_id: int) -> None: ...

    def list_loras(self) -> Sequence[AdapterStatus]: ...


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One name. `created` is the Unix time at which what it stands for was loaded."""

    request: LoRARequest
    pinned: bool
    created: int = field(default_factory=lambda: int(time.time()))


class AdapterCatalog:
    """Names to adapters. A name changes its meaning at one moment, between two requests.

    Args:
        engine: where adapters are loaded to; None when LoRA is off.
        root: where requests may load adapters from; None allows no loads by requests.
        base_names: names of the base model, which no adapter may have.
        threads: where blocking calls run.
    """

    def __init__(
        self, engine: AdapterEngine | None, root: AdapterRoot | None, *, base_names: Sequence[str], threads: Executor
    ) -> None:
        self._engine = engine
        self._root = root
        self._base_names = frozenset(base_names)
        self._threads = threads
        self._entries: dict[str, CatalogEntry] = {}
        self._ids = itertools.count(1)
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._changes: set[asyncio.Task[object]] = set()

    @property
    def entries(self) -> tuple[CatalogEntry, ...]:
        """All adapters that have a name, in the order in which they came."""
        return tuple(self._entries.values())

    @property
    def is_changing(self) -> bool:
        """Whether something is being loaded or unloaded."""
        return bool(self._changes)

    def find(self, name: str) -> CatalogEntry | None:
        return self._entries.get(name)

    async def choose(self, model: str, body: LoraRequestBody | None) -> str | None:
        """The name of the adapter that a request wants, loaded from the root if need be; None for the base model.

        Raises ApiError: 404 for a name that stands for nothing, 400 for a path outside the root or an adapter that
        cannot be served, 409 for a name that stands for another path.
        """
        on_base = model in self._base_names
        if body is None or (body.lora_name is None and body.lora_path is None):
            name = None if on_base else model
        elif body.lora_path is not None:
            name = await self._choose_by_path(body.lora_path, body.lora_name)
        else:
            name = body.lora_name
        if not on_base and name != model:
            raise ApiError(
                400,
                f"model {shown(model)} and lora_request name two adapters: name the base model, or leave one out",
                code="conflicting_adapters",
                param="lora_request",
            )
        if name is not None and name not in self._entries:
            await self._load_child(name)
        return name

    def current(self, name: str | None) -> LoRARequest | None:
        """What a chosen name stands for at this moment; to be submitted before the event loop goes on.

        Raises ApiError (404) if it was unloaded meanwhile.
        """
        if name is None:
            return None
        entry = self._entries.get(name)
        if entry is None:
            raise ApiError(404, f"adapter {shown(name)} was unloaded", code="model_not_found", param="model")
        return entry.request

    async def preload(self, name: str, path: str) -> AdapterStatus:
        """Load an adapter of the operator's, from wherever it is. Raises ApiError with what is wrong with it."""
        return await self._complete(self._load(name, lambda: path, in_place=False, pinned=False))

    async def load(self, name: str, path: str, *, in_place: bool, pinned: bool) -> AdapterStatus:
        """Load an adapter of the root under a name.

        Raises ApiError: 400 for a bad name, path or adapter, 404 where there is none, 409 if the name is taken (by the
        base model, or by an adapter and not `in_place`), 413 if it does not fit.
        """
        self._check_name(name)
        if name in self._entries and not in_place:
            raise self._taken(name)
        root = self._root
        if root is None:
            raise ApiError(400, "this server has no lora_root to load adapters from", code="no_adapter_root")

        def directory() -> str:
            return str(root.directory(path, param="lora_path"))

        return await self._complete(self._load(name, directory, in_place=in_place, pinned=pinned))

    async def unload(self, name: str) -> None:
        """Forget a name at once, and free its adapter when its last request ends. Raises ApiError (404)."""
        if name in self._base_names:
            raise ApiError(400, f"{shown(name)} is the base model, which stays", code="base_model", param="lora_name")
        await self._complete(self._unload(name))

    async def statuses(self) -> Sequence[AdapterStatus]:
        """What the engine knows of its adapters, old versions that still run among them."""
        return [] if self._engine is None else await self._call(self._engine.list_loras)

    async def _choose_by_path(self, path: str, name: str | None) -> str:
        root = self._root
        if root is None:
            raise ApiError(
                400,
                "this server has no lora_root to take lora_path from: name an adapter of /v1/models",
                code="no_adapter_root",
                param="lora_request",
            )
        directory = await self._call(lambda: root.directory(path, param="lora_request"))
        named = self._entries.get(name) if name is not None else None
        if named is not None and named.request.lora_path == str(directory):
            return named.request.lora_name
        if named is not None:
            raise ApiError(
                409,
                f"lora_name {shown(named.request.lora_name)} stands for another adapter than lora_path "
                f"{shown(path)}: leave one of them out",
                code="adapter_exists",
                param="lora_request",
            )
        # By its place in the root, whatever the client calls it: no client can give a name another meaning.
        canonical = root.name_of(directory)
        entry = self._entries.get(canonical)
        if entry is not None and entry.request.lora_path != str(directory):
            raise self._taken(canonical)
        if entry is None:
            self._check_name(canonical)
            await self._complete(self._load_once(canonical, lambda: str(directory)))
        return canonical

    async def _load_child(self, name: str) -> None:
        root = self._root
        if root is None:
            raise ApiError(404, f"there is no model {shown(name)} here", code="model_not_found", param="model")
        await self._complete(self._load_once(name, lambda: str(root.child(name))))

    async def _load_once(self, name: str, find_path: Callable[[], str]) -> None:
        """Load what requests ask for by name, unless one of them has done so already."""
        async with self._lock(name):
            if name not in self._entries:
                await self._install(name, find_path, pinned=False)

    async def _load(self, name: str, find_path: Callable[[], str], *, in_place: bool, pinned: bool) -> AdapterStatus:
        async with self._lock(name):
            if name in self._entries and not in_place:
                raise self._taken(name)
            return await self._install(name, find_path, pinned=pinned)

    async def _install(self, name: str, find_path: Callable[[], str], *, pinned: bool) -> AdapterStatus:
        """Load under a fresh id, then let the name stand for it, then unload what it stood for before."""
        engine = self._engine
        if engine is None:
            raise ApiError(400, "LoRA is off: start the server with adapters", code="lora_off")
        request = LoRARequest(name, next(self._ids), await self._call(find_path))
        # No thread waits for a load: that may take long, and others must get their turn.
        with _engine_refusals():
            status = await asyncio.wrap_future(engine.load_lora_async(request, pinned=pinned))
        old = self._entries.get(name)
        self._entries[name] = CatalogEntry(request, pinned)
        if old is not None:
            await self._forget(old)
        return status

    async def _unload(self, name: str) -> None:
        async with self._lock(name):
            entry = self._entries.pop(name, None)
            if entry is None:
                raise ApiError(
                    404, f"there is no adapter {shown(name)} here", code="adapter_not_found", param="lora_name"
                )
            await self._forget(entry)

    async def _forget(self, entry: CatalogEntry) -> None:
        engine = self._engine
        assert engine is not None, "what is in the catalog was loaded by the engine"
        await self._call(lambda: engine.unload_lora(entry.request.lora_int_id))

    async def _call(self, function: Callable[[], T]) -> T:
        """Run what blocks for a moment in a thread."""
        with _engine_refusals():
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def _complete(self, change: Coroutine[object, object, T]) -> T:
        """Carry a change through, even if the client that asked for it goes away: engine and names must agree."""
        task = asyncio.ensure_future(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    def _lock(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    def _check_name(self, name: str) -> None:
        try:
            check_adapter_name(name)
        except ValueError as error:
            raise ApiError(400, str(error), code="invalid_name", param="lora_name") from error
        if name in self._base_names:
            raise ApiError(
                409, f"{shown(name)} is the base model's name: choose another", code="adapter_exists", param="lora_name"
            )

    def _taken(self, name: str) -> ApiError:
        return ApiError(
            409,
            f"adapter {shown(name)} is loaded: unload it, or ask for load_inplace",
            code="adapter_exists",
            param="lora_name",
        )


@contextmanager
def _engine_refusals() -> Iterator[None]:
    """What the engine refuses becomes an answer."""
    try:
        yield
    except AdapterError as error:
        raise ApiError.of_adapter(str(error), error.kind) from error
    except ValueError as error:
        raise ApiError(400, str(error), code="adapter_refused") from error
    except EngineDeadError as error:
        raise ApiError(503, str(error), code=ENGINE_DEAD) from error
