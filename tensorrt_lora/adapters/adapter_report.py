"""The verdict on one adapter for one model, without an engine.

Owns what `tensorrt-lora adapter check` and `LLM.check_lora` tell. The checks are those of loading, and what is wrong is
told in the same words. Loading knows more in one case: copies of the model's weights in the adapter's file can be
compared only where the model's are loaded; a report names those that were not.
"""

from dataclasses import asdict, dataclass

from tensorrt_lora.adapters.adapter_error import AdapterError, AdapterProblems
from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.adapters.adapter_reader import AdapterReader
from tensorrt_lora.adapters.bound_checkpoint import BoundCheckpoint
from tensorrt_lora.adapters.bound_module import BoundModule
from tensorrt_lora.lora_request import LoRARequest


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """One module of the adapter's file.

    Attributes:
        targets: the names that `lora_target_modules` must allow, like ("attn_q",).
        rank: 0 where only the base layer's bias was trained.
        nbytes: in memory, in the model's dtype.
        extras: what it has besides A and B, of "DoRA", "bias" and "base bias".
    """

    name: str
    targets: tuple[str, ...]
    rank: int
    scale: float
    nbytes: int
    extras: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AdapterReport:
    """What an adapter holds, and all that keeps it from being served.

    Attributes:
        problems: every reason to refuse it, each with its fix; empty for an adapter that can be served.
        not_compared: tensors taken for copies of the model's own weights; the engine refuses them if they are not.
        notes: what the log would say of it: accepted, but perhaps not what its author thinks.
        modules: those that could be bound to the model, problems or not.
        num_sites: modules of the model that adapters may change.
        stored_dtypes, dtype: of the file, and what the values are cast to.
        version: digest of the files; None where they could not be read.
    """

    name: str
    path: str
    problems: tuple[str, ...]
    not_compared: tuple[str, ...]
    notes: tuple[str, ...]
    modules: tuple[ModuleReport, ...]
    num_sites: int
    stored_dtypes: tuple[str, ...]
    dtype: str
    version: str | None

    @property
    def ok(self) -> bool:
        """Whether the adapter can be served, as far as that can be told: see `not_compared`."""
        return not self.problems

    @property
    def max_rank(self) -> int:
        return max((module.rank for module in self.modules), default=0)

    @property
    def nbytes(self) -> int:
        return sum(module.nbytes for module in self.modules)

    @property
    def target_modules(self) -> tuple[str, ...]:
        """What `lora_target_modules` has to name for this adapter, where it is not empty."""
        return tuple(dict.fromkeys(target for module in self.modules for target in module.targets))

    def to_dict(self) -> dict[str, object]:
        """Everything, in types that JSON has."""
        summary = {"ok": self.ok, "max_rank": self.max_rank, "nbytes": self.nbytes}
        return {**asdict(self), **summary, "target_modules": list(self.target_modules)}


def check_adapter(reader: AdapterReader, request: LoRARequest, *, max_bytes: int | None = None) -> AdapterReport:
    """Read an adapter as the engine would, and report; never raises for a bad adapter.

    Args:
        max_bytes: host memory that one adapter may take (`PeftCacheConfig.host_cache_size`).
    """
    problems = AdapterProblems(request.lora_name, request.lora_path)
    bound: BoundCheckpoint | None = None
    found: tuple[str, ...] = ()
    try:
        bound = reader.bind(request, problems)
        weights = bound.to_weights(request.lora_name, reader.model, pin_memory=False, problems=problems)
        AdapterHandle.create(request, weights).check_size(request, max_bytes)
    except AdapterError as error:
        found = error.problems
    return AdapterReport(
        name=request.lora_name,
        path=request.lora_path,
        problems=found,
        not_compared=() if bound is None else tuple(bound.binding.not_compared),
        notes=() if bound is None else tuple(bound.binding.notes),
        modules=() if bound is None else tuple(_report(module, reader) for module in bound.binding.modules),
        num_sites=len(reader.sites),
        stored_dtypes=() if bound is None else tuple(sorted({_name(t.dtype) for t in bound.tensors.values()})),
        dtype=_name(reader.dtype),
        version=None if bound is None else bound.version,
    )


def _report(module: BoundModule, reader: AdapterReader) -> ModuleReport:
    extras = {"DoRA": module.magnitude, "bias": module.lora_bias, "base bias": module.base_bias}
    nbytes = sum(tensor.values.numel() for tensor in module.tensors) * reader.dtype.itemsize
    if module.magnitude is not None:
        nbytes += module.magnitude.values.numel() * (4 - reader.dtype.itemsize)  # kept in float32
    return ModuleReport(
        name=module.sites[0].hf_name if len(module.sites) == 1 else module.module,
        targets=tuple(site.module_type.config_name for site in module.sites),
        rank=module.rank,
        scale=module.scale,
        nbytes=nbytes,
        extras=tuple(name for name, tensor in extras.items() if tensor is not None),
    )


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
