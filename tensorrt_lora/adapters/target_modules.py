"""Which modules a set of adapters changes.

Owns the answer to an empty `LoraConfig.lora_target_modules` beside a `lora_dir`. Called by the engine before
it allocates slots; looks at names only, whether the adapters can be served is for `AdapterReader` to say.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.adapter_path import resolve_adapter_path
from tensorrt_lora.adapters.peft_files import PeftFilesReader
from tensorrt_lora.adapters.peft_keys import TensorRole, parse_key
from tensorrt_lora.adapters.site_index import SiteIndex
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.lora_site import LoraSite
from tensorrt_lora.lora.module_types import CONFIG_NAMES, LoraModuleType
from tensorrt_lora.utils.logger import logger


def resolve_target_modules(lora_config: LoraConfig, sites: Mapping[str, LoraSite]) -> LoraConfig:
    """`lora_config` with `lora_target_modules` as given, or else as the adapters in `lora_dir` have it."""
    if lora_config.lora_target_modules or not lora_config.lora_dir:
        return lora_config
    targets = find_target_modules(lora_config.lora_dir, sites, lora_config)
    logger.info("lora_target_modules from lora_dir: %s", ", ".join(targets))
    return lora_config.model_copy(update={"lora_target_modules": targets})


def find_target_modules(
    directories: Iterable[str], sites: Mapping[str, LoraSite], lora_config: LoraConfig
) -> list[str]:
    """The modules that the adapters in `directories` change, named as in `lora_target_modules`.

    Tensors that bind to no site are left for `AdapterReader.read` to report. Raises AdapterError for a
    directory that cannot be read or that binds nowhere.
    """
    index = SiteIndex(sites, lora_config)
    found: set[LoraModuleType] = set()
    for directory in directories:
        problems = AdapterProblems(Path(directory).name, directory)
        path = resolve_adapter_path(directory, problems)
        if lora_config.lora_ckpt_source == "nemo":
            found.update(CONFIG_NAMES["attn_qkv"])  # the only adapter of NeMo's that is served
            continue
        types = _peft_types(path, index, problems)
        if not types:
            problems.fail(f"nothing in it adapts this model, which takes adapters on {', '.join(index.leaves)}")
        found |= types
    return [module_type.config_name for module_type in sorted(found)]


def _peft_types(directory: Path, index: SiteIndex, problems: AdapterProblems) -> set[LoraModuleType]:
    keys = [parse_key(key) for key in PeftFilesReader(directory, problems).read().tensors]
    paths = {key.path for key in keys if key.is_lora or key.role is TensorRole.BASE_BIAS}
    return {site.module_type for path in paths for site in index.resolve(path)}
