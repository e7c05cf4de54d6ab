"""No adapter directory, however damaged, does more than raise AdapterError; what is accepted is as in the file."""

import io
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_reader import AdapterReader
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.adapter_weights import AdapterWeights
from tensorrt_lora.lora_request import LoRARequest
from tests.adapters.fuzz_adapters import Fuzzed, fuzz, good_adapters
from tests.support.tiny_adapters import PREFIX

_SAMPLE, _ALL, _BATCH = 100, 2000, 100


@pytest.fixture
def readers(sites):
    source = {"nemo": "nemo"}
    return {
        origin: AdapterReader(sites, LoraConfig(lora_ckpt_source=source.get(origin, "hf")), torch.float32)
        for origin in good_adapters()
    }


@pytest.fixture
def originals(readers, tmp_path) -> dict[str, AdapterWeights]:
    return {
        origin: readers[origin].read(_request(Fuzzed(origin, "none", files, False), tmp_path / origin))
        for origin, files in good_adapters().items()
    }


def _request(fuzzed: Fuzzed, directory: Path) -> LoRARequest:
    return LoRARequest("a1", 1, str(fuzzed.write(directory)))


def _stored(fuzzed: Fuzzed) -> dict[str, torch.Tensor]:
    """The tensors by the libraries that the formats come from."""
    stored: dict[str, torch.Tensor] = {}
    for name, content in fuzzed.files.items():
        if name.endswith(".safetensors"):
            stored |= load(content)
        elif name.endswith(".bin"):
            stored |= torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return stored


def _check_accepted(fuzzed: Fuzzed, weights: AdapterWeights, original: AdapterWeights, sites) -> None:
    assert not fuzzed.must_refuse, "a mutation that changes what the adapter is was accepted"
    shapes = {key: (module.a.shape, module.b.shape) for key, module in weights.modules.items()}
    assert shapes == {key: (module.a.shape, module.b.shape) for key, module in original.modules.items()}
    stored = _stored(fuzzed)
    for hf_name, site in sites.items() if stored else ():
        module = weights.modules.get((site.layer_idx, site.module_type))
        if module is not None:
            assert torch.equal(module.a, stored[f"{PREFIX}{hf_name}.lora_A.weight"])
            assert torch.equal(module.b.t(), stored[f"{PREFIX}{hf_name}.lora_B.weight"])


def _run(seeds: range, readers, originals, sites, tmp_path: Path) -> Counter[bool]:
    """Read the cases; returns how many were accepted and refused."""
    outcomes: Counter[bool] = Counter()
    for seed in seeds:
        fuzzed = fuzz(seed)
        context = f"seed {seed}: {fuzzed.mutation} of {fuzzed.origin}"
        try:
            weights = readers[fuzzed.origin].read(_request(fuzzed, tmp_path / str(seed)))
        except AdapterError as error:
            assert str(error).startswith("adapter 'a1' ("), context
            outcomes[False] += 1
            continue
        except BaseException as error:
            raise AssertionError(f"{context}: {type(error).__name__} instead of AdapterError") from error
        try:
            _check_accepted(fuzzed, weights, originals[fuzzed.origin], sites)
        except AssertionError as error:
            raise AssertionError(context) from error
        outcomes[True] += 1
    return outcomes


@pytest.mark.filterwarnings("ignore")  # of torch, about the pickles
def test_a_sample(readers, originals, sites, tmp_path):
    outcomes = _run(range(_SAMPLE), readers, originals, sites, tmp_path)
    assert outcomes[False] > _SAMPLE // 2 and outcomes[True] > 5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", range(_SAMPLE, _ALL, _BATCH))
def test_many(readers, originals, sites, tmp_path, start):
    assert _run(range(start, start + _BATCH), readers, originals, sites, tmp_path)[False] > _BATCH // 2
