from __future__ import annotations

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.native import native
from shardmill.storage import checksums


@pytest.mark.parametrize("level", [0, 1, 2])
@given(data=st.binary(max_size=300), start=st.integers(0, 300), size=st.integers(0, 300))
def test_the_compiled_loop_is_googles_crc32c(level: int, data: bytes, start: int, size: int) -> None:
    assert native is not None, "the compiled module is missing where it is expected"
    start = min(start, len(data))
    size = min(size, len(data) - start)
    out = np.empty(1, np.uint32)
    native.crc32c_ranges(np.frombuffer(data, np.uint8), np.array([start]), np.array([size]), out, level)
    assert int(out[0]) == google_crc32c.value(data[start : start + size])


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("size", [255, 256, 511, 512, 513, 767, 768, 4096, 12_287, 12_288, 12_289, 40_000, 110_001])
def test_long_ranges_take_the_wide_paths(size: int, level: int) -> None:
    assert native is not None, "the compiled module is missing where it is expected"
    data = np.random.default_rng(size).integers(0, 256, size + 3, dtype=np.uint8)
    out = np.empty(1, np.uint32)
    native.crc32c_ranges(data, np.array([3]), np.array([size]), out, level)
    assert int(out[0]) == google_crc32c.value(data[3:].tobytes())


def test_without_the_compiled_module_the_result_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.arange(200, dtype=np.uint8)
    starts, sizes = np.array([0, 5, 200]), np.array([200, 7, 0])
    fast = checksums.crc32c_ranges(data, starts, sizes)
    monkeypatch.setattr(checksums, "native", None)
    assert (checksums.crc32c_ranges(data, starts, sizes) == fast).all()


def test_a_range_outside_the_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="outside the buffer"):
        checksums.crc32c_ranges(np.zeros(10, np.uint8), np.array([5]), np.array([6]))
