"""Several adapters in one batch: the base model and three adapters answer the same prompts at once.

    python examples/multi_lora.py ["a prompt of your own" ...]

All requests go in with one `chat` call. The engine runs them as one mixed batch over one copy of the base
model; a request whose adapter is None is a base row.
"""

import sys
import time

from rich.console import Console
from rich.table import Table
from rich.text import Text
from smollm2 import ADAPTERS_DIR, MODEL_ID, find_gguf

from tensorrt_lora import LLM, LoraConfig, LoRARequest, RequestOutput, SamplingParams

PROMPTS = [
    "What is the capital of France?",
    "What colour is the sky?",
    "What is a violin?",
    "Why do birds fly south in winter?",
]
ADAPTERS = ["butler", "pirate", "json"]


def answer_table(prompts: list[str], adapters: list[LoRARequest | None], outputs: list[RequestOutput]) -> Table:
    """One section per prompt, one row per adapter; `outputs` has the adapters of a prompt side by side."""
    table = Table("adapter", "answer", title="One mixed batch")
    remaining = iter(outputs)
    for prompt in prompts:
        table.add_row("", Text(prompt, style="bold"))
        for adapter in adapters:
            output = next(remaining)
            name = "base" if adapter is None else adapter.lora_name
            table.add_row(Text(name, style="cyan"), Text(output.error or output.outputs[0].text.strip()))
        table.add_section()
    return table


def main() -> None:
    console = Console()
    prompts = sys.argv[1:] or PROMPTS
    adapters: list[LoRARequest | None] = [
        None,
        *(LoRARequest(name, i + 1, str(ADAPTERS_DIR / name)) for i, name in enumerate(ADAPTERS)),
    ]
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts for _ in adapters]
    console.print(f"Loading {MODEL_ID} (slower the first time)")
    lora_config = LoraConfig(max_loras=4, max_lora_rank=16)
    with LLM(model=str(find_gguf()), device="auto", lora_config=lora_config) as llm:
        start = time.perf_counter()
        outputs = llm.chat(chats, SamplingParams(max_tokens=40), adapters * len(prompts))
        seconds = time.perf_counter() - start
    console.print(answer_table(prompts, adapters, outputs))
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    console.print(
        f"{len(outputs)} requests in one batch: {tokens} tokens in {seconds:.1f} s, {tokens / seconds:.1f} tokens/s"
    )


if __name__ == "__main__":
    main()
