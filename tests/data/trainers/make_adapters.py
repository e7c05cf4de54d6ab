"""Writes this folder's adapters, each with a real trainer's code: `python tests/data/trainers/make_adapters.py`.

Every trainer runs in a process of its own, with its packages in a temporary folder before those of the environment
(which brings torch). It trains for a few steps on the tiny base that `base_model` makes, saves the adapter its own way,
and records what its own model answers: `expected.json` holds the prompt and the log-probability of every prompt token,
with the adapter and without. Run by hand when a trainer is added; the tests read what it wrote.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

HERE = Path(__file__).parent
PROMPT = [(37 * position + 11) % 256 for position in range(32)]
STEPS, LEARNING_RATE = 8, 0.03
# torch comes from the environment, so that these are all of a trainer's packages that matter.
_DATASETS = (
    "datasets==4.4.1 pyarrow==21.0.0 pandas==2.3.3 dill==0.4.0 multiprocess==0.70.18 xxhash python-dateutil pytz "
    "tzdata six requests urllib3 idna certifi charset_normalizer httpx==0.28.1 httpcore==1.0.9 h11 anyio sniffio"
)
PACKAGES = {
    "peft-0.11": "peft==0.11.1 transformers==4.44.2 tokenizers==0.19.1 huggingface_hub==0.24.7 accelerate==0.33.0",
    "trl-1.16": f"trl==1.16.0 {_DATASETS}",
    "torchtune-0.6": "torchtune==0.6.1 torchao==0.9.0 omegaconf antlr4-python3-runtime==4.9.3 tiktoken sentencepiece "
    f"blobfile kagglehub lxml pycryptodomex {_DATASETS}",
}


def base_model(directory: Path) -> Path:
    """The base that all adapters here were trained on; the tests make it again."""
    from tests.support.tiny_models import save_tiny_model

    return save_tiny_model(directory, "llama", overrides={"hidden_size": 64, "num_attention_heads": 4})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trainers", nargs="*", default=list(PACKAGES), help=f"of {list(PACKAGES)}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        base = base_model(Path(temporary) / "base")
        for trainer in arguments.trainers:
            packages = Path(temporary) / trainer
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages)]
            subprocess.run([*pip, *PACKAGES[trainer].split()], check=True)
            environment = os.environ | {"PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"}
            subprocess.run([sys.executable, __file__, "--train", trainer, str(base)], check=True, env=environment)


def token_logprobs(model: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
    """log p of every prompt token but the first; `model` gives logits [1, T, vocab]."""
    with torch.no_grad():
        logprobs = model(torch.tensor([PROMPT]))[0].float().log_softmax(-1)
    return logprobs[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0].tolist()


def train(model: torch.nn.Module, loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A few steps of AdamW on random tokens."""
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE)
    for _ in range(STEPS):
        loss(torch.randint(0, 256, (2, 24))).backward()
        optimizer.step()
        optimizer.zero_grad()


def record(directory: Path, writer: str, base: list[float], adapted: list[float]) -> None:
    """Keep the adapter's own files, without the base's path, and add what the trainer's model says."""
    for file in directory.iterdir():
        if not file.name.startswith("adapter_"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        else:
            file.chmod(0o644)
    config = json.loads((directory / "adapter_config.json").read_text())
    if "base_model_name_or_path" in config:
        config["base_model_name_or_path"] = "tiny-llama"
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    content = {"writer": writer, "prompt": PROMPT, "base": base, "adapted": adapted}
    (directory / "expected.json").write_text(json.dumps(content) + "\n")


def write_with_old_peft(base_dir: str) -> None:
    import peft
    import transformers

    variants = {
        "peft-0.11-dora": ({"use_dora": True, "use_rslora": True, "target_modules": ["q_proj", "down_proj"]}, True),
        "peft-0.11-bin": ({"target_modules": r".*\.(q|v|gate)_proj", "rank_pattern": {"v_proj": 3}}, False),
        "peft-0.11-embedding": ({"target_modules": ["embed_tokens", "lm_head", "k_proj"]}, True),
    }
    for name, (fields, safe) in variants.items():
        model = transformers.AutoModelForCausalLM.from_pretrained(base_dir).eval()
        before = token_logprobs(lambda ids, model=model: model(ids).logits)
        torch.manual_seed(0)
        config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, **fields)
        model = peft.get_peft_model(model, config).train()
        train(model, lambda ids, model=model: model(input_ids=ids, labels=ids).loss)
        model.save_pretrained(HERE / name, safe_serialization=safe)
        model.eval()
        after = token_logprobs(lambda ids, model=model: model(input_ids=ids).logits)
        record(HERE / name, f"peft {peft.__version__}, transformers {transformers.__version__}", before, after)
    write_with_transformers(base_dir)


