"""The package's one logger. Applications configure handlers; the command line and the engine process set their own."""

import logging

logger = logging.getLogger("tensorrt_lora")
