"""NeMo LoRA archive -> `BoundCheckpoint`: the adapters of fused attention projections.

Owns NeMo's names and Megatron's layout of a fused q, k, v projection. Called by `AdapterReader` where
`lora_ckpt_source` is "nemo". Other adapters of NeMo are refused, as in TensorRT-LLM.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tensorrt_lora.adapters.adapter_error import AdapterProblems
from tensorrt_lora.adapters.bound_checkpoint import BoundCheckpoint, ModelSites
from tensorrt_lora.adapters.bound_module import Binding, BoundModule, FileTensor
from tensorrt_lora.adapters.load_pacer import GiveWay, go_on
from tensorrt_lora.adapters.nemo_archive import CONFIG_NAME, read_nemo_archive
from tensorrt_lora.adapters.peft_config_parser import MAX_ALPHA
from tensorrt_lora.adapters.peft_features import shorten
from tensorrt_lora.adapters.peft_keys import MAX_KEY_LENGTH
from tensorrt_lora.adapters.site_index import SiteIndex
from tensorrt_lora.lora.lora_site import LoraSite

_KEY = re.compile(
    r"(.*\.)?layers\.(?P<layer>\d{1,6})\.self_attention\.adapter_layer\.lora_kqv_adapter\.linear_(?P<half>in|out)\.weight"
)
_MAX_HEADS = 65_536
_DTYPES = {torch.float32, torch.float16, torch.bfloat16}


@dataclass(frozen=True, slots=True)
class NemoShape:
    """What the archive's model_config.yaml says of the adapter and its base.

    Attributes:
        heads, groups: query heads, and key heads; the rows of a fused projection follow from them.
        alpha: NeMo scales by alpha / rank; None is a scale of 1.
    """

    heads: int
    groups: int
    alpha: float | None

    @classmethod
    def read(cls, config: Mapping[str, object], problems: AdapterProblems) -> "NemoShape":
        """The fields are at the top, or below `model`. Raises AdapterError if one is missing or malformed."""
        model = _section(config, "model") or config
        heads, groups = model.get("num_attention_heads"), model.get("num_query_groups")
        groups = heads if groups is None else groups
        alpha = (_section(_section(model, "peft"), "lora_tuning") or _section(model, "lora_tuning")).get("alpha")
        for name, value in (("num_attention_heads", heads), ("num_query_groups", groups)):
            if not _is_integer(value):
                problems.add(f"{CONFIG_NAME}: {name}={shorten(value)}: must be an integer >= 1, at most {_MAX_HEADS}")
        is_number = isinstance(alpha, int | float) and not isinstance(alpha, bool) and abs(alpha) <= MAX_ALPHA
        if alpha is not None and not is_number:
            wanted = f"must be a finite number, at most {MAX_ALPHA:g} in size"
            problems.add(f"{CONFIG_NAME}: lora_tuning.alpha={shorten(alpha)}: {wanted}")
        problems.check()
        assert isinstance(heads, int) and isinstance(groups, int) and (alpha is None or isinstance(alpha, int | float))
        return cls(heads, groups, alpha)


def bind_nemo_checkpoint(
    path: Path, model: ModelSites, problems: AdapterProblems, give_way: GiveWay = go_on
) -> BoundCheckpoint:
    """Read a .nemo archive and bind it to a model; problems as in `bind_peft_checkpoint`."""
    archive = read_nemo_archive(path, problems, give_way)
    shape = NemoShape.read(archive.config, problems)
    index = SiteIndex(model.sites, model.lora_config)
    leaf = model.lora_config.hf_modules["attn_qkv"]
    modules = []
    for layer, halves in _layers(archive.tensors, problems).items():
        keys = [tensor.key for tensor in halves.values()]
        module = f"layers.{layer}.self_attn.{leaf}"
        sites = index.resolve(module)
        if not sites:
            problems.add(f"tensors {', '.join(keys)}: {index.explain(module)}")
        elif len(halves) < 2:
            problems.add(f"layer {layer} has {keys[0]} alone; linear_in and linear_out belong together, save it again")
        else:
            modules.append(_bind_layer(module, sites, halves, shape, model, problems))
    if not archive.tensors:
        problems.add("the archive holds 0 tensors, so nothing would be applied")
    return BoundCheckpoint(archive.version, archive.tensors, Binding(modules))


def _layers(tensors: Mapping[str, torch.Tensor], problems: AdapterProblems) -> dict[int, dict[str, FileTensor]]:
    """linear_in and linear_out by layer; all other tensors are reported."""
    layers: dict[int, dict[str, FileTensor]] = defaultdict(dict)
    strangers = []
    for key in sorted(tensors):
        match = _KEY.fullmatch(key) if len(key) <= MAX_KEY_LENGTH else None
        if match is None:
            strangers.append(key)
            continue
        halves = layers[int(match["layer"])]
        if match["half"] in halves:
            problems.add(f"tensors {halves[match['half']].key} and {key} are for the same module; keep one")
        halves[match["half"]] = FileTensor(key, tensors[key])
    if strangers:
        problems.add(f"tensors {', '.join(strangers)}: only lora_kqv_adapter is served; train attention_qkv alone")
    return layers


def _bind_layer(
    module: str,
    sites: tuple[LoraSite, ...],
    halves: Mapping[str, FileTensor],
    shape: NemoShape,
    model: ModelSites,
    problems: AdapterProblems,
) -> BoundModule:
    linear_in, linear_out = halves["in"], halves["out"]
    rank = linear_in.values.shape[0] if linear_in.values.dim() == 2 else 0
    sizes = [site.out_features for site in sites]
    for tensor, wanted in ((linear_in, [max(rank, 1), sites[0].in_features]), (linear_out, [sum(sizes), max(rank, 1)])):
        got = list(tensor.values.shape)
        if tensor.values.dtype not in _DTYPES:
            problems.add(f"tensor {tensor.key}: dtype {tensor.values.dtype} is not served; save it in floating point")
        if got != wanted:
            problems.add(f"tensor {tensor.key}: got {got}, wanted {wanted}; serve the base that it was trained on")
    max_rank = model.lora_config.max_lora_rank
    if rank > max_rank:
        problems.add(f"{module}: rank {rank} is above max_lora_rank={max_rank}; raise it in LoraConfig to {rank}")
    rows = _fused_rows(sizes, shape)
    if rows is None:
        problems.add(
            f"{CONFIG_NAME}: {shape.heads} heads in {shape.groups} groups do not fit the model's projections of "
            f"{sizes} rows; serve the base that it was trained on"
        )
    elif list(linear_out.values.shape) == [sum(sizes), rank]:
        linear_out = FileTensor(linear_out.key, linear_out.values[rows])
    scale = 1.0 if shape.alpha is None else shape.alpha / max(rank, 1)
    return BoundModule(module, sites, scale, lora_a=linear_in, lora_b=linear_out)


def _fused_rows(sizes: list[int], shape: NemoShape) -> torch.Tensor | None:
    """Where the rows [q; k; v] are in Megatron's layout: per group its query heads, one key head, one value head."""
    q_rows, k_rows, v_rows = sizes
    head_dim, rest = divmod(q_rows, shape.heads)
    if rest or k_rows != v_rows or k_rows != shape.groups * head_dim or shape.heads % shape.groups:
        return None
    heads = torch.arange(sum(sizes)).view(shape.groups, shape.heads // shape.groups + 2, head_dim)
    return torch.cat([heads[:, :-2].flatten(), heads[:, -2].flatten(), heads[:, -1].flatten()])


def _section(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_HEADS
