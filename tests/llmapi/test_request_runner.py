"""Nothing runs before the whole call is known to be right, and nothing runs on when nobody waits any more."""

from collections.abc import Iterator

import pytest

from tensorrt_lora.engine.generation_request import GenerationResponse
from tensorrt_lora.llmapi.request_future import RequestFuture
from tensorrt_lora.llmapi.request_runner import RequestRunner
from tensorrt_lora.llmapi.response_dispatcher import ResponseDispatcher
from tests.support.hand_client import HandClient


@pytest.fixture
def client() -> HandClient:
    return HandClient()


@pytest.fixture
def runner(client: HandClient) -> Iterator[RequestRunner]:
    dispatcher = ResponseDispatcher(client)
    yield RequestRunner(dispatcher, None, lora_enabled=False)
    dispatcher.close()


def test_ids_count_up_and_answers_keep_the_order(client: HandClient, runner: RequestRunner) -> None:
    answers = [GenerationResponse(one, token_ids=[one], finish_reason="length") for one in (2, 0, 1)]
    submit = client.submit
    client.submit = lambda request: (submit(request), client.says.put([answers.pop()]))
    outputs = runner.run([[7], [8], [9]], None, None, progress=False)
    assert client.submitted == [0, 1, 2]
    assert [one.outputs[0].token_ids for one in outputs] == [[0], [1], [2]]
    assert [one.prompt_token_ids for one in outputs] == [[7], [8], [9]]


def test_a_wrong_prompt_at_the_end_starts_nothing(client: HandClient, runner: RequestRunner) -> None:
    with pytest.raises(ValueError, match="has no tokenizer"):
        runner.run([[7], [8], "text"], None, None, progress=False)
    assert client.submitted == []


def test_ctrl_c_aborts_what_runs(client: HandClient, runner: RequestRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(future: RequestFuture) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RequestFuture, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.run([[7], [8]], None, None, progress=False)
    assert [client.aborted.get(timeout=10) for _ in range(2)] == [0, 1]
