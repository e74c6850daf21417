"""The image kernel alone: crop, resize, flip and normalise real JPEGs from memory, beside its ceiling.

    python -m benchmarks.kernel                     500 images, 2 threads, 15 interleaved rounds, about 20 s
    python -m benchmarks.kernel --simd portable     as on a CPU without AVX2

The ceiling is libjpeg-turbo's entropy decoding (``jpeg_read_coefficients``) of the same whole images, in as many
threads: what no decoder built on libjpeg-turbo passes. The kernel can, as it has an entropy decoder of its own and
stops at the last row of the crop; ``--libjpeg`` switches that off. Rounds are interleaved and ratios are taken within a
round. Batches of 64 go into buffers that are reused.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import SAMPLE, Spread, busy_warning, log, machine, paired, print_table
from shardmill.images import recipes
from shardmill.images.decode import Crops, PixelDtype, decode_into, read_sizes
from shardmill.images.plan import compile_recipe
from shardmill.native import native
from shardmill.records import EncodedImages, ImageFormat

CEILING = "ceiling: entropy decode"
GOALS = {"float32": 0.75, "uint8": 0.80}
DTYPES: tuple[PixelDtype, ...] = ("float32", "uint8", "bfloat16", "float16")


def images_in_memory(count: int) -> EncodedImages:
    """The first ``count`` sample images in one buffer."""
    blobs = [path.read_bytes() for path in sorted(SAMPLE.glob("*.JPEG"))[:count]]
    sizes = np.array([len(blob) for blob in blobs], dtype=np.int64)
    return EncodedImages(
        data=np.frombuffer(b"".join(blobs), dtype=np.uint8),
        starts=np.cumsum(sizes) - sizes,
        sizes=sizes,
        formats=np.full(len(blobs), ImageFormat.JPEG, dtype=np.uint8),
        ids=np.arange(len(blobs), dtype=np.int64),
    )


def some_of(images: EncodedImages, i: NDArray[np.int64]) -> EncodedImages:
    return EncodedImages(images.data, images.starts[i], images.sizes[i], images.formats[i], images.ids[i])


def decoder(images: EncodedImages, dtype: PixelDtype, order: str, threads: int, batch: int) -> Callable[[int], None]:
    """``f(thread)`` decodes that thread's share of the images, in batches into a buffer of its own."""
    recipe = recipes.train(224, dtype=dtype, order="NHWC" if order == "NHWC" else "NCHW")
    plan = compile_recipe(recipe)
    widths, heights, statuses = read_sizes(images)
    assert not statuses.any()
    crops = plan.crops(widths, heights, seed=0, epoch=0, ids=images.ids)
    layout = plan.layout
    buffers = [np.zeros(layout.batch_shape(batch), dtype=layout.buffer_dtype) for _ in range(threads)]

    def run(thread: int) -> None:
        mine = np.arange(thread, len(images), threads)
        for i in np.split(mine, range(batch, len(mine), batch)):
            few = Crops(crops.left[i], crops.top[i], crops.width[i], crops.height[i], crops.flip[i])
            slots = np.arange(len(i))
            assert not decode_into(some_of(images, i), few, layout, buffers[thread], slots, filter=plan.filter).any()

    return run


def ceiling(images: EncodedImages, threads: int) -> Callable[[int], None]:
    assert native is not None

    def run(thread: int) -> None:
        mine = some_of(images, np.arange(thread, len(images), threads))
        assert not native.entropy_decode(mine.data, mine.starts, mine.sizes).any()

    return run


def seconds(run: Callable[[int], None], threads: int) -> float:
    workers = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernel", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--order", choices=("NCHW", "NHWC"), default="NCHW")
    parser.add_argument("--simd", choices=("best", "avx512", "avx2", "portable"), default="best")
    parser.add_argument("--libjpeg", action="store_true", help="everything through libjpeg-turbo")
    options = parser.parse_args(arguments)
    if native is None:
        parser.error("the native module is not built")
    if warning := busy_warning():
        log(f"warning: {warning}")

    native.set_simd_level(options.simd)
    native.use_fast_path(not options.libjpeg)
    images = images_in_memory(options.images)
    runs = {CEILING: ceiling(images, options.threads)}
    for dtype in DTYPES:
        runs[dtype] = decoder(images, dtype, options.order, options.threads, options.batch)
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(options.rounds + 1):
        for name, run in runs.items():
            rate = len(images) / seconds(run, options.threads)
            if number:  # the first round touches memory for the first time
                rates[name].append(rate)

    rows = []
    for name, values in rates.items():
        ratio = paired(values, rates[CEILING])
        goal = f">= {GOALS[name]:.2f}" if name in GOALS else ""
        rows.append([name, Spread.of(values).text(), "" if name == CEILING else ratio.text(2), goal])
    features = native.native_features()
    note = (
        f"{options.threads} threads, batches of {options.batch}, {features['simd']}, libjpeg-turbo "
        f"{features['libjpeg_turbo']}; {machine()}"
    )
    print_table(
        f"{len(images)} ImageNet JPEGs ({images.sizes.mean() / 1000:.0f} KB), RandomResizedCrop(224), {options.order}",
        ("into", "images/s", "of the ceiling", "goal"),
        rows,
        [note],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
