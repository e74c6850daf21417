"""Types of the compiled module. Each function has a plain-Python twin; see the module that calls it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# bind_decode.cpp: twins in images/pillow.py

def read_jpeg_sizes(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]: ...
def decode_jpegs(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    left: NDArray[np.float64],
    top: NDArray[np.float64],
    width: NDArray[np.float64],
    height: NDArray[np.float64],
    flip: NDArray[np.bool_],
    slots: NDArray[np.int64],
    out: NDArray[Any],
    *,
    dtype: int,
    planar: bool,
    out_height: int,
    out_width: int,
    gain: NDArray[np.float32],
    bias: NDArray[np.float32],
    resize_filter: int,
    max_pixels: int,
    max_scans: int,
    strict: bool,
) -> NDArray[np.int32]: ...
def entropy_decode(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.int32]: ...
def native_features() -> dict[str, Any]: ...
def use_fast_path(on: bool) -> None: ...
def set_simd_level(name: str) -> None: ...

# tarscan.cpp: twin in shards/tarscan.py

def tar_scan(
    fd: int, start: int, end: int, max_members: int
) -> tuple[int, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], bytes, NDArray[np.int64]]: ...

# read.cpp: twins in storage/local.py and storage/checksums.py

def read_ranges(
    fds: NDArray[np.int32],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    out: NDArray[np.uint8],
    out_starts: NDArray[np.int64],
    status: NDArray[np.int32],
    positions: NDArray[np.int64],
    wanted_sizes: NDArray[np.int64],
    order: NDArray[np.int64],
    first_wanted: NDArray[np.int64],
    crcs: NDArray[np.uint32] | None,
) -> None: ...
def crc32c_ranges(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    out: NDArray[np.uint32],
    level: int = 0,
) -> None: ...
