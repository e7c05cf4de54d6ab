"""Many streaming clients of one server, while its adapters are loaded, replaced in place and unloaded.

Owns the traffic and what each answer may be: a name that changes meanwhile stands, for one request, for something that
it stood for between the request's start and its first token. Knows the server's address alone.
"""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter

import httpx

from tests.support.adapter_timeline import AdapterTimeline

MOVING, COMING = "moving", "coming"
_DISCONNECT_EVERY = 10
_CHANGE_EVERY = 10
_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Question:
    """A request: whom it asks, what, and whether its client goes away in the middle."""

    name: str
    prompt: str
    disconnects: bool


@dataclass
class LoadReport:
    """What was seen.

    Attributes:
        outcomes: requests by how they ended: "completed", "disconnected", or "absent" (404, no such adapter then).
        wrong: what should not have been.
        num_changes: of names, by kind.
        num_certain: completed answers of changing names for which just one version was possible.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    num_changes: Counter[str] = field(default_factory=Counter)
    num_certain: int = 0


class ServeLoad:
    """One run.

    Args:
        url: of the server.
        base: the base model's name.
        keys: of users and of the admin.
        root: the server's `lora_root`.
        contents: adapters in it, which are used by name, and which the changing names take turns with.
        answers: by (adapter or base model, prompt), what the offline engine says.
        max_tokens: of each answer, as in `answers`.
    """

    def __init__(
        self,
        url: str,
        *,
        base: str,
        keys: tuple[str, str],
        root: Path,
        contents: Sequence[str],
        answers: Mapping[tuple[str, str], str],
        max_tokens: int,
    ) -> None:
        self._url = url
        self._base = base
        self._user, self._admin = ({"Authorization": f"Bearer {key}"} for key in keys)
        self._contents = contents
        self._root = root
        self._answers = answers
        self._prompts = sorted({prompt for _, prompt in answers})
        self._max_tokens = max_tokens
        self._timelines = {name: AdapterTimeline(name) for name in (base, *contents)}
        self._timelines |= {name: AdapterTimeline(None) for name in (MOVING, COMING)}
        self._report = LoadReport()
        self._ended: asyncio.Queue[None] = asyncio.Queue()
        self._is_over = False

    async def run(self, *, num_clients: int, num_requests: int) -> LoadReport:
        """`num_clients` send one request after the other; an adapter changes whenever a few have ended."""
        names = (self._base, *self._contents, MOVING, COMING)
        questions = iter(list(self._questions(names, num_requests)))
        async with self._connect(num_clients + 1) as client:
            await self._replace(client, self._contents[0])
            changing = asyncio.create_task(self._change(client))
            await asyncio.gather(*(self._ask_all(client, questions) for _ in range(num_clients)))
            self._is_over = True
            self._ended.put_nowait(None)
            await changing
            for name in (MOVING, *([COMING] if self._is_there(COMING) else []), *self._contents):
                await self._unload(client, name)
        return self._report

    async def drain(self, num_streams: int, when_all_run: Callable[[], None]) -> LoadReport:
        """Streams that must end well whatever happens to the server after their first tokens."""
        questions = list(self._questions((self._base,), num_streams, disconnect_every=None))
        left = set(range(num_streams))

        def seen(index: int) -> None:
            left.discard(index)
            if not left:
                when_all_run()

        async with self._connect(num_streams) as client:
            await asyncio.gather(
                *(self._ask(client, question, partial(seen, index)) for index, question in enumerate(questions))
            )
        return self._report

    def _questions(
        self, names: tuple[str, ...], count: int, *, disconnect_every: int | None = _DISCONNECT_EVERY
    ) -> Iterator[Question]:
        """Every name with every prompt, over and over."""
        pairs = cycle([(name, prompt) for prompt in self._prompts for name in names])
        for index, (name, prompt) in enumerate(islice(pairs, count)):
            yield Question(name, prompt, disconnect_every is not None and index % disconnect_every == 0)

    def _connect(self, num_connections: int) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=num_connections, max_keepalive_connections=num_connections)
        return httpx.AsyncClient(base_url=self._url, limits=limits, timeout=_TIMEOUT_S, headers=self._user)

    async def _ask_all(self, client: httpx.AsyncClient, questions: Iterator[Question]) -> None:
        for question in questions:
            await self._ask(client, question, lambda: None)
            self._ended.put_nowait(None)

    async def _ask(self, client: httpx.AsyncClient, question: Question, on_first: Callable[[], None]) -> None:
        body = {
            "model": question.name,
            "messages": [{"role": "user", "content": question.prompt}],
            "max_tokens": self._max_tokens,
            "temperature": 0,
            "stream": True,
        }
        start = perf_counter()
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            bound = perf_counter()  # the status is sent with the first tokens
            possible = self._timelines[question.name].possible(start, bound)
            if response.status_code != 200:
                text = (await response.aread()).decode()
                self._end(question, "absent" if response.status_code == 404 and None in possible else text)
                return
            on_first()
            text = ""
            async with aclosing(_pieces(response)) as pieces:
                async for piece in pieces:
                    text += piece
                    if question.disconnects:
                        self._end(question, "disconnected")
                        return
        answers = {self._answers[content, question.prompt] for content in possible if content is not None}
        self._end(question, "completed" if text in answers else f"{text!r}, expected one of {answers}")
        if question.name in (MOVING, COMING):
            self._report.num_certain += len(answers) == 1

    def _end(self, question: Question, outcome: str) -> None:
        if outcome in ("completed", "disconnected", "absent"):
            self._report.outcomes[outcome] += 1
        else:
            self._report.wrong.append(f"{question}: {outcome}")

    async def _change(self, client: httpx.AsyncClient) -> None:
        """Replace one name, load and unload the other, in turn, until all requests have ended."""
        contents = cycle([*self._contents[1:], self._contents[0]])
        for kind in cycle(("replace", "load", "replace", "unload")):
            for _ in range(_CHANGE_EVERY):
                await self._ended.get()
                if self._is_over:
                    return
            if kind == "replace":
                await self._replace(client, next(contents))
            elif kind == "load":
                content = next(contents)
                await self._load(client, COMING, content, lora_path=content)
            else:
                await self._unload(client, COMING)
            self._report.num_changes[kind] += 1

    async def _replace(self, client: httpx.AsyncClient, content: str) -> None:
        """New files in the same directory, as a training run would leave them."""
        directory = self._root / MOVING
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(self._root / content, directory)
        await self._load(client, MOVING, content, lora_path=MOVING, load_inplace=True)

    async def _load(self, client: httpx.AsyncClient, name: str, content: str, **fields: object) -> None:
        await self._admin_call(client, "load", name, content, fields)

    async def _unload(self, client: httpx.AsyncClient, name: str) -> None:
        await self._admin_call(client, "unload", name, None, {})

    async def _admin_call(
        self, client: httpx.AsyncClient, action: str, name: str, content: str | None, fields: dict[str, object]
    ) -> None:
        self._timelines[name].begin(content)
        response = await client.post(
            f"/v1/{action}_lora_adapter", json={"lora_name": name, **fields}, headers=self._admin
        )
        assert response.status_code == 200, response.text
        self._timelines[name].end()

    def _is_there(self, name: str) -> bool:
        changes = self._timelines[name].changes
        return bool(changes) and changes[-1][0] is not None


async def _pieces(response: httpx.Response) -> AsyncIterator[str]:
    """The texts of a stream, up to its end."""
    async for line in response.aiter_lines():
        if not line or line == "data: [DONE]":
            continue
        frame = json.loads(line.removeprefix("data: "))
        assert "error" not in frame, frame
        content = frame["choices"][0]["delta"].get("content")
        if content:
            yield content
