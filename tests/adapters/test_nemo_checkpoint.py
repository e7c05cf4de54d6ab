"""NeMo's archives: a fused projection in Megatron's layout becomes the right rows of q, k and v, or is refused."""

import io
import json
import pickle
import tarfile

import pytest
import torch
import yaml

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_reader import AdapterReader
from tensorrt_lora.adapters.target_modules import find_target_modules
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.lora_request import LoRARequest

# The tiny Qwen3 has 6 query heads and 2 key heads of 16.
_CONFIG = {"num_attention_heads": 6, "num_query_groups": 2, "hidden_size": 72}
_KEY = "model.layers.{}.self_attention.adapter_layer.lora_kqv_adapter.linear_{}.weight"


def _tensors(layers=(0, 1), rank=4):
    generator = torch.Generator().manual_seed(5)
    return {
        _KEY.format(layer, half): torch.randn(shape, generator=generator)
        for layer in layers
        for half, shape in (("in", (rank, 72)), ("out", (160, rank)))
    }


def _saved(tensors: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()


def _write(path, tensors=None, config=None, *, members=(), mode="w"):
    """An archive; `members` are further (TarInfo or name, content) pairs, None leaves a usual one out."""
    contents = [
        ("model_weights.ckpt", _saved(_tensors()) if tensors is None else tensors),
        ("model_config.yaml", yaml.safe_dump(_CONFIG).encode() if config is None else config),
        *members,
    ]
    with tarfile.open(path, mode) as archive:
        for name, content in contents:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            if content is not None:
                info.size = len(content) if info.isfile() else 0
                archive.addfile(info, io.BytesIO(content) if info.isfile() else None)
    return path


@pytest.fixture
def read(sites):
    def read(path, **fields):
        reader = AdapterReader(sites, LoraConfig(lora_ckpt_source="nemo", **fields), torch.float32)
        return reader.read(LoRARequest("a1", 1, str(path)))

    return read


@pytest.fixture
def refuse(read):
    def refuse(path, **fields):
        with pytest.raises(AdapterError) as caught:
            read(path, **fields)
        assert str(caught.value).startswith(f"adapter 'a1' ({path}): ")
        return str(caught.value)

    return refuse


def _by_hand(rows: torch.Tensor) -> dict[LoraModuleType, torch.Tensor]:
    """Head by head: each group holds its three query heads, then a key head, then a value head."""
    q, k, v = [], [], []
    for start in (0, 80):
        q += [rows[start + 16 * head : start + 16 * head + 16] for head in range(3)]
        k.append(rows[start + 48 : start + 64])
        v.append(rows[start + 64 : start + 80])
    parts = (LoraModuleType.ATTENTION_Q, q), (LoraModuleType.ATTENTION_K, k), (LoraModuleType.ATTENTION_V, v)
    return {module_type: torch.cat(heads) for module_type, heads in parts}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_fused_projection_is_taken_apart(read, tmp_path, mode):
    weights = read(_write(tmp_path / "a.nemo", mode=mode))
    tensors = _tensors()
    assert len(weights.modules) == 6
    for layer in (0, 1):
        for module_type, rows in _by_hand(tensors[_KEY.format(layer, "out")]).items():
            module = weights.modules[layer, module_type]
            assert torch.equal(module.a, tensors[_KEY.format(layer, "in")])
            assert torch.equal(module.b, rows.t())
            assert module.scale == 1.0


def test_a_directory_with_one_archive_and_other_spellings_of_it(read, tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    expected = read(_write(tmp_path / "1" / "a.nemo"))
    config = json.dumps({"precision": "bf16", "model": _CONFIG}).encode()
    tensors = {key.replace("model.", "model.language_model.encoder.", 1): t for key, t in _tensors().items()}
    members = [("./model_weights.ckpt", _saved(tensors)), ("./model_config.yaml", config), ("tokenizer.model", b"x")]
    path = tmp_path / "2" / "b.nemo"
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    other = read(path.parent)
    assert other.version != expected.version
    for key, module in expected.modules.items():
        assert torch.equal(module.b, other.modules[key].b)


@pytest.mark.parametrize(
    "tuning", [{"peft": {"lora_tuning": {"alpha": 12, "adapter_dim": 4}}}, {"lora_tuning": {"alpha": 12}}]
)
def test_alpha_scales_as_in_nemo(read, tmp_path, tuning):
    weights = read(_write(tmp_path / "a.nemo", config=yaml.safe_dump({**_CONFIG, **tuning}).encode()))
    assert {module.scale for module in weights.modules.values()} == {3.0}


def test_the_targets_of_an_archive_are_q_k_and_v(sites, tmp_path):
    path = _write(tmp_path / "a.nemo")
    found = find_target_modules([str(path)], sites, LoraConfig(lora_ckpt_source="nemo"))
    assert found == ["attn_q", "attn_k", "attn_v"]


def test_a_rank_above_the_limit(refuse, tmp_path):
    assert "rank 4 is above max_lora_rank=3; raise it in LoraConfig to 4" in refuse(
        _write(tmp_path / "a.nemo"), max_lora_rank=3
    )


def test_targets_that_the_engine_leaves_out(refuse, tmp_path):
    message = refuse(_write(tmp_path / "a.nemo"), lora_target_modules=["attn_q", "attn_v"])
    assert "lora_target_modules=['attn_q', 'attn_v'] leaves qkv_proj out; add 'attn_qkv'" in message


def _config(**fields):
    return yaml.safe_dump({**_CONFIG, **fields}).encode()


_BAD_CONFIGS = {
    "no heads": (_config(num_attention_heads=None), "num_attention_heads=None: must be an integer >= 1"),
    "zero groups": (_config(num_query_groups=0), "num_query_groups=0: must be an integer >= 1"),
    "other heads": (_config(num_attention_heads=4), "4 heads in 2 groups do not fit the model's projections of [96"),
    "all heads": (_config(num_query_groups=None), "6 heads in 6 groups do not fit the model's projections"),
    "alpha is text": (_config(lora_tuning={"alpha": "8"}), "lora_tuning.alpha='8': must be a finite number"),
    "alpha is endless": (b"num_attention_heads: 6\nlora_tuning: {alpha: .inf}", "alpha=inf: must be a finite number"),
    "alpha is beyond float": (
        b"num_attention_heads: 6\nlora_tuning: {alpha: 0x1" + b"0" * 5000 + b"}",
        "alpha=int with too many digits to show: must be a finite number, at most 1e+30 in size",
    ),
    "heads without end": (
        b"num_attention_heads: 0x1" + b"0" * 5000,
        "num_attention_heads=int with too many digits to show: must be an integer >= 1, at most 65536",
    ),
    "no bool": (b"a: !!bool x", r"model_config.yaml is not valid YAML (KeyError); save the adapter again"),
    "no time": (b"a: !!timestamp x", r"model_config.yaml is not valid YAML (AttributeError); save the adapter again"),
    "no mapping": (b"- 1\n", "model_config.yaml must hold a mapping, got list"),
    "no yaml": (b"a: [", "model_config.yaml is not valid YAML"),
    "a yaml object": (b"!!python/object/apply:os.system ['true']", "model_config.yaml is not valid YAML"),
    "not text": (b"a: \xff", "model_config.yaml is not valid YAML"),
}


@pytest.mark.parametrize("kind", _BAD_CONFIGS)
def test_a_bad_config(refuse, tmp_path, kind):
    config, message = _BAD_CONFIGS[kind]
    assert message in refuse(_write(tmp_path / "a.nemo", config=config))


def _edited(**changes):
    tensors = _tensors()
    for key, value in changes.items():
        layer, half = int(key[1]), key[3:]
        if value is None:
            del tensors[_KEY.format(layer, half)]
        else:
            tensors[_KEY.format(layer, half)] = value
    return _saved(tensors)


_DENSE = "model.layers.0.self_attention.adapter_layer.lora_dense_attention_adapter.linear_in.weight"
_BAD_WEIGHTS = {
    "a missing half": (_edited(l1_out=None), "layer 1 has model.layers.1.self_attention"),
    "another width": (_edited(l0_in=torch.ones(4, 80)), "got [4, 80], wanted [4, 72]"),
    "another height": (_edited(l0_out=torch.ones(216, 4)), "got [216, 4], wanted [160, 4]"),
    "halves of two ranks": (_edited(l0_out=torch.ones(160, 3)), "got [160, 3], wanted [160, 4]"),
    "an empty half": (_edited(l0_in=torch.ones(0)), "got [0], wanted [1, 72]"),
    "integers": (_edited(l0_in=torch.ones(4, 72, dtype=torch.int8)), "dtype torch.int8 is not served"),
    "NaN": (_edited(l0_in=torch.full((4, 72), torch.nan)), "holds NaN or Inf"),
    "a layer beyond the model": (_saved(_tensors((0, 7))), "layer 7 does not exist, the model has 0 to 1"),
    "another adapter": (_saved({**_tensors(), _DENSE: torch.ones(4, 96)}), f"tensors {_DENSE}: only lora_kqv_adapter"),
    "a twin": (_saved({**_tensors(), "x." + _KEY.format(0, "in"): torch.ones(4, 72)}), "are for the same module"),
    "nothing": (_saved({}), "the archive holds 0 tensors"),
    "no dict": (_saved([1, 2]), "model_weights.ckpt must hold a dict of tensors, got list"),
    "no pickle": (b"hello", "model_weights.ckpt is truncated or holds more than tensors"),
    "empty": (b"", "model_weights.ckpt is truncated or holds more than tensors"),
}


@pytest.mark.parametrize("kind", _BAD_WEIGHTS)
def test_bad_weights(refuse, tmp_path, kind):
    tensors, message = _BAD_WEIGHTS[kind]
    assert message in refuse(_write(tmp_path / "a.nemo", tensors))


class _Code:
    def __reduce__(self):
        return (print, ("this must never run",))


def test_code_in_the_weights_never_runs(refuse, tmp_path, capsys):
    message = refuse(_write(tmp_path / "a.nemo", pickle.dumps({"a": _Code()})))
    assert "model_weights.ckpt is truncated or holds more than tensors" in message
    assert capsys.readouterr().out == ""


def _link(name, kind):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    return info


_BAD_MEMBERS = {
    "a parent": (("../evil", b"x"), "the archive's member '../evil' leads out of it or is no plain file"),
    "a hidden parent": (("a/../../evil", b"x"), "the archive's member 'a/../../evil' leads out of it"),
    "an absolute name": (("/etc/evil", b"x"), "the archive's member '/etc/evil' leads out of it"),
    "a symbolic link": ((_link("l", tarfile.SYMTYPE), b""), "the archive's member 'l' leads out of it or is no plain"),
    "a hard link": ((_link("l", tarfile.LNKTYPE), b""), "the archive's member 'l' leads out of it or is no plain"),
    "a device": ((_link("l", tarfile.CHRTYPE), b""), "the archive's member 'l' leads out of it or is no plain"),
    "a second config": (("model_config.yaml", b"{}"), "the archive holds model_config.yaml twice"),
}


@pytest.mark.parametrize("kind", _BAD_MEMBERS)
def test_a_bad_member(refuse, tmp_path, kind):
    member, message = _BAD_MEMBERS[kind]
    assert message in refuse(_write(tmp_path / "a.nemo", members=[member]))


def test_a_member_that_would_fill_the_memory(refuse, tmp_path):
    path = _write(tmp_path / "a.nemo", bytes(5_000_000), mode="w:gz")
    assert "the archive's member model_weights.ckpt claims 5000000 bytes" in refuse(path)
    path = _write(tmp_path / "b.nemo", config=b" " * (2**20 + 1))
    assert "the archive's member model_config.yaml claims 1048577 bytes" in refuse(path)


@pytest.mark.parametrize("missing", ["model_weights.ckpt", "model_config.yaml"])
def test_a_missing_member(refuse, tmp_path, missing):
    names = {"model_weights.ckpt", "model_config.yaml"} - {missing}
    path = tmp_path / "a.nemo"
    with tarfile.open(path, "w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    assert f"the archive holds no {missing}; give a LoRA archive of one rank" in refuse(path)


@pytest.mark.parametrize("keep", [0, 300, 700, 5000])
def test_a_truncated_archive(refuse, tmp_path, keep):
    path = _write(tmp_path / "a.nemo")
    path.write_bytes(path.read_bytes()[: keep or None] if keep else b"")
    message = refuse(path)
    assert "the archive" in message or "truncated" in message


def test_paths_that_are_no_archive(refuse, tmp_path):
    assert "the path does not exist; for a PEFT adapter set lora_ckpt_source='hf'" in refuse(tmp_path / "gone.nemo")
    assert "the path holds no .nemo archive" in refuse(tmp_path)
    for name in ("a.nemo", "b.nemo"):
        _write(tmp_path / name)
    assert "found several archives, a.nemo, b.nemo; give the path of one" in refuse(tmp_path)
