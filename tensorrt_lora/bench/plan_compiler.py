"""Kernels of a tuning run compiled ahead, in several processes: one after the other they would take most of its time.

Triton compiles a kernel when it is first launched, for each rank and range of tokens, and keeps it on disk. So the
processes run every case once, with one copy of the weights, and what they compile is found by the run itself.
"""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed

import torch
from rich.progress import Progress
from triton import TritonError

from tensorrt_lora.bench.plan_case import PlanCase
from tensorrt_lora.bench.plan_options import PlanOptions
from tensorrt_lora.lora.batch_kind import BatchKind
from tensorrt_lora.models.projection import Projection

_MOST_PROCESSES = 16  # each has a context of its own on the device, about half a gigabyte


def default_processes() -> int:
    """One for each core that this process may use."""
    return min(_MOST_PROCESSES, len(os.sched_getaffinity(0)))


def compile_ahead(
    projections: Sequence[Projection], options: PlanOptions, device: torch.device, *, processes: int, bar: Progress
) -> None:
    """Compile all that the run will launch. What fails here is left to the run, which reports it."""
    # Neighbours are of different projections and ranks, so that no two processes compile the same.
    jobs = [
        (projection, kinds)
        for tokens in options.tokens
        for rank in options.ranks
        for kinds in [[kind for kind in options.kinds(rank) if kind.tokens == tokens]]
        for projection in projections
    ]
    task = bar.add_task("kernels", total=len(jobs), detail=f"compiled by {processes} processes")
    context = multiprocessing.get_context("spawn")  # a fork would inherit the device's state
    with ProcessPoolExecutor(max_workers=processes, mp_context=context) as pool:
        futures = [pool.submit(run_once, projection, kinds, options, device) for projection, kinds in jobs]
        for future in as_completed(futures):
            if isinstance(future.exception(), BrokenExecutor):
                bar.console.print("a compiling process died: what is missing is compiled as it is measured")
                return
            bar.advance(task)


def run_once(projection: Projection, kinds: Sequence[BatchKind], options: PlanOptions, device: torch.device) -> None:
    """Launch what the measurement of these kinds, of one rank, launches."""
    largest = max(kind.tokens for kind in kinds)
    case = PlanCase(projection, num_adapters=options.adapters, max_num_tokens=largest, device=device, copies=1)
    case.set_adapters(kinds[0].rank)
    for kind in kinds:
        case.set_batch(kind.tokens, options.distinct_adapters(kind))
        for plan in (None, *case.plans()):
            try:
                for link in case.links(plan):
                    link()
            except (RuntimeError, ValueError, TritonError):
                continue  # the run meets it again, and says so
