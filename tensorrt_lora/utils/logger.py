"""The package's one logger. Applications configure handlers; the command line and the engine process do so for themselves."""

import logging

logger = logging.getLogger("tensorrt_lora")
