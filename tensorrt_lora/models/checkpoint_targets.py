"""The tensors that a Hugging Face checkpoint of a model has, and where each of them goes.

Called by `checkpoint_loader`. Projections stored in one weight are apart in a checkpoint; a quantised projection has
scales beside its weight.
"""

from torch import nn

from tensorrt_lora.modules.checkpoint_target import CheckpointTarget, copy_target
from tensorrt_lora.modules.linear import Linear


def checkpoint_targets(model: nn.Module) -> dict[str, CheckpointTarget]:
    """Targets by name. A parameter that two modules share appears once, under the name of the first."""
    targets: dict[str, CheckpointTarget] = {}
    seen: set[int] = set()
    for path, module in model.named_modules():
        if isinstance(module, Linear):
            for name, rows in module.parts(path):
                targets |= {f"{name}.{leaf}": target for leaf, target in module.checkpoint_targets(rows).items()}
            continue
        for leaf, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                targets[f"{path}.{leaf}"] = copy_target(parameter)
    return targets
