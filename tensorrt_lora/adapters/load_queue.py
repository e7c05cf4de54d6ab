"""Which adapters are to be read, in what order, and who waits for each.

Owned by `AdapterStore`; called by it and its `LoaderThreads`, under its lock. Knows neither files nor memory.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from tensorrt_lora.adapters.adapter_handle import AdapterHandle, AdapterRequest, AdapterSource, adapter_ids, source_of


@dataclass(slots=True, eq=False)
class AdapterLoad:
    """One adapter to be read, and everybody who waits for it.

    Attributes:
        users: get a reference each.
        loaders: get the handle alone, since they asked for the sake of requests to come.
        pinned: what the last loader wants; None without one.
        forgotten: while queued or under way: what it reads goes to its waiters and to nobody later.
    """

    request: AdapterRequest
    users: list[Future[AdapterHandle]] = field(default_factory=list)
    loaders: list[Future[AdapterHandle]] = field(default_factory=list)
    pinned: bool | None = None
    forgotten: bool = False

    @property
    def source(self) -> AdapterSource:
        return source_of(self.request)

    @property
    def num_users(self) -> int:
        return sum(not waiter.cancelled() for waiter in self.users)

    @property
    def is_wanted(self) -> bool:
        return bool(self.num_users or self.loaders)

    def take_waiters(self) -> tuple[list[Future[AdapterHandle]], list[Future[AdapterHandle]]]:
        """The users who did not give up and the loaders; they can give up no more, and nobody is left."""
        users = [waiter for waiter in self.users if waiter.set_running_or_notify_cancel()]
        loaders, self.users, self.loaders = self.loaders, [], []
        return users, loaders


class LoadQueue:
    """First come, first served. Loads of one adapter follow each other, so that the last one stays."""

    def __init__(self) -> None:
        self._queued: list[AdapterLoad] = []
        self._under_way: dict[AdapterSource, AdapterLoad] = {}
        self._joinable: dict[AdapterSource, AdapterLoad] = {}  # queued or under way, and not forgotten

    @property
    def joinable(self) -> dict[AdapterSource, AdapterLoad]:
        """The loads that may get more waiters, by what they load."""
        return self._joinable

    def join(self, request: AdapterRequest) -> AdapterLoad:
        """The load that serves `request`, a new one if there is none."""
        load = self._joinable.get(source_of(request))
        if load is None:
            load = self._joinable[source_of(request)] = AdapterLoad(request)
            self._queued.append(load)
        return load

    def start_next(self, may_start: Callable[[AdapterSource], bool]) -> AdapterLoad | None:
        """Take the first load that can be under way now, if there is one."""
        for load in self._queued:
            if load.source not in self._under_way and may_start(load.source):
                self._queued.remove(load)
                self._under_way[load.source] = load
                return load
        return None

    def end(self, load: AdapterLoad) -> None:
        """A load is over: nobody joins it any more."""
        for loads in (self._under_way, self._joinable):
            if loads.get(load.source) is load:
                del loads[load.source]

    def forget(self, adapter_id: int) -> list[AdapterLoad]:
        """Let nobody join the loads of an adapter any more, alone or combined; returns them."""
        forgotten = [load for source, load in self._joinable.items() if adapter_id in adapter_ids(source)]
        for load in forgotten:
            load.forgotten = True
            del self._joinable[load.source]
        return forgotten

    def take_queued(self) -> list[AdapterLoad]:
        """What is not under way, and will not be; call `end` for each."""
        queued, self._queued = self._queued, []
        return queued
