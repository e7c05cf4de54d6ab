"""What the prefill benchmark leaves behind: a header, then one record per number of tokens and mode.

Owns the names of the fields. Filled by `PrefillBench`, read by the table, and by whoever compares runs.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from tensorrt_lora.bench.bench_header import BenchHeader, write_json_lines


@dataclass(frozen=True, slots=True)
class PrefillRecord:
    """One cell: a number of tokens in a mode. Times are medians over the repeats.

    Attributes:
        tokens: of the step, over all prompts.
        prompts: of equal lengths.
        rank: of every adapter.
        adapters: distinct adapters of the step; modes without adapters have the same prompts.
        plan: how LoRA ran.
        ms: from the start of the step until the host has the tokens that it samples.
        tokens_per_s: prompt tokens over `ms`.
        tflops: of the model without LoRA, over `ms`, in 1e12 a second.
        lora_tax: `ms` over base's in the same repeat, minus 1; None if base was not measured.
        host_ms: until the device has all its work; the host bounds the step where it is as long as `ms`.
        spread: least and largest time, ms.
    """

    bench: str
    preset: str
    tokens: int
    prompts: int
    rank: int
    adapters: int
    mix: str
    mode: str
    plan: str
    ms: float
    tokens_per_s: float
    tflops: float
    lora_tax: float | None
    host_ms: float
    spread: tuple[float, float]


@dataclass(slots=True)
class PrefillResult:
    """A run as far as it has got."""

    header: BenchHeader
    records: list[PrefillRecord] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """JSON lines: the header, then the records."""
        write_json_lines(path, [asdict(self.header), *(asdict(record) for record in self.records)])
