"""Which adapters an engine can hold and how it runs them.

Owns TensorRT-LLM's ten LoRA settings. Set by users as `TorchLlmArgs.lora_config`, read by the engine and the
adapter store, which pass single values on. Must not know devices, files or models.
"""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from tensorrt_lora.config.lora_module_names import DEFAULT_HF_MODULES, check_module_names
from tensorrt_lora.config.strict_base_model import StrictBaseModel

DEFAULT_NUM_SLOTS = 8


class LoraConfig(StrictBaseModel):
    """LoRA settings of one engine. Raises ValueError (pydantic's) for wrong or contradicting values."""

    lora_dir: list[str] = Field(
        default_factory=list,
        description="Adapter directories to read the targeted modules from when lora_target_modules is empty.",
    )
    lora_ckpt_source: Literal["hf", "nemo"] = Field(
        default="hf",
        description="Checkpoint format of the adapters: 'hf' is a PEFT directory, 'nemo' a NeMo archive with "
        "adapters of the fused attention projection.",
    )
    max_lora_rank: int = Field(default=64, ge=1, description="Largest rank an adapter may have in any module.")
    lora_target_modules: list[str] = Field(
        default_factory=list,
        description="Modules that adapters may change, by TensorRT-LLM's names: "
        f"{', '.join(DEFAULT_HF_MODULES)}. Empty: what lora_dir's adapters change, or without lora_dir every linear "
        "layer of the decoder, which leaves out embed_tokens and lm_head: they cost slots as wide as the vocabulary.",
    )
    trtllm_modules_to_hf_modules: dict[str, str] = Field(
        default_factory=dict,
        description="Leaf name in adapter checkpoints by TensorRT-LLM module name, where it is not the "
        "Hugging Face default.",
    )
    max_loras: int | None = Field(
        default=None,
        ge=1,
        description=f"Slots: distinct adapters in one batch on the device. None means {DEFAULT_NUM_SLOTS}. They share "
        "memory for max_loras adapters of max_lora_rank, in pages of 16 rank rows; biases and DoRA take up to two rows "
        "behind the rank's, so a few less fit where these begin a page of their own.",
    )
    max_cpu_loras: int | None = Field(
        default=None,
        ge=1,
        description="Adapters kept in host memory, at least max_loras; None leaves it to "
        "peft_cache_config.host_cache_size alone. The count and the bytes both bind.",
    )
    swap_gate_up_proj_lora_b_weight: bool = Field(
        default=True,
        description="How a fused gate_up_proj adapter stacks the output rows of its B: True is [gate; "
        "up], as Hugging Face models hold them; False is [up; gate].",
    )
    overlap_lora_and_base: bool = Field(
        default=False,
        description="Allow LoRA on a second CUDA stream beside the base projection, in CUDA graphs and in long "
        "prefills; the plan table says where. Same results, no effect on the CPU.",
    )
    cuda_graph_specialize_lora: bool = Field(
        default=True,
        description="Capture CUDA graphs without LoRA too, so that batches of base requests alone pay "
        "nothing for it; costs start-up time and graph memory.",
    )

    @field_validator("lora_target_modules")
    @classmethod
    def _check_targets(cls, names: list[str]) -> list[str]:
        check_module_names(names, "lora_target_modules")
        return names

    @field_validator("trtllm_modules_to_hf_modules")
    @classmethod
    def _check_name_map(cls, name_map: dict[str, str]) -> dict[str, str]:
        check_module_names(list(name_map), "trtllm_modules_to_hf_modules")
        for name, hf_name in name_map.items():
            if not hf_name or "." in hf_name:
                raise ValueError(
                    f"trtllm_modules_to_hf_modules[{name!r}] is {hf_name!r}: give the last part of the "
                    f"module's path, like {DEFAULT_HF_MODULES[name]!r}"
                )
        return name_map

    @model_validator(mode="after")
    def _check_counts(self) -> "LoraConfig":
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.num_slots:
            default = " (the default)" if self.max_loras is None else ""
            raise ValueError(
                f"max_cpu_loras={self.max_cpu_loras} is less than max_loras={self.num_slots}{default}: "
                "every adapter on the device is kept on the host too, so raise max_cpu_loras or lower "
                "max_loras"
            )
        return self

    @property
    def num_slots(self) -> int:
        """Distinct adapters that one batch can hold on the device."""
        return DEFAULT_NUM_SLOTS if self.max_loras is None else self.max_loras

    @property
    def hf_modules(self) -> dict[str, str]:
        """Leaf name in adapter checkpoints by TensorRT-LLM module name: the defaults, then the user's own."""
        return DEFAULT_HF_MODULES | self.trtllm_modules_to_hf_modules
