import pytest
from pydantic import ValidationError

from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.config.validation_message import describe_validation_error


def test_every_wrong_value_is_named_with_its_field() -> None:
    with pytest.raises(ValidationError) as caught:
        LoraConfig(max_lora_rank=0, max_loras=-1)
    assert describe_validation_error(caught.value) == (
        "max_lora_rank: Input should be greater than or equal to 1 (got 0); "
        "max_loras: Input should be greater than or equal to 1 (got -1)"
    )
