"""Re-encoding while packing, against Pillow."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shardmill.errors import ImageError, OptionsError
from shardmill.imageinfo import probe
from shardmill.images.encode import Encode
from shardmill.records import ImageFormat, Sample
from shardmill.shards.open import open_dataset
from shardmill.shards.packing import pack
from shardmill.sources.iterable import IterableSource


def encoded(encode: Encode, data: bytes) -> Image.Image:
    result = encode(data, probe(data))
    assert result is not None
    return Image.open(io.BytesIO(result))


def file(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def test_shorter_side_and_pixels_are_pillows(imagenet_sample: Path) -> None:
    encode = Encode(resize=160, quality=95)
    for path in sorted(imagenet_sample.glob("*.JPEG"))[:12]:
        data = path.read_bytes()
        with encoded(encode, data) as small, Image.open(path) as whole:
            assert min(small.size) == 160
            assert abs(small.width / small.height - whole.width / whole.height) < 0.02
            grey = np.asarray(small.convert("L"), np.int16)
            expected = np.asarray(whole.convert("RGB").resize(small.size, Image.Resampling.BICUBIC).convert("L"))
            aliased = np.asarray(whole.convert("RGB").resize(small.size, Image.Resampling.NEAREST).convert("L"))
        # In brightness: the file keeps half the colour resolution. The bound refuses a resize without antialiasing.
        assert np.abs(grey - expected).mean() < 0.5 * np.abs(aliased.astype(np.int16) - expected).mean()


def test_small_enough_keeps_its_bytes() -> None:
    data = file(Image.new("RGB", (100, 80), "red"), "JPEG")
    assert Encode(resize=80)(data, probe(data)) is None
    assert Encode()(data, probe(data)) is None
    with encoded(Encode(resize=79), data) as image:
        assert image.size == (99, 79)
    with encoded(Encode(resize=500), file(Image.new("RGB", (100, 80), "red"), "PNG")) as image:
        assert (image.format, image.size) == ("JPEG", (100, 80))


def test_modes() -> None:
    encode = Encode(resize=8)
    cases = {
        "CMYK": file(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "JPEG"),
        "P": file(Image.new("P", (16, 16)), "PNG"),
        "RGBA": file(Image.new("RGBA", (16, 16), (0, 0, 0, 0)), "PNG"),
        "1": file(Image.new("1", (16, 16), 1), "PNG"),
        "I;16": file(Image.fromarray(np.full((16, 16), 65535 // 2, np.uint16)), "PNG"),
    }
    found = {}
    for name, data in cases.items():
        with encoded(encode, data) as image:
            found[name] = (image.mode, np.asarray(image).reshape(-1, len(image.getbands())).mean(0).round().tolist())
    assert found["CMYK"][0] == "RGB"
    assert np.abs(np.array(found["CMYK"][1]) - [0, 255, 255]).max() < 4
    assert found["P"] == ("RGB", [0, 0, 0])
    assert found["RGBA"] == ("RGB", [255, 255, 255])
    assert found["1"] == ("L", [255])
    assert found["I;16"] == ("L", [127])


def test_rotation_moves_into_the_pixels() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    with encoded(Encode(resize=10), file(Image.new("RGB", (40, 20)), "JPEG", exif=exif)) as image:
        assert image.size == (10, 20)
        assert not image.getexif()


def test_same_bytes_every_time() -> None:
    data = file(Image.effect_noise((300, 200), 60).convert("RGB"), "PNG")
    for encode in (Encode(100), Encode(100, 80, "webp"), Encode(100, format="png")):
        assert encode(data, probe(data)) == pickle.loads(pickle.dumps(encode))(data, probe(data))


def test_damaged_images_are_errors() -> None:
    data = file(Image.effect_noise((300, 200), 60), "JPEG")
    with pytest.raises(ImageError, match="cannot be decoded"):
        Encode(10)(data[: len(data) // 3], probe(data))
    with pytest.raises(ImageError):
        Encode(10)(b"not an image", probe(b"not an image"))


def test_parse() -> None:
    assert Encode.parse("resize=512, quality=85,format=webp") == Encode(512, 85, "webp")
    assert Encode.parse("resize=256") == Encode(256)
    for text in ("", "resize", "resize=x", "size=3", "resize=1,resize=2", "quality=0", "quality=101", "format=bmp"):
        with pytest.raises(OptionsError):
            Encode.parse(text)


def test_packing_re_encodes_and_says_so(tmp_path: Path) -> None:
    noise = Image.effect_noise((64, 48), 60)
    samples = [
        Sample("a", {"png": file(noise, "PNG"), "txt": b"noise"}, label=1),
        Sample("b", {"jpg": file(noise.resize((20, 20)), "JPEG")}, label=0),
    ]
    for workers in (1, 2):
        pack(
            IterableSource(samples),
            tmp_path / str(workers),
            encode=Encode(24),
            workers=workers,
            progress=False,
        )
    dataset = open_dataset(tmp_path / "1")
    by_key = {key: dataset[i] for i, key in enumerate(dataset.keys)}
    assert list(by_key["a"].fields) == ["jpg", "txt", "cls"]
    assert probe(by_key["a"].fields["jpg"]).format is ImageFormat.JPEG
    with Image.open(io.BytesIO(by_key["a"].fields["jpg"])) as image:
        assert image.size == (32, 24)
    assert by_key["b"].fields["jpg"] == samples[1].fields["jpg"]
    for path in (tmp_path / "1").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "2" / path.relative_to(tmp_path / "1")).read_bytes()


def test_two_images_that_would_become_one_are_refused(tmp_path: Path) -> None:
    from shardmill.errors import SourceError

    data = file(Image.new("RGB", (9, 9)), "PNG")
    with pytest.raises(SourceError, match="would make them one"):
        pack(
            IterableSource([Sample("a", {"png": data, "jpg": data})]),
            tmp_path / "out",
            encode=Encode(4),
            workers=1,
            progress=False,
        )
