"""Everything a user can set on an engine.

Owns `TorchLlmArgs`, the one root of the settings. Built from keyword arguments by `LLM`, from YAML by the
command line; read by `llmapi/` and `engine/`, which pass sub-configs and single values down. Must not know
whether a GPU or a model is there.
"""

from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from tensorrt_lora.config.cuda_graph_config import CudaGraphConfig
from tensorrt_lora.config.kv_cache_config import KvCacheConfig
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.config.peft_cache_config import PeftCacheConfig
from tensorrt_lora.config.quant_config import QuantConfig
from tensorrt_lora.config.scheduler_config import SchedulerConfig
from tensorrt_lora.config.strict_base_model import StrictBaseModel
from tensorrt_lora.config.validation_message import describe_validation_error
from tensorrt_lora.config.yaml_mapping import read_yaml_mapping


def _path_as_str(value: object) -> object:
    return fspath(value) if isinstance(value, PathLike) else value


PathOrName = Annotated[str, Field(min_length=1), BeforeValidator(_path_as_str)]


class TorchLlmArgs(StrictBaseModel):
    """Settings of one engine, by TensorRT-LLM's names.

    Nested settings are taken as objects or as plain dicts. Raises ValueError (pydantic's) for unknown names,
    wrong types, values out of bounds and values that contradict each other.
    """

    model: PathOrName = Field(description="Checkpoint directory, .gguf file, or Hugging Face hub id.")
    tokenizer: PathOrName | None = Field(
        default=None, description="Tokenizer directory or hub id; None takes the model's own."
    )
    skip_tokenizer_init: bool = Field(
        default=False, description="Load no tokenizer: prompts are token ids, and outputs carry no text."
    )
    backend: Literal["pytorch"] = Field(default="pytorch", description="The execution backend; there is one.")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Type of weights and activations; auto is float32 on the CPU, and on CUDA bfloat16 "
        "unless the checkpoint is float32.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Where the model runs; auto takes CUDA when there is any."
    )
    executor: Literal["process", "inline"] = Field(
        default="process",
        description="Where the engine loop runs: in a process of its own, or inside the caller's.",
    )
    max_batch_size: int = Field(default=64, ge=1, description="Most sequences in one step.")
    max_num_tokens: int = Field(
        default=8192,
        ge=1,
        description="Most tokens in one step, prompts and generated ones together; at least max_batch_size.",
    )
    max_seq_len: int | None = Field(
        default=None,
        ge=2,
        description="Longest sequence, prompt and output, in tokens; None takes what the model allows.",
    )
    attn_backend: Literal["auto", "VANILLA", "FLASHINFER"] = Field(
        default="auto",
        description="Attention: VANILLA is plain torch, FLASHINFER needs CUDA; auto picks what runs.",
    )
    enable_chunked_prefill: bool = Field(
        default=True,
        description="Split prompts over several steps, beside running requests; off, a prompt must fit in one step.",
    )
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig, description="The paged KV cache.")
    cuda_graph_config: CudaGraphConfig | None = Field(
        default_factory=CudaGraphConfig,
        description="CUDA graphs of decode steps and small prefills; None runs every step without.",
    )
    scheduler_config: SchedulerConfig = Field(default_factory=SchedulerConfig, description="The scheduler.")
    peft_cache_config: PeftCacheConfig = Field(
        default_factory=PeftCacheConfig, description="Memory that adapters may take."
    )
    lora_config: LoraConfig | None = Field(default=None, description="LoRA; None serves the base model alone.")
    lora_plan_table: str | None = Field(
        default=None,
        description="A file of `tensorrt-lora tune`: which plan each projection runs with in CUDA graphs. None takes "
        "the table that comes with the package for the device, and a rule where there is none.",
    )
    quant_config: QuantConfig | None = Field(
        default=None,
        description="Quantise the projections of an unquantised model as it is loaded; None leaves it as it is.",
    )
    guided_decoding_backend: Literal["llguidance"] | None = Field(
        default=None,
        description="The library that keeps answers to a prescribed form, as SamplingParams.guided_decoding asks; None "
        "refuses such requests.",
    )
    load_format: Literal["auto", "dummy"] = Field(
        default="auto",
        description="Where weights come from: the checkpoint, or random values made from its config alone.",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seeds dummy weights and the requests that carry no seed.")
    tensor_parallel_size: int = Field(default=1, description="GPUs that share one model; only 1 for now.")

    @field_validator("tensor_parallel_size")
    @classmethod
    def _check_tensor_parallel_size(cls, size: int) -> int:
        if size != 1:
            raise ValueError(f"tensor_parallel_size={size} is not served yet: use 1")
        return size

    @model_validator(mode="after")
    def _check_step_size(self) -> "TorchLlmArgs":
        if self.max_num_tokens < self.max_batch_size:
            raise ValueError(
                f"max_num_tokens={self.max_num_tokens} is less than max_batch_size={self.max_batch_size}: "
                "every running sequence takes a token a step, so raise max_num_tokens or lower "
                "max_batch_size"
            )
        if not self.enable_chunked_prefill and self.max_seq_len is not None and self.max_seq_len > self.max_num_tokens:
            raise ValueError(
                f"max_seq_len={self.max_seq_len} is more than max_num_tokens={self.max_num_tokens} while "
                "enable_chunked_prefill is off: a prompt must fit in one step, so turn it on or raise "
                "max_num_tokens"
            )
        return self

    @model_validator(mode="after")
    def _check_attention(self) -> "TorchLlmArgs":
        if self.attn_backend == "FLASHINFER" and self.device == "cpu":
            raise ValueError("attn_backend=FLASHINFER runs on CUDA only: use device=cuda, or attn_backend=VANILLA")
        if self.attn_backend == "FLASHINFER" and self.dtype == "float32":
            raise ValueError("attn_backend=FLASHINFER has no float32: use dtype=bfloat16, or attn_backend=VANILLA")
        return self

    @model_validator(mode="after")
    def _check_quantization(self) -> "TorchLlmArgs":
        static = self.quant_config is not None and self.quant_config.quant_algo == "FP8_STATIC"
        if static and self.load_format != "dummy":
            raise ValueError(
                "quant_config.quant_algo=FP8_STATIC needs calibrated activation scales, which a checkpoint that is not "
                "quantised does not have: use FP8_PER_TENSOR, or a checkpoint quantised with static activations"
            )
        return self

    @model_validator(mode="after")
    def _check_graph_sizes(self) -> "TorchLlmArgs":
        graphs = self.cuda_graph_config
        if graphs is None:
            return self
        if graphs.max_batch_size is not None and graphs.max_batch_size > self.max_batch_size:
            raise ValueError(
                f"cuda_graph_config.max_batch_size={graphs.max_batch_size} is more than "
                f"max_batch_size={self.max_batch_size}: such a batch never runs, so lower it"
            )
        if graphs.batch_sizes is not None and max(graphs.batch_sizes) > self.max_batch_size:
            raise ValueError(
                f"cuda_graph_config.batch_sizes holds {max(graphs.batch_sizes)}, more than "
                f"max_batch_size={self.max_batch_size}: such a batch never runs, so remove it"
            )
        if graphs.prefill_token_buckets and max(graphs.prefill_token_buckets) > self.max_num_tokens:
            raise ValueError(
                f"cuda_graph_config.prefill_token_buckets holds {max(graphs.prefill_token_buckets)}, more than "
                f"max_num_tokens={self.max_num_tokens}: such a step never runs, so remove it"
            )
        return self

    def resolve_max_seq_len(self, model_max_seq_len: int) -> int:
        """Longest sequence served, in tokens, for a model that allows `model_max_seq_len`.

        Raises ValueError when `max_seq_len` asks for more than the model allows.
        """
        if self.max_seq_len is not None:
            if self.max_seq_len > model_max_seq_len:
                raise ValueError(
                    f"max_seq_len={self.max_seq_len} is more than the {model_max_seq_len} tokens that the "
                    "model allows: lower it or leave it out"
                )
            return self.max_seq_len
        return model_max_seq_len if self.enable_chunked_prefill else min(model_max_seq_len, self.max_num_tokens)

    @classmethod
    def from_yaml(cls, path: str | PathLike[str], **overrides: object) -> "TorchLlmArgs":
        """Read settings from a YAML mapping of field names; `overrides` replace its top-level values.

        Raises ValueError that names the file, and the dotted field of every value that is wrong.
        """
        settings = read_yaml_mapping(path, of="TorchLlmArgs")
        try:
            return cls.model_validate(settings | overrides)
        except ValidationError as error:
            raise ValueError(f"{Path(path)}: {describe_validation_error(error)}") from error
