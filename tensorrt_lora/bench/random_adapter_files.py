"""A PEFT adapter of a wanted size on disk, with random weights for every site of a model.

For benchmarks of loading, which have to read files; `RandomAdapterReader` is for those that do not.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.lora.lora_site import LoraSite, find_lora_sites
from tensorrt_lora.models.auto_model import create_model
from tensorrt_lora.models.gguf import resolve_checkpoint


@dataclass(frozen=True, slots=True)
class RandomAdapterFiles:
    """What to write.

    Attributes:
        sites: the model's, by Hugging Face name.
        rank: of every module.
        dtype: of the stored tensors.
    """

    sites: dict[str, LoraSite]
    rank: int
    dtype: torch.dtype = torch.float32

    @classmethod
    def of_size(cls, model: str, megabytes: int) -> "RandomAdapterFiles":
        """Adapters of about that many MB (10^6 bytes) for a checkpoint; at least rank 1."""
        sites = _layer_sites(model)
        values_per_rank = sum(site.in_features + site.out_features for site in sites.values())
        return cls(sites, max(1, round(megabytes * 10**6 / (4 * values_per_rank))))

    @classmethod
    def of_rank(cls, model: str, rank: int) -> "RandomAdapterFiles":
        """Adapters of a rank for a checkpoint, in bfloat16."""
        return cls(_layer_sites(model), rank, torch.bfloat16)

    def write(self, directory: Path, *, seed: int) -> Path:
        """Write one adapter; returns its directory. B is small, so that the model goes on as before."""
        directory.mkdir(parents=True, exist_ok=True)
        generator = torch.Generator().manual_seed(seed)
        tensors = {}
        for name, site in self.sites.items():
            a = torch.randn(self.rank, site.in_features, generator=generator)
            b = torch.randn(site.out_features, self.rank, generator=generator) * 1e-4
            tensors[f"base_model.model.{name}.lora_A.weight"] = a.to(self.dtype)
            tensors[f"base_model.model.{name}.lora_B.weight"] = b.to(self.dtype)
        save_file(tensors, directory / "adapter_model.safetensors")
        fields = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self.rank,
            "lora_alpha": self.rank,
            "target_modules": sorted({name.rpartition(".")[2] for name in self.sites}),
        }
        (directory / "adapter_config.json").write_text(json.dumps(fields), encoding="utf-8")
        return directory


def _layer_sites(model: str) -> dict[str, LoraSite]:
    """The seven projections of every layer of a checkpoint's model, by Hugging Face name."""
    config = ModelConfig.from_pretrained(str(resolve_checkpoint(model, with_weights=False)))
    skeleton = create_model(config, dtype=torch.float32, device=torch.device("meta"), attn_backend="VANILLA")
    return {name: site for name, site in find_lora_sites(skeleton).items() if ".layers." in name}