def write_with_transformers(base_dir: str) -> None:
    """transformers' own integration: `add_adapter` and `save_pretrained`, without a PeftModel."""
    import peft
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(base_dir).eval()
    before = token_logprobs(lambda ids: model(ids).logits)
    torch.manual_seed(0)
    model.add_adapter(peft.LoraConfig(task_type="CAUSAL_LM", r=3, target_modules=["q_proj", "o_proj", "up_proj"]))
    train(model.train(), lambda ids: model(input_ids=ids, labels=ids).loss)
    model.save_pretrained(HERE / "transformers-4.44")
    after = token_logprobs(lambda ids: model.eval()(ids).logits)
    record(HERE / "transformers-4.44", f"transformers {transformers.__version__}", before, after)


def write_with_trl(base_dir: str) -> None:
    import datasets
    import peft
    import transformers
    import trl

    model = transformers.AutoModelForCausalLM.from_pretrained(base_dir, dtype="float32").eval()
    before = token_logprobs(lambda ids: model(ids).logits)
    texts = [{"text": f"{number} times {number} is {number * number}"} for number in range(16)]
    with tempfile.TemporaryDirectory() as output:
        arguments = trl.SFTConfig(
            output_dir=output, max_steps=STEPS, learning_rate=LEARNING_RATE, per_device_train_batch_size=4,
            use_cpu=True, report_to="none", bf16=False, save_strategy="no", gradient_checkpointing=False, seed=0,
        )  # fmt: skip
        trainer = trl.SFTTrainer(
            model=model,
            args=arguments,
            train_dataset=datasets.Dataset.from_list(texts),
            processing_class=transformers.AutoTokenizer.from_pretrained(base_dir),
            peft_config=peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=16, target_modules="all-linear"),
        )
        trainer.train()
        trainer.save_model(str(HERE / "trl-1.16"))
    trained = trainer.model.float().eval()
    after = token_logprobs(lambda ids: trained(input_ids=ids).logits)
    record(HERE / "trl-1.16", f"trl {trl.__version__}, peft {peft.__version__}", before, after)


def write_with_torchtune(base_dir: str) -> None:
    from torchtune.models.llama2 import lora_llama2
    from torchtune.modules.peft import get_adapter_params, get_lora_module_names, set_trainable_params
    from torchtune.training import FullModelHFCheckpointer

    config = json.loads((Path(base_dir) / "config.json").read_text())
    targets = ["q_proj", "v_proj", "output_proj"]
    torch.manual_seed(0)
    model = lora_llama2(
        targets, apply_lora_to_mlp=True, vocab_size=config["vocab_size"], num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"], num_kv_heads=config["num_key_value_heads"],
        embed_dim=config["hidden_size"], intermediate_dim=config["intermediate_size"], max_seq_len=512,
        norm_eps=config["rms_norm_eps"], lora_rank=4, lora_alpha=12,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as output:
        checkpointer = FullModelHFCheckpointer(base_dir, ["model.safetensors"], "LLAMA2", output)
        weights = checkpointer.load_checkpoint()["model"]
        model.load_state_dict(weights, strict=False)
        before = token_logprobs(model)
        set_trainable_params(model, get_adapter_params(model))
        train(
            model,
            lambda ids: torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()),
        )
        after = token_logprobs(model)
        adapter = {
            "adapter": {key: value for key, value in model.state_dict().items() if "lora" in key},
            "adapter_config": {
                "r": 4, "lora_alpha": 12, "target_modules": get_lora_module_names(targets, True, False),
                "peft_type": "LORA",
            },
            "model": weights,
        }  # fmt: skip
        checkpointer.save_checkpoint(adapter, epoch=0, adapter_only=True)
        shutil.rmtree(HERE / "torchtune-0.6", ignore_errors=True)
        shutil.copytree(Path(output) / "epoch_0", HERE / "torchtune-0.6")
    (HERE / "torchtune-0.6" / "adapter_model.pt").unlink(missing_ok=True)
    record(HERE / "torchtune-0.6", "torchtune 0.6.1", before, after)


_WRITERS = {
    "peft-0.11": write_with_old_peft,  # transformers' own integration too
    "trl-1.16": write_with_trl,
    "torchtune-0.6": write_with_torchtune,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        _WRITERS[sys.argv[2]](sys.argv[3])
    else:
        sys.path.insert(0, str(HERE.parents[2]))
        main()
