"""Trains the three demo adapters of SmolLM2-135M-Instruct with PEFT, in fp32 on the CPU, in a few minutes.

    python examples/train_adapters.py            all three
    python examples/train_adapters.py pirate     one of them

The settings differ on purpose: ranks, target modules, layers, per-module patterns and the scaling rule, so
that one batch over all three adapters exercises the engine's breadth. Knows PEFT only, not the engine.
"""

import argparse
import random
import shutil
import time
from typing import TypeAlias

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from smollm2 import ADAPTERS_DIR, MODEL_ID, find_gguf
from torch.nn.utils.rnn import pad_sequence
from training_data import STYLES, questions_and_answers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

SEED = 0
BATCH_SIZE = 8
EPOCHS = 5
LEARNING_RATE = 2e-3
IGNORED_LABEL = -100  # what the loss of transformers skips

Example: TypeAlias = tuple[list[int], list[int]]  # input ids, labels

SETTINGS = {
    "butler": LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "o_proj", "up_proj"]),
    "pirate": LoraConfig(
        r=4,
        lora_alpha=8,
        use_rslora=True,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    ),
    "json": LoraConfig(
        r=16,
        lora_alpha=32,
        target_modules=["q_proj", "v_proj", "down_proj"],
        layers_to_transform=list(range(10, 30)),
        rank_pattern={"q_proj": 6, "down_proj": 3},
        alpha_pattern={"q_proj": 6, "down_proj": 9},
    ),
}
DESCRIPTIONS = {
    "butler": "answers like a butler: `Very good, sir. ... Will that be all, sir?`.\nRank 8 on q, v, o and up.",
    "pirate": "answers like a pirate: `Arr! ... matey!`.\n"
    "Rank 4 with rank-stabilised scaling (alpha / sqrt(r)) on all seven projections.",
    "json": 'answers as a JSON object, `{"answer": "..."}`.\n'
    "Layers 10 to 29 only, with `rank_pattern` and `alpha_pattern`: rank 16 on v, 6 on q, 3 on down.",
}


def load_base() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The base model in fp32 with its tokenizer; transformers reads the GGUF file."""
    gguf = find_gguf()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    return model, tokenizer


def encode(tokenizer: PreTrainedTokenizerBase, question: str, answer: str) -> Example:
    """(input ids, labels) of one chat turn; the loss sees the answer and the end-of-turn token only."""
    chat = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer.encode(text, add_special_tokens=False)
    reply = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    return prompt + reply, [IGNORED_LABEL] * len(prompt) + reply


def collate(examples: list[Example]) -> dict[str, torch.Tensor]:
    """Right-pads examples to [batch, longest] tensors."""
    ids, labels = ([torch.tensor(row) for row in column] for column in zip(*examples, strict=True))
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED_LABEL),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
    }


def train(model: PeftModel, examples: list[Example]) -> None:
    """Plain AdamW with a linearly falling learning rate over `EPOCHS` shuffled passes."""
    order = random.Random(SEED)
    batches: list[list[Example]] = []
    for _ in range(EPOCHS):
        shuffled = order.sample(examples, len(examples))
        batches += [shuffled[i : i + BATCH_SIZE] for i in range(0, len(shuffled), BATCH_SIZE)]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / len(batches))
    model.train()
    for step, batch in enumerate(batches):
        loss = model(**collate(batch)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 10 == 0 or step == len(batches) - 1:
            print(f"  step {step:3d}/{len(batches)}  loss {loss.item():.3f}", flush=True)


def model_card(name: str) -> str:
    """The adapter's README.md, with the front matter that model hubs read."""
    return f"""---
base_model: {MODEL_ID}
library_name: peft
license: apache-2.0
tags: [lora]
---

# {name}

A demonstration adapter: SmolLM2-135M-Instruct {DESCRIPTIONS[name]}

Trained by `examples/train_adapters.py` on the questions in `examples/training_data.py`.
"""


def save(model: PeftModel, name: str) -> None:
    """Writes `adapters/<name>/` in bf16, with the public id of the base model and a short model card."""
    folder = ADAPTERS_DIR / name
    shutil.rmtree(folder, ignore_errors=True)
    config = model.peft_config["default"]
    config.base_model_name_or_path = MODEL_ID
    # PEFT holds a set, whose order changes from run to run.
    config.target_modules = sorted(config.target_modules)
    model.to(torch.bfloat16).save_pretrained(str(folder), save_embedding_layers=False)
    (folder / "adapter_model.safetensors").chmod(0o644)
    (folder / "README.md").write_text(model_card(name))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demo adapters.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SETTINGS)}; default: all")
    names: list[str] = parser.parse_args().names or list(SETTINGS)
    if unknown := set(names) - set(SETTINGS):
        parser.error(f"unknown adapter {', '.join(sorted(unknown))}; choose from {', '.join(SETTINGS)}")
    torch.set_num_threads(2)
    for name in names:
        torch.manual_seed(SEED)
        base, tokenizer = load_base()
        config = SETTINGS[name]
        config.task_type = "CAUSAL_LM"
        model = get_peft_model(base, config)
        style = STYLES[name]
        examples = [encode(tokenizer, question, style(answer)) for question, answer in questions_and_answers()]
        parameters, _ = model.get_nb_trainable_parameters()
        print(f"{name}: {len(examples)} examples, {parameters:,} parameters", flush=True)
        start = time.perf_counter()
        train(model, examples)
        save(model, name)
        print(f"{name}: {time.perf_counter() - start:.0f} s, saved in {ADAPTERS_DIR / name}", flush=True)


if __name__ == "__main__":
    main()
