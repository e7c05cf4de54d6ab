"""Which method each projection of a model gets: one place that knows both the names and the formats."""

from tensorrt_lora.config.model_quantization import ModelQuantization
from tensorrt_lora.modules.fp8_linear_method import Fp8BlockLinearMethod, Fp8LinearMethod
from tensorrt_lora.modules.linear_method import LinearMethod, UnquantizedLinearMethod


class LinearMethodFactory:
    """Makes the methods of one block of projections.

    Args:
        quantization: of the model; None for none.
        prefix: the block's Hugging Face name ("model.layers.3.mlp").
    """

    def __init__(self, quantization: ModelQuantization | None = None, prefix: str = "") -> None:
        self._quantization = quantization
        self._prefix = prefix

    def create(self, *names: str) -> LinearMethod:
        """The method of the weight that stores these projections ("q_proj", "k_proj", "v_proj").

        Raises:
            ValueError: only some of them are quantised.
        """
        quantization = self._quantization
        if quantization is None:
            return UnquantizedLinearMethod()
        excluded = [name for name in names if quantization.excludes(f"{self._prefix}.{name}")]
        if len(excluded) == len(names):
            return UnquantizedLinearMethod()
        if excluded:
            raise ValueError(
                f"{', '.join(excluded)} of {self._prefix} would stay unquantised, but {', '.join(names)} are stored as "
                "one weight: exclude all of them or none"
            )
        in_checkpoint = quantization.in_checkpoint
        if quantization.quant_algo == "FP8_BLOCK_SCALES":
            return Fp8BlockLinearMethod(in_checkpoint=in_checkpoint)
        static = quantization.quant_algo == "FP8_STATIC"
        return Fp8LinearMethod(static_activations=static, in_checkpoint=in_checkpoint)
