import os
import sys
import threading

import pytest

from tensorrt_lora.utils.thread_priority import lower_priority


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux")
def test_only_the_calling_thread_steps_back():
    before = os.getpriority(os.PRIO_PROCESS, 0)
    seen: list[int] = []

    def work() -> None:
        lower_priority(before + 1)
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [min(before + 1, 19)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
