"""PEFT directory -> `AdapterWeights`: the whole way, or an error that lists all that is wrong.

Called by `AdapterReader` from the loader thread, and by checks that only want the verdict. Owns the order of
the steps and what is said in the log; each step is a class of its own.
"""

from collections.abc import Mapping
from pathlib import Path

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.host_weights import make_host_weights
from tensorrt_lora.adapters.peft_config_parser import PeftConfigParser
from tensorrt_lora.adapters.peft_files import PeftFiles, PeftFilesReader
from tensorrt_lora.adapters.site_binder import Binding, SiteBinder
from tensorrt_lora.adapters.site_index import SiteIndex
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.adapter_weights import AdapterWeights
from tensorrt_lora.lora.lora_site import LoraSite
from tensorrt_lora.utils.logger import logger


def read_peft_checkpoint(
    name: str,
    directory: str,
    *,
    sites: Mapping[str, LoraSite],
    lora_config: LoraConfig,
    dtype: torch.dtype,
    pin_memory: bool = False,
) -> AdapterWeights:
    """Read the PEFT adapter in `directory` and bind it to a model.

    Args:
        name: the adapter's name, for messages.
        sites: the model's adaptable modules by Hugging Face name.
        lora_config: limits and name map.
        dtype: the model's; A and B are cast to it.
        pin_memory: page-lock the host copy, for asynchronous copies to a CUDA device.

    Raises:
        AdapterError: something about the adapter is missing, malformed, not served or does not fit the model.
    """
    problems = AdapterProblems(name, directory)
    files = PeftFilesReader(Path(directory), problems).read()
    config = PeftConfigParser(files.config, problems).parse()
    index = SiteIndex(sites, lora_config)
    binding = SiteBinder(index, config, lora_config.max_lora_rank, problems).bind(files.tensors)
    modules = make_host_weights(binding.modules, dtype=dtype, pin_memory=pin_memory, problems=problems)
    weights = AdapterWeights(name, files.version, modules)
    _log(weights, files, binding, len(index.hf_names), dtype)
    return weights


def _log(weights: AdapterWeights, files: PeftFiles, binding: Binding, num_sites: int, dtype: torch.dtype) -> None:
    ranks = {module.rank for module in weights.modules.values()}
    stored = {str(tensor.dtype).removeprefix("torch.") for tensor in files.tensors.values()}
    served = str(dtype).removeprefix("torch.")
    logger.info(
        "adapter %r: bound %d of %d modules, %d tensors, rank %s, %s%s, version %s",
        weights.name,
        len(weights.modules),
        num_sites,
        len(files.tensors),
        f"{min(ranks)} to {max(ranks)}" if len(ranks) > 1 else max(ranks),
        served,
        "" if stored == {served} else f" cast from {', '.join(sorted(stored))}",
        weights.version[:8],
    )
    for note in binding.notes:
        logger.warning("adapter %r: %s", weights.name, note)
