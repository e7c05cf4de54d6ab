"""A product and its correction instead of a division, in exact arithmetic: the same float8 values for all that matters.

Triton's interpreter knows neither a fused multiplication nor float8; tests/gpu divides with the kernel.
"""

import random
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import pytest
import torch

from tensorrt_lora.kernels.fp8_weight import FP8_DTYPE, scale_of_amax

HALF = Fraction(1, 2)


def round_to(value: Fraction, bits: int) -> Fraction:
    """To nearest, ties to even; there is no smallest number."""
    if value == 0:
        return value
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent + 1 - bits)
    return round(value / unit) * unit


def product(x: Fraction, scale: Fraction) -> Fraction:
    return round_to(x * round_to(1 / scale, 24), 24)


def corrected_product(x: Fraction, scale: Fraction) -> Fraction:
    """`divide_to_fp8` before its cast."""
    excess = round_to(product(x, scale) * scale - x, 24)
    return round_to(product(x, scale) - excess * round_to(1 / scale, 24), 24)


def fp8_middles() -> list[Fraction]:
    """Between neighbours, where the rounding to float8 turns: of subnormals and two exponents, as of all others."""
    values = torch.arange(0, 25, dtype=torch.uint8).view(FP8_DTYPE).double().tolist()
    return [Fraction(low + high) / 2 for low, high in pairwise(values)]


def wrong_cases(quotient: Callable[[Fraction, Fraction], Fraction], scales: list[float], bits: int) -> list[Fraction]:
    """x / scale with another float8 value than the division's, of all x next to where that turns: others are far off.

    x has `bits` significant ones.
    """
    cases = []
    for scale in map(Fraction, scales):
        for middle in fp8_middles():
            nearest = round_to(middle * scale, bits)
            cases += [(round_to(nearest * (1 + offset), bits), scale) for offset in (-(HALF**bits), 0, HALF**bits)]
    exact = [float(round_to(x / scale, 24)) for x, scale in cases]
    actual = [float(quotient(x, scale)) for x, scale in cases]
    codes = torch.tensor([exact, actual]).to(FP8_DTYPE).view(torch.uint8).tolist()
    return [x / scale for (x, scale), wanted, code in zip(cases, *codes, strict=True) if wanted != code]


@pytest.mark.parametrize("bits", [8, 11])
def test_scales_of_largest_values(bits: int) -> None:
    """All mantissas of bfloat16; some of float16."""
    largest = torch.arange(2**7, 2**8) if bits == 8 else torch.arange(2**10, 2**11, 17)
    scales = scale_of_amax(largest).tolist()
    assert wrong_cases(corrected_product, scales, bits) == []
    assert wrong_cases(product, scales, bits) != [], "the cases cannot tell"


@pytest.mark.parametrize("bits", [8, 11])
def test_calibrated_scales(bits: int) -> None:
    """Any mantissas, and those next to which quotients are in the middle of two numbers in float32."""
    scales = [2.0**24 - 1, *(float(random.Random(seed).randrange(2**23, 2**24)) for seed in range(20))]
    scales += [n * 2.0**20 + t for n in range(8, 16) for t in (-1, 0, 1)]
    assert wrong_cases(corrected_product, scales, bits) == []
