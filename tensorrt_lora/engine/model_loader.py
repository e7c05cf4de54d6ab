"""From the arguments to a model on its device: checkpoint, weights, adapter slots and KV cache, in the order of memory.

Called once at start-up. Whatever does not fit or does not match raises a ValueError that names the setting to change.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from tensorrt_lora.adapters.target_modules import resolve_target_modules
from tensorrt_lora.attention_backend import get_attention_backend
from tensorrt_lora.attention_backend.flashinfer import flashinfer_unsupported_reason
from tensorrt_lora.attention_backend.interface import AttentionBackend
from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.engine.kv_cache_sizing import num_kv_pages
from tensorrt_lora.lora.cuda_graph_lora_manager import CudaGraphLoraManager
from tensorrt_lora.lora.lora_plan_table import LoraPlanTable
from tensorrt_lora.lora.lora_site import find_lora_sites
from tensorrt_lora.models.auto_model import create_model
from tensorrt_lora.models.checkpoint_loader import load_weights
from tensorrt_lora.models.dequantized_parameters import DequantizedParameters
from tensorrt_lora.models.dummy_weights import load_dummy_weights
from tensorrt_lora.models.gguf import resolve_checkpoint
from tensorrt_lora.models.modeling_decoder import DecoderModelForCausalLM
from tensorrt_lora.models.projection import find_projections
from tensorrt_lora.utils.device import device_name, flashinfer_available, free_memory, resolve_device, resolve_dtype
from tensorrt_lora.utils.logger import logger


@dataclass(slots=True)
class LoadedModel:
    """Everything that is on the device before the first step."""

    model: DecoderModelForCausalLM
    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    max_seq_len: int
    attention_backend: type[AttentionBackend]
    lora_config: LoraConfig | None  # with its targets resolved
    lora_manager: CudaGraphLoraManager | None
    kv_cache: torch.Tensor  # [layers, pages, 2, page_size, kv_heads, head_dim]


def load_model(args: TorchLlmArgs, *, progress: bool) -> LoadedModel:
    """Build and fill the model, then give what memory is left to adapter slots and the KV cache.

    Raises:
        ValueError: the checkpoint, the arguments and the device do not fit together.
    """
    device = resolve_device(args.device)
    checkpoint = resolve_checkpoint(args.model, with_weights=args.load_format != "dummy")
    config = ModelConfig.from_pretrained(str(checkpoint)).with_quant_config(args.quant_config)
    dtype = resolve_dtype(args.dtype, config.torch_dtype, device)
    max_seq_len = args.resolve_max_seq_len(config.max_seq_len)
    backend_name = choose_attention_backend(args.attn_backend, dtype, config.head_dim, device)
    logger.info("%s: %s on %s, %s attention", checkpoint.name, dtype, device, backend_name)

    model = create_model(config, dtype=dtype, device=device, attn_backend=backend_name, max_seq_len=max_seq_len)
    if args.load_format == "dummy":
        load_dummy_weights(model, seed=args.seed)
    else:
        load_weights(model, config, progress=progress)

    lora_manager = None
    lora_config = args.lora_config
    if lora_config is not None:
        lora_config = resolve_target_modules(lora_config, find_lora_sites(model))
        plan_table = choose_plan_table(args, device_name(device))
        lora_manager = CudaGraphLoraManager(
            model,
            lora_config,
            base_parameters=DequantizedParameters(model),
            plan_table=plan_table.narrowed({projection.shape for projection in find_projections(model)}),
            cache_bytes=int(free_memory(device) * args.peft_cache_config.device_cache_percent),
            max_num_tokens=args.max_num_tokens,
            dtype=dtype,
            device=device,
        )
    pages = num_kv_pages(
        config,
        args.kv_cache_config,
        max_batch_size=args.max_batch_size,
        max_seq_len=max_seq_len,
        max_num_tokens=args.max_num_tokens,
        dtype=dtype,
        device=device,
    )
    shape = (config.num_layers, pages, 2, args.kv_cache_config.tokens_per_block, config.num_kv_heads, config.head_dim)
    return LoadedModel(
        model=model,
        config=config,
        dtype=dtype,
        device=device,
        max_seq_len=max_seq_len,
        attention_backend=get_attention_backend(backend_name),
        lora_config=lora_config,
        lora_manager=lora_manager,
        kv_cache=torch.zeros(shape, dtype=dtype, device=device),
    )


def choose_plan_table(args: TorchLlmArgs, gpu: str) -> LoraPlanTable:
    """The table that the arguments name, or else the one that comes with the package for a device of this name.

    Raises:
        ValueError: the file is no plan table.
    """
    if args.lora_plan_table is not None:
        return LoraPlanTable.read(Path(args.lora_plan_table))
    return LoraPlanTable.shipped(gpu)


def choose_attention_backend(name: str, dtype: torch.dtype, head_dim: int, device: torch.device) -> str:
    """The backend for `auto`, or the named one if it can run.

    Raises:
        ValueError: FLASHINFER was asked for where it cannot run.
    """
    if device.type != "cuda":
        reason: str | None = "it needs a CUDA device"
    elif not flashinfer_available():
        reason = "flashinfer-python is not installed (pip install 'tensorrt_lora[cuda]')"
    else:
        reason = flashinfer_unsupported_reason(dtype, head_dim)
    if name == "auto":
        return "VANILLA" if reason else "FLASHINFER"
    if name == "FLASHINFER" and reason:
        raise ValueError(f"attn_backend='FLASHINFER' cannot run here: {reason}; use 'VANILLA' or 'auto'")
    return name
