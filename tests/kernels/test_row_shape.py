"""Rows in chunks: covered, without much beyond them, whole groups at a time."""

import pytest

from tensorrt_lora.kernels.row_shape import row_shape


@pytest.mark.parametrize("width", [1, 12, 64, 100, 128, 129, 300, 1536, 2560, 4096, 5120, 8192, 14336, 25600, 32768])
def test_a_row_is_covered(width: int) -> None:
    shape = row_shape(width)
    assert shape.block & (shape.block - 1) == 0 and shape.num_warps & (shape.num_warps - 1) == 0
    assert width <= shape.block * shape.chunks < width + shape.block
    assert shape.block % 128 == 0 or shape.chunks == 1
    assert 1 <= shape.chunks <= 5 and shape.num_warps <= 32


def test_nothing_is_beyond_usual_rows() -> None:
    for width in (2560, 3072, 4096, 5120, 8192, 12288):
        shape = row_shape(width)
        assert shape.block * shape.chunks == width
