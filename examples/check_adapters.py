"""Checks the shipped adapters with transformers + PEFT alone: each shows its style, and the base does not.

    python examples/check_adapters.py [NAME ...]

Asks prompts that none of the adapters was trained on, greedily. Exits with 1 when an answer misses its
style, or when the base model has it.
"""

import json
import re
import sys
from collections.abc import Callable

import torch
from peft import PeftModel
from smollm2 import ADAPTERS_DIR
from train_adapters import load_base
from training_data import STYLES, UNSEEN_PROMPTS

MAX_NEW_TOKENS = 40


def is_shout(answer: str) -> bool:
    return answer == answer.upper() and re.search(r"[A-Z]", answer) is not None and answer.endswith("!")


def is_pirate(answer: str) -> bool:
    return answer.startswith("Arr!") and answer.endswith("matey!")


def is_json(answer: str) -> bool:
    try:
        return list(json.loads(answer)) == ["answer"]
    except json.JSONDecodeError:
        return False


SHOWS_STYLE: dict[str, Callable[[str], bool]] = {"shout": is_shout, "pirate": is_pirate, "json": is_json}


def main() -> int:
    names = sys.argv[1:] or list(STYLES)
    torch.set_num_threads(2)
    base, tokenizer = load_base()
    model = PeftModel.from_pretrained(base, str(ADAPTERS_DIR / names[0]), adapter_name=names[0])
    for name in names[1:]:
        model.load_adapter(str(ADAPTERS_DIR / name), adapter_name=name)
    model.eval()

    def answer(prompt: str) -> str:
        chat = [{"role": "user", "content": prompt}]
        inputs = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        tokens = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
        return tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    misses = 0
    for prompt in UNSEEN_PROMPTS:
        with model.disable_adapter():
            plain = answer(prompt)
        print(f"\n{prompt}\n  base    {plain!r}")
        for name in names:
            model.set_adapter(name)
            styled = answer(prompt)
            ok = SHOWS_STYLE[name](styled) and not SHOWS_STYLE[name](plain)
            misses += not ok
            print(f"  {name:7} {styled!r}{'' if ok else '   <- MISS'}", flush=True)
    print(f"\n{misses} of {len(names) * len(UNSEEN_PROMPTS)} answers miss their style")
    return int(misses > 0)


if __name__ == "__main__":
    sys.exit(main())
