"""Which adapter a request runs with, or which several.

Owns the name that users give an adapter, its id and its directory. Passed to `LLM.generate` by users and
carried as it is to the engine. Knows nothing of weights, files or slots.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """Names one adapter by a label, a stable integer id and the directory (or hub id) of its PEFT checkpoint.

    Field names and order are TensorRT-LLM's; the short names (`name`, `adapter_id`, `path`) are there too.
    Files that change under a path are read again once the adapter is no longer in host memory (docs/adapters.md).
    Raises ValueError for an empty name, an id that is not an integer >= 0, or an empty path.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.lora_name, str) or not self.lora_name:
            raise ValueError(f"lora_name must be a non-empty string, got {self.lora_name!r}")
        # bool is an int to Python, but True as an id is always a slip.
        if not isinstance(self.lora_int_id, int) or isinstance(self.lora_int_id, bool) or self.lora_int_id < 0:
            raise ValueError(
                f"lora_int_id of adapter {self.lora_name!r} must be an integer >= 0, got {self.lora_int_id!r}"
            )
        if not isinstance(self.lora_path, str) or not self.lora_path:
            raise ValueError(
                f"lora_path of adapter {self.lora_name!r} must be the directory of a PEFT adapter, got "
                f"{self.lora_path!r}"
            )
        # Plain values: a str-Enum of the user's script, say, could not be read in the engine's process.
        object.__setattr__(self, "lora_name", str.__str__(self.lora_name))
        object.__setattr__(self, "lora_int_id", int(self.lora_int_id))
        object.__setattr__(self, "lora_path", str.__str__(self.lora_path))

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def path(self) -> str:
        return self.lora_path


@dataclass(frozen=True, slots=True)
class WeightedLoRARequests:
    """Several adapters on one request: what each of them adds is multiplied by its weight.

    Users write a list of pairs, `[(a, 0.7), (b, -0.3)]`. Raises ValueError for an empty list, and for what is no pair
    of a LoRARequest and a finite number.
    """

    parts: tuple[tuple[LoRARequest, float], ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a combination of adapters needs at least one (LoRARequest, weight) pair, got none")
        for part in self.parts:
            if not (isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], LoRARequest)):
                raise ValueError(f"a combination of adapters holds (LoRARequest, weight) pairs, got {part!r}")
            request, weight = part
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not _is_finite(weight):
                raise ValueError(f"the weight of adapter {request.lora_name!r} must be a finite number, got {weight!r}")
        # Plain pairs and floats, for the same reason as above.
        object.__setattr__(self, "parts", tuple((request, float(weight)) for request, weight in self.parts))

    @property
    def name(self) -> str:
        return " + ".join(f"{weight:g} * {request.lora_name}" for request, weight in self.parts)

    @property
    def path(self) -> str:
        return ", ".join(request.lora_path for request, _ in self.parts)


def _is_finite(weight: float) -> bool:
    try:
        return math.isfinite(weight)
    except OverflowError:  # an int beyond the largest float
        return False
