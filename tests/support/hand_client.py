"""An executor client without an engine, for tests that say themselves what the engine says."""

from queue import SimpleQueue

from tensorrt_lora.engine.control_messages import ControlRequest
from tensorrt_lora.engine.executor_client import ExecutorClient
from tensorrt_lora.engine.executor_worker import News
from tensorrt_lora.engine.generation_request import GenerationRequest


class HandClient(ExecutorClient):
    """An engine that says what the test tells it to."""

    def __init__(self) -> None:
        self.info = {}
        self.says: SimpleQueue[list[News] | Exception | None] = SimpleQueue()
        self.submitted: list[int] = []
        self.aborted: SimpleQueue[int] = SimpleQueue()

    def submit(self, request: GenerationRequest | ControlRequest) -> None:
        if isinstance(request, GenerationRequest):
            self.submitted.append(request.request_id)

    def abort(self, request_id: int) -> None:
        self.aborted.put(request_id)

    def receive(self) -> list[News] | None:
        news = self.says.get()
        if isinstance(news, Exception):
            raise news
        return news

    def shutdown(self) -> None:
        self.says.put(None)
