from pathlib import Path

import pytest
import torch

from tensorrt_lora.adapters.adapter_reader import AdapterReader
from tensorrt_lora.bench.adapter_load_bench import AdapterLoadBench, LoadBenchResult, _Span
from tensorrt_lora.bench.random_adapter_files import RandomAdapterFiles
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.llmapi.llm import LLM
from tensorrt_lora.lora_request import LoRARequest
from tests.support.tiny_models import save_tiny_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), "qwen3")


def test_adapters_have_the_wanted_size_and_can_be_read(model_dir: Path, tmp_path: Path):
    files = RandomAdapterFiles.of_size(str(model_dir), 1)
    directory = files.write(tmp_path / "a", seed=1)
    size = (directory / "adapter_model.safetensors").stat().st_size
    assert 0.95e6 < size < 1.05e6
    reader = AdapterReader(files.sites, LoraConfig(max_lora_rank=files.rank), torch.float32)
    weights = reader.read(LoRARequest("a", 1, str(directory)))
    assert len(weights.modules) == 14 and weights.max_rank == files.rank


def test_every_adapter_is_loaded_used_and_unloaded_beside_the_streams(model_dir: Path, tmp_path: Path):
    files = RandomAdapterFiles(RandomAdapterFiles.of_size(str(model_dir), 1).sites, rank=4)
    adapters = [LoRARequest(f"a{i}", i, str(files.write(tmp_path / f"a{i}", seed=i))) for i in range(3)]
    fields = {"executor": "inline", "device": "cpu", "max_seq_len": 64, "lora_config": LoraConfig(max_lora_rank=4)}
    with LLM(model_dir, progress=False, **fields) as llm:
        result = AdapterLoadBench(llm, adapters, num_streams=2, quiet_seconds=0.1).run()
        assert llm.list_loras() == [] and llm.stats().adapter_loads == 3
    assert [span.phase for span in result.spans] == ["before", "loading", "first use"] * 3
    assert len(result.load_seconds) == 3 and result.tokens


def test_a_time_between_tokens_counts_in_the_last_phase_it_touches():
    spans = [_Span("before", 0.0, 10.0), _Span("loading", 10.0, 20.0), _Span("first use", 20.0, 21.0)]
    result = LoadBenchResult([(1.0, 2.0), (9.0, 11.0), (19.0, 22.0), (21.5, 23.0)], spans)
    assert result.gaps == {"before": [1.0], "loading": [2.0], "first use": [3.0]}
    assert result.load_seconds == [10.0]
    assert result.table().row_count == 3
