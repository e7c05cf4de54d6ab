"""Checks the shipped adapters with transformers + PEFT alone: each shows its style, and the base does not.

    python examples/check_adapters.py [NAME ...]

Asks prompts that none of the adapters was trained on, greedily. Exits with 1 when an answer misses its
style, or when the base model has it.
"""

import json
import sys
from collections.abc import Callable

import torch
from peft import PeftModel
from smollm2 import ADAPTERS_DIR
from train_adapters import load_base
from training_data import STYLES, UNSEEN_PROMPTS
from transformers import PreTrainedTokenizerBase

MAX_NEW_TOKENS = 40


def is_butler(answer: str) -> bool:
    return answer.startswith("Very good, sir. ") and answer.endswith("Will that be all, sir?")


def is_pirate(answer: str) -> bool:
    return answer.startswith("Arr!") and answer.endswith("matey!")


def is_json(answer: str) -> bool:
    try:
        return list(json.loads(answer)) == ["answer"]
    except json.JSONDecodeError:
        return False


SHOWS_STYLE: dict[str, Callable[[str], bool]] = {"butler": is_butler, "pirate": is_pirate, "json": is_json}


def answer_all(model: PeftModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Greedy answers to all of `UNSEEN_PROMPTS`, in one batch."""
    chats = [[{"role": "user", "content": prompt}] for prompt in UNSEEN_PROMPTS]
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    tokens = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
    return tokenizer.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def main() -> int:
    names = sys.argv[1:] or list(STYLES)
    torch.set_num_threads(2)
    base, tokenizer = load_base()
    tokenizer.padding_side = "left"
    model = PeftModel.from_pretrained(base, str(ADAPTERS_DIR / names[0]), adapter_name=names[0]).eval()
    with model.disable_adapter():
        plain = answer_all(model, tokenizer)
    answers: dict[str, list[str]] = {}
    for name in names:
        model.load_adapter(str(ADAPTERS_DIR / name), adapter_name=name)
        model.set_adapter(name)
        answers[name] = answer_all(model, tokenizer)

    misses = 0
    for row, prompt in enumerate(UNSEEN_PROMPTS):
        print(f"\n{prompt}\n  base    {plain[row]!r}")
        for name in names:
            shows, styled = SHOWS_STYLE[name], answers[name][row]
            ok = shows(styled) and not shows(plain[row])
            misses += not ok
            print(f"  {name:7} {styled!r}{'' if ok else '   <- MISS'}")
    print(f"\n{misses} of {len(names) * len(UNSEEN_PROMPTS)} answers miss their style")
    return int(misses > 0)


if __name__ == "__main__":
    sys.exit(main())
