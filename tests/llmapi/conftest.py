"""An LLM on the toy engine, and a tokenizer with one token for each byte."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.llmapi.llm import LLM
from tensorrt_lora.llmapi.tokenizer import Tokenizer
from tests.support.tiny_models import make_tiny_tokenizer
from tests.support.toy_executor import ToyExecutor


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    make_tiny_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def tokenizer(tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.from_pretrained(str(tokenizer_dir))


@pytest.fixture
def make_llm(tokenizer_dir: Path) -> Iterator[Callable[..., LLM]]:
    made: list[LLM] = []

    def make(**fields: object) -> LLM:
        settings: dict[str, object] = {"executor": "inline", "lora_config": LoraConfig(), **fields}
        made.append(LLM(tokenizer_dir, progress=False, executor_factory=ToyExecutor, **settings))
        return made[-1]

    yield make
    for llm in made:
        llm.shutdown()


@pytest.fixture
def llm(make_llm: Callable[..., LLM]) -> LLM:
    return make_llm()
