"""The smallest program: one base model, one adapter, one answer that is printed as it comes.

python examples/quickstart.py
"""

from smollm2 import ADAPTERS_DIR, find_gguf

from tensorrt_lora import LLM, LoraConfig, LoRARequest, SamplingParams


def main() -> None:
    pirate = LoRARequest("pirate", 1, str(ADAPTERS_DIR / "pirate"))
    with LLM(model=str(find_gguf()), lora_config=LoraConfig(max_loras=1, max_lora_rank=16)) as llm:
        prompt = llm.chat_prompt([{"role": "user", "content": "What is the capital of France?"}])
        future = llm.generate_async(prompt, SamplingParams(max_tokens=32), pirate, streaming=True)
        for output in future:
            print(output.outputs[0].text_diff, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
