"""TorchLlmArgs: three ways to build it, the values that bind each other, and what is refused."""

import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError

from tensorrt_lora.config.kv_cache_config import KvCacheConfig
from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.config.lora_config import LoraConfig


def test_objects_dicts_and_yaml_give_the_same_settings(tmp_path: Path) -> None:
    objects = TorchLlmArgs(
        model="m",
        lora_config=LoraConfig(max_loras=2, overlap_lora_and_base=True),
        kv_cache_config=KvCacheConfig(max_tokens=1024),
        cuda_graph_config=None,
    )
    dicts = TorchLlmArgs(
        model=Path("m"),
        lora_config={"max_loras": 2, "overlap_lora_and_base": True},
        kv_cache_config={"max_tokens": 1024},
        cuda_graph_config=None,
    )
    file = tmp_path / "args.yaml"
    file.write_text(
        "model: m\n"
        "lora_config: {max_loras: 2, overlap_lora_and_base: true}\n"
        "kv_cache_config:\n  max_tokens: 1024\n"
        "cuda_graph_config: null\n"
    )
    assert objects == dicts == TorchLlmArgs.from_yaml(file)


def test_yaml_gives_way_to_overrides(tmp_path: Path) -> None:
    file = tmp_path / "args.yaml"
    file.write_text("model: m\nseed: 1\n")
    assert TorchLlmArgs.from_yaml(str(file), seed=2, device="cpu") == TorchLlmArgs(model="m", seed=2, device="cpu")


def test_survives_a_process_boundary() -> None:
    args = TorchLlmArgs(model="m", lora_config=LoraConfig())
    assert pickle.loads(pickle.dumps(args)) == args


def test_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        TorchLlmArgs(model="m").seed = 1


def test_default_graph_sizes_fit_a_small_engine() -> None:
    args = TorchLlmArgs(model="m", max_batch_size=3)
    assert args.cuda_graph_config is not None
    assert args.cuda_graph_config.resolve_batch_sizes(args.max_batch_size) == [1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "model_allows", "length"),
    [
        ({}, 32768, 32768),
        ({"max_seq_len": 512}, 32768, 512),
        ({"enable_chunked_prefill": False}, 32768, 8192),
        ({"enable_chunked_prefill": False}, 2048, 2048),
        ({"enable_chunked_prefill": False, "max_seq_len": 8192}, 32768, 8192),
    ],
)
def test_resolve_max_seq_len(settings: dict[str, object], model_allows: int, length: int) -> None:
    assert TorchLlmArgs(model="m", **settings).resolve_max_seq_len(model_allows) == length


def test_resolve_max_seq_len_refuses_more_than_the_model_allows() -> None:
    with pytest.raises(ValueError, match="max_seq_len=4096 is more than the 2048 tokens that the model allows"):
        TorchLlmArgs(model="m", max_seq_len=4096).resolve_max_seq_len(2048)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": ""}, "model\n  String should have at least 1 character"),
        ({"model": 7}, "model\n  Input should be a valid string"),
        ({"modle": "m"}, "modle\n  Extra inputs are not permitted"),
        ({"backend": "tensorrt"}, "backend\n  Input should be 'pytorch'"),
        ({"dtype": "float16"}, "dtype\n  Input should be 'auto', 'float32' or 'bfloat16'"),
        ({"device": "tpu"}, "device\n  Input should be 'auto', 'cpu' or 'cuda'"),
        ({"executor": "ray"}, "executor\n  Input should be 'process' or 'inline'"),
        ({"attn_backend": "TRTLLM"}, "attn_backend\n  Input should be 'auto', 'VANILLA' or 'FLASHINFER'"),
        ({"load_format": "gguf"}, "load_format\n  Input should be 'auto' or 'dummy'"),
        ({"max_batch_size": 0}, "max_batch_size\n  Input should be greater than or equal to 1"),
        ({"max_batch_size": "8"}, "max_batch_size\n  Input should be a valid integer"),
        ({"max_seq_len": 1}, "max_seq_len\n  Input should be greater than or equal to 2"),
        ({"seed": -1}, "seed\n  Input should be greater than or equal to 0"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2 is not served yet: use 1"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size=0 is not served yet: use 1"),
        ({"max_num_tokens": 32}, "max_num_tokens=32 is less than max_batch_size=64"),
        (
            {"enable_chunked_prefill": False, "max_seq_len": 9000},
            "max_seq_len=9000 is more than max_num_tokens=8192 while enable_chunked_prefill is off",
        ),
        ({"attn_backend": "FLASHINFER", "device": "cpu"}, "attn_backend=FLASHINFER runs on CUDA only"),
        ({"attn_backend": "FLASHINFER", "dtype": "float32"}, "attn_backend=FLASHINFER has no float32"),
        (
            {"cuda_graph_config": {"batch_sizes": [1, 65]}},
            "cuda_graph_config.batch_sizes holds 65, more than max_batch_size=64",
        ),
        (
            {"cuda_graph_config": {"max_batch_size": 65}},
            "cuda_graph_config.max_batch_size=65 is more than max_batch_size=64",
        ),
        (
            {"max_num_tokens": 64, "cuda_graph_config": {"prefill_token_buckets": [64, 65]}},
            "cuda_graph_config.prefill_token_buckets holds 65, more than max_num_tokens=64",
        ),
        ({"kv_cache_config": None}, "kv_cache_config\n  Input should be a valid dictionary or instance"),
        ({"lora_config": {"max_lora_rank": -8}}, "lora_config.max_lora_rank\n  Input should be greater than"),
    ],
)
def test_refuses(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as error:
        TorchLlmArgs(**({"model": "m"} | settings))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\n", "model: Field required"),
        (
            "model: m\nlora_config: {max_lora_rank: 0}\n",
            "lora_config.max_lora_rank: Input should be greater than or equal to 1 (got 0)",
        ),
        ("model: m\nmax_batch_sise: 4\n", "max_batch_sise: Extra inputs are not permitted (got 4)"),
        ("model: m\nkv_cache_config: {free_gpu_memory_fraction: 9e-1x}\n", "(got '9e-1x')"),
        ("model: m\nmax_num_tokens: 2\n", "Value error, max_num_tokens=2 is less than max_batch_size=64"),
        ("- model\n", "expected a mapping of TorchLlmArgs fields, got list"),
        ("model: [m\n", "not valid YAML"),
        ("", "model: Field required"),
    ],
)
def test_yaml_errors_name_file_and_field(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "args.yaml"
    file.write_text(text)
    with pytest.raises(ValueError) as error:
        TorchLlmArgs.from_yaml(file)
    assert str(error.value).startswith(f"{file}: ")
    assert message in str(error.value)


def test_yaml_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"settings file '.*none\.yaml' does not exist"):
        TorchLlmArgs.from_yaml(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"model: \xff", "not UTF-8 text"),
        (b"seed: 2020-13-45", "not valid YAML: month must be in"),
        (b"[" * 5000, "not valid YAML"),
    ],
)
def test_unreadable_yaml_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "args.yaml"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        TorchLlmArgs.from_yaml(file)
    assert str(file) in str(error.value)


def test_a_directory_is_no_yaml_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: Is a directory") as error:
        TorchLlmArgs.from_yaml(tmp_path)
    assert str(tmp_path) in str(error.value)
