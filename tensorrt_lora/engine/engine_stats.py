"""The figures of a running engine, for servers and their metrics.

Made by `PyExecutor`, sent as it is to whoever calls `LLM.stats`. Counters count from the engine's start.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot between two steps.

    Attributes:
        requests_running: with at least one sequence in a batch; a request with n > 1 counts once.
        requests_waiting: for their adapter, a slot, pages or room in the batch.
        preemptions: sequences that gave back their pages and were computed again.
        kv_pages_used: held by requests; what the prefix cache keeps for reuse counts as free.
        prefix_queried_tokens, prefix_hit_tokens: tokens of sequences that started, and those of them that the prefix
            cache held.
        graph_steps, eager_steps: steps that replayed a CUDA graph, and the others.
        adapter_loads, adapter_load_seconds: adapters read from disk, and the time that it took, summed over loads that
            ran side by side.
        host_evictions, slot_evictions: adapters that gave way to others in host memory and on the device.
        slots_used, slots_total: adapters on the device, and how many there can be at once.
        adapter_host_bytes, adapter_host_bytes_max: host memory of adapters, and its limit.
    """

    requests_running: int = 0
    requests_waiting: int = 0
    preemptions: int = 0
    kv_pages_used: int = 0
    kv_pages_total: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    graph_steps: int = 0
    eager_steps: int = 0
    adapter_loads: int = 0
    adapter_load_seconds: float = 0.0
    host_evictions: int = 0
    slot_evictions: int = 0
    slots_used: int = 0
    slots_total: int = 0
    adapter_host_bytes: int = 0
    adapter_host_bytes_max: int = 0
