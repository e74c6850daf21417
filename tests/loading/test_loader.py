from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from shardmill.errors import ChecksumError, ImageError, OptionsError
from shardmill.images import recipes
from shardmill.images.recipe import HorizontalFlip, RandomResizedCrop, Recipe, Resize
from shardmill.loading.loader import Loader
from shardmill.loading.options import Tuning
from shardmill.machine import usable_cores

SMALL = Recipe((RandomResizedCrop((8, 8)), HorizontalFlip()), dtype="uint8")
Make = Callable[[list[int]], Any]


def loader(reader: Any, batch_size: int = 8, **options: Any) -> Loader:
    options = {"recipe": SMALL, "framework": "numpy", "threads": 2, "window": 20, **options}
    return Loader(reader, batch_size, **options)


def ids_of(batches: Any) -> list[list[int]]:
    return [batch.ids.tolist() for batch in batches]


def gray_of(row: int) -> int:
    return 20 + row * 7 % 220


def test_every_sample_once_with_its_label_and_its_pixels(make_reader: Make) -> None:
    reader = make_reader([30, 0, 41, 29])
    seen = []
    for batch in loader(reader):
        images, labels = batch
        assert images.shape == (len(batch), 3, 8, 8)
        assert images.dtype == np.uint8
        assert labels.dtype == np.int64
        assert batch.valid is None
        for image, label, row in zip(images, labels, batch.ids.tolist(), strict=True):
            assert label == row % 10
            assert np.abs(image.astype(int) - gray_of(row)).max() <= 3
            seen.append(row)
    assert sorted(seen) == list(range(100))
    assert seen != sorted(seen)
    assert sorted(reader.reads) == list(range(100))


def test_the_form_of_a_batch_follows_the_recipe(make_reader: Make) -> None:
    reader = make_reader([16])
    forms: list[tuple[Any, Any]] = [
        (recipes.train(16), (torch.float32, (8, 3, 16, 16))),
        (recipes.train((16, 24), dtype="bfloat16", order="NHWC"), (torch.bfloat16, (8, 16, 24, 3))),
        (recipes.eval(16, resize=18, dtype="float16"), (torch.float16, (8, 3, 16, 16))),
        (Recipe((Resize((5, 6)),), dtype="uint8"), (torch.uint8, (8, 3, 5, 6))),
    ]
    for recipe, (dtype, shape) in forms:
        batch = next(iter(loader(reader, recipe=recipe, framework="torch")))
        assert (batch.images.dtype, tuple(batch.images.shape)) == (dtype, shape)
        assert (batch.labels.dtype, batch.ids.dtype) == (torch.int64, torch.int64)


def test_bfloat16_holds_the_float32_pixels(make_reader: Make) -> None:
    reader = make_reader([8])
    full = next(iter(loader(reader, recipe=recipes.eval(16, resize=18), framework="torch")))
    half = next(iter(loader(reader, recipe=recipes.eval(16, resize=18, dtype="bfloat16"), framework="torch")))
    assert torch.equal(half.images, full.images.to(torch.bfloat16))
    bits = next(iter(loader(reader, recipe=recipes.eval(16, resize=18, dtype="bfloat16"))))
    assert bits.images.dtype == np.uint16


def test_torch_is_the_default_where_it_is_installed(make_reader: Make) -> None:
    batch = next(iter(Loader(make_reader([8]), 4, recipe=SMALL)))
    assert isinstance(batch.images, torch.Tensor)


def test_pixels_and_order_do_not_depend_on_threads_chunks_or_prefetch(make_reader: Make) -> None:
    reader = make_reader([50, 50])
    expected = [(b.ids.tolist(), b.images.copy()) for b in loader(reader, threads=1)]
    for threads, chunk, prefetch in [(1, 1, 1), (4, 3, 4), (3, 100, 2)]:
        tuning = Tuning(decode_samples=chunk, read_samples=chunk + 2, prefetch=prefetch, read_threads=threads)
        got = [(b.ids.tolist(), b.images.copy()) for b in loader(reader, threads=threads, tuning=tuning)]
        assert [ids for ids, _ in got] == [ids for ids, _ in expected]
        assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(got, expected, strict=True))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("window", [20, "all"])
