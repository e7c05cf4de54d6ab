"""Which adapter a request runs with.

Owns the name that users give an adapter, its id and its directory. Passed to `LLM.generate` by users and
carried as it is to the engine. Knows nothing of weights, files or slots.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """Names one adapter by a label, a stable integer id and the directory of its PEFT checkpoint.

    Field names and order are TensorRT-LLM's; the short names (`name`, `adapter_id`, `path`) are there too.
    Raises ValueError for an empty name, an id that is not an integer >= 0, or an empty path.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.lora_name, str) or not self.lora_name:
            raise ValueError(f"lora_name must be a non-empty string, got {self.lora_name!r}")
        # bool is an int to Python, but True as an id is always a slip.
        if (
            not isinstance(self.lora_int_id, int)
            or isinstance(self.lora_int_id, bool)
            or self.lora_int_id < 0
        ):
            raise ValueError(
                f"lora_int_id of adapter {self.lora_name!r} must be an integer >= 0, got {self.lora_int_id!r}"
            )
        if not isinstance(self.lora_path, str) or not self.lora_path:
            raise ValueError(
                f"lora_path of adapter {self.lora_name!r} must be the directory of a PEFT adapter, got "
                f"{self.lora_path!r}"
            )

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def path(self) -> str:
        return self.lora_path
