"""Random numbers without state: pure functions of a seed and a counter.

Called by the sampler for every draw, and wherever seeds are derived. A draw therefore depends neither on
batch neighbours, nor on preemption, nor on what a captured graph has frozen.

The mixer is splitmix64: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA
2014, with the constants of its variant 13. Both forms here (Python ints, int64 tensors) give the same
numbers.
"""

import torch

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)


def derive_seed(*parts: int) -> int:
    """A seed (signed 64 bits) from integers, each taken modulo 2**64; their order matters."""
    state = 0
    for part in parts:
        state = _mix((state ^ _mix((part & _MASK) + _GAMMA)) + _GAMMA)
    return _signed(state)


def uniform(seeds: torch.Tensor, counters: torch.Tensor) -> torch.Tensor:
    """Draws in [0, 1), multiples of 2**-53.

    Args:
        seeds: int64 [n], made by `derive_seed` (raw neighbouring numbers would give shifted copies of one
            sequence).
        counters: int64 [n], >= 0.

    Returns:
        float64 [n]
    """
    # int64 products and sums wrap, which is arithmetic modulo 2**64 on every device torch has.
    bits = seeds + (counters + 1) * _signed(_GAMMA)
    bits = (bits ^ _shift_right(bits, _SHIFTS[0])) * _signed(_MULTIPLIERS[0])
    bits = (bits ^ _shift_right(bits, _SHIFTS[1])) * _signed(_MULTIPLIERS[1])
    bits = bits ^ _shift_right(bits, _SHIFTS[2])
    return _shift_right(bits, 11).double() * 2.0**-53


def _mix(bits: int) -> int:
    bits &= _MASK
    bits = ((bits ^ (bits >> _SHIFTS[0])) * _MULTIPLIERS[0]) & _MASK
    bits = ((bits ^ (bits >> _SHIFTS[1])) * _MULTIPLIERS[1]) & _MASK
    return bits ^ (bits >> _SHIFTS[2])


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


def _shift_right(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Logical shift; torch's `>>` on int64 copies the sign bit in."""
    return (bits >> count) & (2 ** (64 - count) - 1)
