"""The module name table agrees with the module types that the engine serves."""

from tensorrt_lora.config.lora_module_names import DEFAULT_HF_MODULES, check_module_names
from tensorrt_lora.lora.module_types import CONFIG_NAMES


def test_names_are_those_of_the_module_types() -> None:
    assert list(DEFAULT_HF_MODULES) == list(CONFIG_NAMES)


def test_hf_names_are_distinct() -> None:
    assert len(set(DEFAULT_HF_MODULES.values())) == len(DEFAULT_HF_MODULES)


def test_check_passes_known_names() -> None:
    check_module_names(list(DEFAULT_HF_MODULES), "somewhere")
