"""What a kernel is for, told by its name: cuBLAS's and FlashInfer's kernels, torch's, and our own."""

import re
from enum import Enum


class KernelKind(Enum):
    """The groups that traces are summed and coloured by."""

    LORA = "LoRA"
    PROJECTION = "base projection"
    ATTENTION = "attention"
    ELEMENTWISE = "torch elementwise"
    OTHER = "other"


# The first match wins: a LoRA kernel may have more in its name than that it is one.
_PATTERNS: tuple[tuple[KernelKind, re.Pattern[str]], ...] = (
    (KernelKind.PROJECTION, re.compile("lora_linear")),  # base and LoRA in one launch
    (KernelKind.OTHER, re.compile("lora_silu_and_mul")),  # likewise
    (KernelKind.LORA, re.compile("lora", re.IGNORECASE)),
    (KernelKind.ATTENTION, re.compile(r"attention|BatchDecode|BatchPrefill|MergeState|flash_fwd|fmha")),
    (KernelKind.PROJECTION, re.compile(r"nvjet|gemm|gemv|cutlass|cublas|splitK|streamed_linear", re.IGNORECASE)),
    (KernelKind.ELEMENTWISE, re.compile(r"elementwise")),
)


def kernel_kind(name: str) -> KernelKind:
    """The group of a kernel, by its full name."""
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), KernelKind.OTHER)


def short_name(name: str) -> str:
    """A kernel's own name, without return type, namespaces and arguments.

    Of torch's elementwise kernels it is the functor, which says what they compute.
    """
    functor = re.search(r"\w*[Ff]unctor\w*", name)
    if functor is not None:
        return functor[0]
    return re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0].rpartition("::")[2]
