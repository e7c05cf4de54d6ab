"""Work that others must not notice: a thread that steps back where processor time is short."""

import os
import sys
import threading

from tensorrt_lora.utils.logger import logger


def lower_priority(nice: int) -> None:
    """Let the calling thread step back behind the process's others, for good.

    Linux schedules threads by their own nice value; elsewhere nothing happens.

    Args:
        nice: 0 is no change, 19 the most.
    """
    if sys.platform != "linux":
        return
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
    except OSError as error:
        logger.debug("thread priority stays as it is: %s", error)
