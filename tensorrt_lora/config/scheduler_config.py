"""How requests are picked for a step.

Owns the scheduling settings of one engine. Set by users as `TorchLlmArgs.scheduler_config`, read by the
scheduler.
"""

from pydantic import Field

from tensorrt_lora.config.strict_base_model import StrictBaseModel


class SchedulerConfig(StrictBaseModel):
    """Scheduling settings of one engine. Raises ValueError (pydantic's) for values out of bounds."""

    max_adapter_wait_iters: int = Field(
        default=64,
        ge=0,
        description="Steps that a request may be overtaken by requests whose adapter already holds a "
        "slot; after that, no other adapter is admitted before its own.",
    )