@pytest.mark.parametrize("last", ["keep", "drop", "pad"])
def test_the_steps_are_the_same_for_every_world_size(make_reader: Make, last: Any, window: Any, shuffle: bool) -> None:
    reader = make_reader([30, 1, 40, 28])
    pixels: dict[int, bytes] = {}
    expected: list[set[int]] | None = None
    for world in (1, 2, 4, 8):
        loaders = [
            loader(reader, 16 // world, rank=rank, world_size=world, last=last, window=window, shuffle=shuffle)
            for rank in range(world)
        ]
        steps: list[set[int]] = []
        for parts in zip(*loaders, strict=True):
            rows: list[int] = []
            for part in parts:
                for row, image in zip(part.ids.tolist(), part.images, strict=True):
                    if row >= 0:
                        rows.append(row)
                        assert pixels.setdefault(row, image.tobytes()) == image.tobytes()
            assert len(rows) == len(set(rows))
            steps.append(set(rows))
        assert {len(one) for one in loaders} == {len(steps)}
        expected = expected or steps
        assert steps == expected
    assert expected is not None
    assert sum(map(len, expected)) == (96 if last == "drop" else 99)


def test_padding_is_marked_and_empty(make_reader: Make) -> None:
    *full, last = list(loader(make_reader([21]), last="pad"))
    assert all(batch.valid.all() for batch in full)
    assert last.images.shape == (8, 3, 8, 8)
    assert last.valid.tolist() == [True] * 5 + [False] * 3
    assert not last.images[5:].any()
    assert last.ids[5:].tolist() == last.labels[5:].tolist() == [-1, -1, -1]


def test_epochs_follow_each_other_and_can_be_chosen(make_reader: Make) -> None:
    one = loader(make_reader([40]))
    epochs = [ids_of(one) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    one.set_epoch(1)
    assert ids_of(one) == epochs[1]
    assert one.epoch == 2
    # An epoch left early is over.
    next(iter(one))
    assert one.epoch == 2
    assert ids_of(one) != epochs[2]
    assert one.epoch == 4
    other = loader(make_reader([40]))
    other.set_epoch(2)
    assert ids_of(other) == epochs[2]
    assert ids_of(loader(make_reader([40]), seed=1)) != epochs[0]


def test_resume_in_the_usual_loop_and_in_another_world(make_reader: Make) -> None:
    reader = make_reader([50, 47])
    first = [loader(reader, 8, rank=r, world_size=2) for r in range(2)]
    whole = [set(itertools.chain(*ids)) for ids in zip(*(ids_of(one) for one in first), strict=True)]
    running = [iter(one) for one in first]
    first_epoch = first[0].epoch
    for one in first:
        one.set_epoch(0)
    running = [iter(one) for one in first]
    for _ in range(2):
        for it in running:
            next(it)
    state = first[0].state_dict()
    assert first[1].state_dict() == state
    rest = []
    for rank in range(4):
        resumed = loader(reader, 4, rank=rank, world_size=4)
        resumed.load_state_dict(state)
        resumed.set_epoch(resumed.epoch)
        rest.append(ids_of(resumed))
    assert [set(itertools.chain(*ids)) for ids in zip(*rest, strict=True)] == whole[2:]
    assert first_epoch == 1
    for one in first:
        one.close()


def test_sizes_that_the_index_does_not_know_give_the_same_pixels(make_reader: Make) -> None:
    reader = make_reader([30])
    expected = [batch.images.copy() for batch in loader(reader)]
    blind = replace(reader, widths=np.zeros(30, np.uint16), heights=np.zeros(30, np.uint16))
    assert all(np.array_equal(a.images, b) for a, b in zip(loader(blind), expected, strict=True))
    exif = Recipe(SMALL.ops, dtype="uint8", apply_exif=True)
    assert all(np.array_equal(a.images, b) for a, b in zip(loader(reader, recipe=exif), expected, strict=True))


@pytest.mark.parametrize("known_sizes", [True, False])
def test_a_bad_image_is_an_error_with_shard_key_and_offset(make_reader: Make, known_sizes: bool) -> None:
    reader = make_reader([30, 30])
    if not known_sizes:
        reader.widths[:] = 0
    reader.images[41] = reader.images[41][:60]
    with pytest.raises(ImageError) as caught:
        ids_of(loader(reader))
    error = caught.value
    assert (error.path, error.key, error.offset) == ("memory-000001.tar", "key41", 512 + 1024 * 41)
    step = next(i for i, ids in enumerate(ids_of(loader(make_reader([30, 30])))) if 41 in ids)
    assert error.__notes__ == [f"while in stage 'decode' of shardmill epoch 0, step {step}"]


def test_a_wrong_checksum_is_an_error(make_reader: Make) -> None:
    with pytest.raises(ChecksumError, match="key7") as caught:
        ids_of(loader(replace(make_reader([30]), bad_bytes=frozenset({7}))))
    assert "stage 'read'" in caught.value.__notes__[0]


@pytest.mark.parametrize("known_sizes", [True, False])
def test_skip_leaves_out_exactly_the_bad_ones_and_names_them(make_reader: Make, known_sizes: bool) -> None:
    good = make_reader([30, 30])
    expected = [(b.ids.tolist(), b.labels.tolist(), b.images.copy()) for b in loader(good)]
    reader = replace(make_reader([30, 30]), bad_bytes=frozenset({3, 17}))
    reader.images[41] = reader.images[41][:60]
    reader.images[5] = b"not an image"
    if not known_sizes:
        reader.widths[:] = 0
    skipping = loader(reader, on_error="skip")
    bad = {3, 5, 17, 41}
    for batch, (ids, labels, images) in zip(skipping, expected, strict=True):
        keep = [i for i, row in enumerate(ids) if row not in bad]
        assert batch.ids.tolist() == [ids[i] for i in keep]
        assert batch.labels.tolist() == [labels[i] for i in keep]
        assert np.array_equal(batch.images, images[keep])
    assert {(skip.id, skip.error.key) for skip in skipping.skipped} == {(i, f"key{i}") for i in bad}
    assert (skipping.stats().skipped, skipping.stats().images) == (4, 56)


def test_skip_with_padding_keeps_the_shape(make_reader: Make) -> None:
    reader = replace(make_reader([24]), bad_bytes=frozenset({9}))
    batches = list(loader(reader, on_error="skip", last="pad"))
    assert [len(batch.images) for batch in batches] == [8, 8, 8]
    (hole,) = [batch for batch in batches if not batch.valid.all()]
    slot = int(np.flatnonzero(~hole.valid)[0])
    assert (hole.ids[slot], hole.labels[slot], hole.images[slot].any()) == (-1, -1, False)


def test_buffers_come_back_and_kept_batches_stay_as_they_are(make_reader: Make) -> None:
    reader = make_reader([160])
    one = loader(reader, tuning=Tuning(prefetch=1, decode_samples=4), threads=1)
    for _ in range(3):
        for batch in one:
            del batch
    assert one.stats().batch_buffers <= one._in_flight + 2
    kept = list(one)
    for batch in kept:
        for image, row in zip(batch.images, batch.ids.tolist(), strict=True):
            assert np.abs(image.astype(int) - gray_of(row)).max() <= 3


def test_a_batch_outlives_its_loader(make_reader: Make) -> None:
    batch = next(iter(loader(make_reader([16]), framework="torch")))
    gc.collect()
    rows = [gray_of(row) for row in batch.ids.tolist()]
    assert (batch.images.float().mean(dim=(1, 2, 3)) - torch.tensor(rows)).abs().max() <= 3


def test_a_new_iteration_ends_the_old_one(make_reader: Make) -> None:
    one = loader(make_reader([80]))
    old = iter(one)
    next(old)
    new = iter(one)
    assert list(old) == []
    next(new)
    one.close()
    assert list(new) == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shardmill")]


def test_dropping_the_loader_ends_its_threads(make_reader: Make) -> None:
    it = iter(loader(make_reader([80])))
    next(it)
    del it
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("shardmill"):
            thread.join(30)
            assert not thread.is_alive()


def test_stats_count_what_happened(make_reader: Make) -> None:
    one = loader(make_reader([40]))
    it = iter(one)
    next(it)
    assert (one.stats().steps, one.stats().images) == (1, 8)
    list(it)
    list(one)
    stats = one.stats()
    assert (stats.steps, stats.images, stats.skipped) == (10, 80, 0)
    assert stats.read_seconds > 0
    assert stats.decode_seconds > 0


def test_a_missing_compiled_decoder_is_told(make_reader: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardmill.loading.loader.native", None)
    with pytest.warns(UserWarning, match="the compiled decoder is missing: Pillow decodes"):
        loader(make_reader([4]))


def test_usable_cores() -> None:
    assert usable_cores() >= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"seed": -1}, "seed must be an integer within"),
        ({"seed": 1.5}, "seed must be an integer within"),
        ({"threads": 0}, "threads must be"),
        ({"on_error": "ignore"}, 'on_error must be "raise" or "skip", got \'ignore\''),
        ({"rank": 1}, "give both rank and world_size"),
        ({"rank": 2, "world_size": 2}, "rank must be within"),
        ({"rank": 0, "world_size": 3, "lanes": 8}, "pass lanes=3 or 6 or 12 or 24"),
        ({"framework": "jax"}, 'framework must be "torch" or "numpy"'),
        ({"device": "cuda"}, "device='cuda' needs framework=\"torch\""),
        ({"device": "warp", "framework": "torch"}, "is not a torch device"),
        ({"recipe": Recipe(())}, "an empty recipe"),
        ({"batch_size": 64, "last": "drop"}, "leaves no step"),
    ],
)
def test_options_that_make_no_sense(make_reader: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        loader(make_reader([16]), **options)


def test_tuning_and_empty_datasets(make_reader: Make) -> None:
    for knob in ({"prefetch": 0}, {"decode_samples": 0}, {"read_threads": 0}, {"wait_seconds": 0}):
        with pytest.raises(OptionsError, match=next(iter(knob))):
            Tuning(**knob)  # type: ignore[arg-type]
    with pytest.raises(OptionsError, match="no samples"):
        loader(make_reader([]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_device_that_is_not_there_is_said(make_reader: Make) -> None:
    with pytest.raises(OptionsError, match="torch sees no CUDA device"):
        loader(make_reader([16]), framework="torch", device="cuda")


def test_a_loader_made_before_the_process_group_is_refused(make_reader: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    early, given = loader(make_reader([16])), loader(make_reader([16]), rank=0, world_size=1)
    monkeypatch.setattr("shardmill.loading.torch.distributed_place", lambda: (1, 4))
    # It would show the whole dataset to each of the four.
    with pytest.raises(OptionsError, match=r"was made as rank 0 of 1, .* initialised as rank 1 of 4"):
        iter(early)
    assert len(ids_of(given)) == 2
    late = loader(make_reader([16]))
    assert (late.rank, late.world_size) == (1, 4)
    monkeypatch.setattr("shardmill.loading.torch.distributed_place", lambda: None)
    # After the group has been destroyed its loaders still have their share.
    assert len(ids_of(late)) == 1
