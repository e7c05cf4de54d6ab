"""What form an answer must have.

Owns TensorRT-LLM's guided decoding settings, as far as they are served. Set by users as
`SamplingParams.guided_decoding`, read by the engine's `GuidedDecoder`. Knows no tokens.
"""

from pydantic import Field, model_validator

from tensorrt_lora.config.strict_base_model import StrictBaseModel

MAX_SCHEMA_LENGTH = 64 * 1024


class GuidedDecodingParams(StrictBaseModel):
    """JSON of any form, or JSON by a schema. Raises ValueError (pydantic's) unless it is one of the two."""

    json_object: bool = Field(default=False, description="Any JSON object.")
    json_schema: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_SCHEMA_LENGTH,
        description="JSON that this JSON Schema, as text, describes; what of it is not served is refused by name.",
    )

    @model_validator(mode="after")
    def _check_one(self) -> "GuidedDecodingParams":
        if self.json_object == (self.json_schema is not None):
            raise ValueError("guided_decoding needs one of json_object=True and json_schema=...")
        return self
