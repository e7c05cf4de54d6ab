"""How the projections of a model are quantised.

Owns the settings of quantising a model as it is loaded. Set by users as `TorchLlmArgs.quant_config`, turned into a
`ModelQuantization` when the model's config is read. Must not know checkpoints' own formats.
"""

from typing import Literal

from pydantic import Field

from tensorrt_lora.config.strict_base_model import StrictBaseModel

# FP8_PER_TENSOR: a scale for each projection's weight (or each of its rows), activations scaled by token as they come.
# FP8_STATIC: the same weights; activations scaled by a calibrated number that the checkpoint has.
# FP8_BLOCK_SCALES: a scale for each 128 x 128 block of weights, and for every 128 activations of a token as they come.
QuantAlgo = Literal["FP8_PER_TENSOR", "FP8_STATIC", "FP8_BLOCK_SCALES"]


class QuantConfig(StrictBaseModel):
    """Quantisation of a model whose checkpoint is not quantised. Raises ValueError (pydantic's) for wrong values."""

    quant_algo: QuantAlgo = Field(
        description="Format of the decoder layers' projections; embedding and language-model head stay as they are. "
        "FP8_STATIC has activation scales for dummy weights only."
    )
    exclude_modules: list[str] = Field(
        default_factory=list,
        description="Projections to leave as they are: one or several successive parts of a dotted name ('o_proj', "
        "'model.layers.0'), a pattern with *, or 're:' and a regular expression.",
    )
