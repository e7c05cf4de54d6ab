"""PEFT directory -> `AdapterWeights`: the whole way, or an error that lists all that is wrong.

Called by `AdapterReader`. Owns the order of the steps; each step is a class of its own.
"""

from pathlib import Path

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.base_parameters import BaseParameters
from tensorrt_lora.adapters.bound_checkpoint import BoundCheckpoint, ModelSites
from tensorrt_lora.adapters.load_pacer import GiveWay, go_on
from tensorrt_lora.adapters.peft_config_parser import PeftConfigParser
from tensorrt_lora.adapters.peft_files import PeftFilesReader
from tensorrt_lora.adapters.site_binder import SiteBinder
from tensorrt_lora.adapters.site_index import SiteIndex


def bind_peft_checkpoint(
    directory: Path, model: ModelSites, problems: AdapterProblems, give_way: GiveWay = go_on
) -> BoundCheckpoint:
    """Read the PEFT adapter in `directory` and bind it to a model.

    What does not fit is left in `problems`, next to what does in the result. Raises AdapterError where there is no
    sense in going on: unreadable files, a malformed configuration.
    """
    files = PeftFilesReader(directory, problems, give_way).read()
    config = PeftConfigParser(files.config, problems).parse()
    index = SiteIndex(model.sites, model.lora_config)
    base_parameters = BaseParameters(model.base_parameters)
    binder = SiteBinder(index, config, model.lora_config.max_lora_rank, problems, base_parameters)
    return BoundCheckpoint(files.version, files.tensors, binder.bind(files.tensors), config.base_model)
