"""The decoder against Pillow on real photographs: same box, same filter, same pixels within a stated tolerance."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from shardmill.errors import OptionsError
from shardmill.images import decode as decode_module
from shardmill.images.decode import Crops, PixelDtype, PixelLayout, PixelOrder, decode_into, read_sizes
from shardmill.native import native
from shardmill.records import EncodedImages

# Full-resolution decoding differs from Pillow only in rounding (one pass at 6 more bits than Pillow keeps between its
# two): one level at most. With a reduced DCT, pixels differ by more, but their mean stays under one level.
MAX_LEVELS = 1
MEAN_LEVELS = 0.35
MAX_LEVELS_BICUBIC = 32
MAX_LEVELS_REDUCED = 16
MEAN_LEVELS_REDUCED = 1.0
REDUCED_FROM = 8  # times the output

Join = Callable[[list[bytes]], EncodedImages]


def random_boxes(widths: NDArray[Any], heights: NDArray[Any], seed: int) -> list[tuple[float, float, float, float]]:
    """One crop per image as random-resized cropping draws them: 8 % to all of the area, integer or fractional."""
    rng = np.random.default_rng(seed)
    boxes = []
    for i, (width, height) in enumerate(zip(widths.tolist(), heights.tolist(), strict=True)):
        area, ratio = width * height * rng.uniform(0.08, 1), np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        across, down = min(width, (area * ratio) ** 0.5), min(height, (area / ratio) ** 0.5)
        if i % 4:
            across, down = max(1, round(across)), max(1, round(down))
        left, top = rng.uniform(0, width - across), rng.uniform(0, height - down)
        boxes.append((left, top, across, down) if i % 4 == 0 else (int(left), int(top), across, down))
    return boxes


def test_sizes_of_real_images(real_jpegs: list[bytes], join: Join) -> None:
    widths, heights, statuses = read_sizes(join(real_jpegs))
    assert not statuses.any()
    sizes = [Image.open(io.BytesIO(blob)).size for blob in real_jpegs]
    assert list(zip(widths.tolist(), heights.tolist(), strict=True)) == sizes


@pytest.mark.parametrize(
    ("filter", "sizes"), [("bilinear", [224, (96, 160), 288]), ("bicubic", [224]), ("bilinear", [(150, 77)])]
)
def test_real_images_equal_pillow(
    filter: Any,  # noqa: A002
    sizes: list[Any],
    real_jpegs: list[bytes],
    join: Join,
    decode: Callable[..., Any],
    by_pillow: Callable[..., NDArray[np.uint8]],
) -> None:
    widths, heights, _ = read_sizes(join(real_jpegs))
    crops = [random_boxes(widths, heights, seed) for seed in range(len(sizes))]
    flips = [i % 2 == 1 for i in range(len(real_jpegs))]
    batches = []
    for size, boxes in zip(sizes, crops, strict=True):
        pixels, statuses = decode(real_jpegs, boxes, size, flips, filter=filter)
        assert not statuses.any()
        batches.append(pixels)
    worst_mean = worst = 0.0
    for i, blob in enumerate(real_jpegs):
        image = Image.open(io.BytesIO(blob)).convert("RGB")
        for size, boxes, pixels in zip(sizes, crops, batches, strict=True):
            least = size if isinstance(size, int) else max(size)
            if min(boxes[i][2:]) >= REDUCED_FROM * least:
                continue  # decoded at reduced size: the next test
            difference = np.abs(pixels[i].astype(int) - by_pillow(image, boxes[i], size, flips[i], filter))
            worst_mean, worst = max(worst_mean, difference.mean()), max(worst, difference.max())
    print(f"\n{filter}: largest mean absolute difference {worst_mean:.3f}, largest difference {worst:.0f} levels")
    # Bicubic overshoots at edges. Pillow cuts that off between its passes, the kernel only at the end.
    assert worst <= (MAX_LEVELS if filter == "bilinear" else MAX_LEVELS_BICUBIC)
    assert worst_mean <= MEAN_LEVELS


def test_reduced_dct_stays_within_a_level(
    real_jpegs: list[bytes], join: Join, decode: Callable[..., Any], by_pillow: Callable[..., NDArray[np.uint8]]
) -> None:
    widths, heights, _ = read_sizes(join(real_jpegs))
    means, largest = [], 0
    crops = {size: random_boxes(widths, heights, size) for size in (8, 12, 20, 40)}
    batches = {size: decode(real_jpegs, boxes, size)[0] for size, boxes in crops.items()}
    for i, blob in enumerate(real_jpegs):
        image = Image.open(io.BytesIO(blob)).convert("RGB")
        for size, boxes in crops.items():
            if min(boxes[i][2:]) < REDUCED_FROM * size:
                continue
            difference = np.abs(batches[size][i].astype(int) - by_pillow(image, boxes[i], size))
            means.append(difference.mean())
            largest = max(largest, difference.max())
    print(f"\nreduced DCT, {len(means)} crops: mean {np.mean(means):.3f}, worst {max(means):.3f}, pixel {largest}")
    assert len(means) > 500
    assert max(means) < MEAN_LEVELS_REDUCED
    assert largest <= MAX_LEVELS_REDUCED


def test_the_tolerance_rejects_wrong_kernels(
    real_jpegs: list[bytes], join: Join, by_pillow: Callable[..., NDArray[np.uint8]]
) -> None:
    """No antialiasing, a box shifted by one pixel, a missed flip: each must be far outside what the tests accept."""
    widths, heights, _ = read_sizes(join(real_jpegs))
    rejected = {"no antialias": 0, "shifted": 0, "half a pixel": 0, "not flipped": 0}
    some = [i for i in range(500) if min(widths[i], heights[i]) > 200][::8]
    for i in some:
        image = Image.open(io.BytesIO(real_jpegs[i])).convert("RGB")
        box = (5.0, 5.0, float(widths[i] - 10), float(heights[i] - 10))
        right = by_pillow(image, box, 96).astype(int)
        left, top, across, down = box
        affine = (across / 96, 0, left, 0, down / 96, top)
        plain = image.transform((96, 96), Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
        wrong = {
            "no antialias": np.asarray(plain),
            "shifted": by_pillow(image, (left + 1, top, across, down), 96),
            "half a pixel": by_pillow(image, (left + 0.5, top + 0.5, across, down), 96),
            "not flipped": right[:, ::-1],
        }
        for name, pixels in wrong.items():
            difference = np.abs(pixels.astype(int) - right)
            rejected[name] += difference.mean() > MEAN_LEVELS and difference.max() > MAX_LEVELS
    assert all(count >= 0.97 * len(some) for count in rejected.values()), rejected


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("normalise", [True, False])
def test_dtypes_are_the_normalised_8_bit_values(
    dtype: PixelDtype,
    order: PixelOrder,
    normalise: bool,
    simd_level: str,
    decode: Callable[..., Any],
    photo: Callable[..., Image.Image],
    save: Callable[..., bytes],
) -> None:
    blobs = [save(photo(211, 140, seed)) for seed in range(3)]
    boxes = [(0, 0, 211, 140), (10.5, 3.25, 64, 100), (100, 70, 20, 20)]
    flips = [False, True, False]
    mean, std = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)) if normalise else (None, None)
    layout = PixelLayout(51, 77, dtype, order, mean, std)
    pixels, statuses = decode(blobs, boxes, layout=layout, flips=flips)
    assert not statuses.any()
    bytes_, _ = decode(blobs, boxes, (51, 77), flips)
    values = torch.from_numpy(bytes_.astype(np.float32))
    gain, bias = (torch.from_numpy(a) for a in layout.gain_and_bias())
    exact = values * gain + bias
    truth = (values.double() / 255 - torch.tensor(mean or (0,) * 3)) / torch.tensor(std or (1,) * 3)
    assert torch.allclose(exact.double(), truth, rtol=1e-6, atol=1e-6)
    rounded = exact.to(getattr(torch, dtype))
    if order == "NCHW":
        rounded = rounded.permute(0, 3, 1, 2).contiguous()
    expected = rounded.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else rounded.numpy()
    np.testing.assert_array_equal(pixels, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_to_half_precision_is_to_nearest_even(
    dtype: PixelDtype, simd_level: str, decode: Callable[..., Any], save: Callable[..., bytes]
) -> None:
    """Gains that put the 256 values on subnormals, ties and infinity."""
    ramp = save(Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)), quality=100)
    box = (0, 0, 16, 16)
    bytes_, _ = decode([ramp], [box], 16)
    for std in (1.0, 1 / 65536, 7.77, 1e4, 2.0**12, 3e5):
        for mean in (0.0, 0.5, 2.0**-11):
            layout = PixelLayout(16, 16, dtype, "NHWC", (mean,) * 3, (std,) * 3)
            pixels, _ = decode([ramp], [box], layout=layout)
            gain, bias = layout.gain_and_bias()
            exact = torch.from_numpy(bytes_.astype(np.float32) * gain + bias)
            rounded = exact.to(getattr(torch, dtype))
            np.testing.assert_array_equal(pixels.view(np.int16), rounded.view(torch.int16).numpy())


def test_simd_levels_give_equal_bits(
    simd_level: str, real_jpegs: list[bytes], join: Join, decode: Callable[..., Any]
) -> None:
    assert native is not None
    blobs = real_jpegs[::25]
    widths, heights, _ = read_sizes(join(blobs))
    # Outputs from one pixel to larger than the image, so that every window width and remainder of a vector occurs.
    for size in (1, 3, (7, 31), (33, 16), 65, (224, 200), (260, 530)):
        boxes = random_boxes(widths, heights, 5)
        flips = [i % 3 == 0 for i in range(len(blobs))]
        for order in ("NCHW", "NHWC"):
            height, width = (size, size) if isinstance(size, int) else size
            layout = PixelLayout(height, width, "uint8", order)
            filter_ = "bicubic" if size == 65 else "bilinear"
            native.set_simd_level(simd_level)
            pixels, statuses = decode(blobs, boxes, layout=layout, flips=flips, filter=filter_)
            native.set_simd_level("portable")
            plain, _ = decode(blobs, boxes, layout=layout, flips=flips, filter=filter_)
            assert not statuses.any()
            np.testing.assert_array_equal(pixels, plain)


def test_the_fast_path_and_libjpeg_give_equal_bits(
    simd_level: str, real_jpegs: list[bytes], join: Join, decode: Callable[..., Any]
) -> None:
    assert native is not None
    widths, heights, _ = read_sizes(join(real_jpegs))
    boxes = random_boxes(widths, heights, 13)
    fast, statuses = decode(real_jpegs, boxes, 112)
    try:
        native.use_fast_path(False)
        plain, plain_statuses = decode(real_jpegs, boxes, 112)
    finally:
        native.use_fast_path(True)
    assert not statuses.any()
    assert not plain_statuses.any()
    np.testing.assert_array_equal(fast, plain)


def test_the_pillow_twin_gives_the_same_pixels(
    real_jpegs: list[bytes], join: Join, decode: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = real_jpegs[::10]
    sizes = read_sizes(join(blobs))
    boxes = random_boxes(sizes[0], sizes[1], 7)
    flips = [i % 2 == 0 for i in range(len(blobs))]
    normalised = PixelLayout(96, 80, "bfloat16", "NCHW", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    fast = decode(blobs, boxes, (96, 80), flips)[0], decode(blobs, boxes, layout=normalised, flips=flips)[0]
    monkeypatch.setattr(decode_module, "native", None)
    slow = decode(blobs, boxes, (96, 80), flips)[0], decode(blobs, boxes, layout=normalised, flips=flips)[0]
    for mine, theirs in zip(read_sizes(join(blobs)), sizes, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    difference = np.abs(fast[0].astype(int) - slow[0])
    assert difference.max() <= MAX_LEVELS
    # Where the 8-bit values agree, so must every bit after normalisation and rounding.
    same = (difference == 0).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(fast[1][same], slow[1][same])


def test_threads_share_nothing(real_jpegs: list[bytes], join: Join, decode: Callable[..., Any]) -> None:
    blobs = real_jpegs[:96]
    images = join(blobs)
    widths, heights, _ = read_sizes(images)
    boxes = random_boxes(widths, heights, 11)
    alone, _ = decode(blobs, boxes, 64)
    left, top, across, down = np.array(boxes).T.copy()
    flip = np.zeros(len(blobs), dtype=np.bool_)
    out = np.zeros_like(alone)
    layout = PixelLayout(64, 64, "uint8", "NHWC")

    def some(part: int) -> NDArray[np.int32]:
        i = np.arange(part, len(blobs), 6)
        few = EncodedImages(images.data, images.starts[i], images.sizes[i], images.formats[i], images.ids[i])
        return decode_into(few, Crops(left[i], top[i], across[i], down[i], flip[i]), layout, out, i)

    with ThreadPoolExecutor(6) as pool:
        for _ in range(3):
            out[:] = 0
            assert not any(statuses.any() for statuses in pool.map(some, range(6)))
            np.testing.assert_array_equal(out, alone)


def test_only_the_asked_slots_are_written(
    decode: Callable[..., Any], join: Join, crops_of: Any, real_jpegs: Any
) -> None:
    layout = PixelLayout(16, 16, "float32", "NCHW")
    out = np.full(layout.batch_shape(5), -7, dtype=np.float32)
    statuses = decode_into(join(real_jpegs[:2]), crops_of([(0, 0, 90, 90)] * 2), layout, out, np.array([3, 1]))
    assert not statuses.any()
    assert (out[[0, 2, 4]] == -7).all()
    alone, _ = decode(real_jpegs[:2], [(0, 0, 90, 90)] * 2, layout=layout)
    np.testing.assert_array_equal(out[[3, 1]], alone)


def test_arrays_that_do_not_fit_are_refused(join: Join, crops_of: Any, real_jpegs: list[bytes]) -> None:
    images, crops = join(real_jpegs[:2]), crops_of([(0, 0, 90, 90)] * 2)
    layout = PixelLayout(16, 16, "uint8", "NHWC")
    out = np.zeros(layout.batch_shape(2), dtype=np.uint8)
    for bad_out in (out.astype(np.float32), out[:, :8], out[:, :, ::2], np.zeros((2, 3, 16, 16), dtype=np.uint8)):
        with pytest.raises(OptionsError, match="expected C-contiguous uint8"):
            decode_into(images, crops, layout, bad_out, np.arange(2))
    for slots in ([0, 2], [-1, 0]):
        with pytest.raises(OptionsError, match="but out has 2"):
            decode_into(images, crops, layout, out, np.array(slots))
    with pytest.raises(OptionsError, match="2 images, but 1 crops"):
        decode_into(images, crops_of([(0, 0, 90, 90)]), layout, out, np.arange(2))


@pytest.mark.parametrize(
    "arguments",
    [
        {"height": 0},
        {"dtype": "float64"},
        {"order": "CHW"},
        {"mean": (0, 0, 0)},
        {"mean": (0, 0, 0), "std": (1, 1, 1), "dtype": "uint8"},
        {"mean": (0, 0, 0), "std": (1, 0, 1)},
    ],
)
def test_layouts_that_make_no_sense_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(OptionsError):
        PixelLayout(**{"height": 8, "width": 8, **arguments})


def test_nothing_to_decode(decode: Callable[..., Any]) -> None:
    pixels, statuses = decode([], [])
    assert pixels.shape == (0, 32, 32, 3)
    assert statuses.shape == (0,)
