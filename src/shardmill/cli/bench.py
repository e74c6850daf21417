"""``shardmill bench``: how fast a dataset feeds, and where the time goes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from shardmill.cli.show import as_json, console, facts, size, table
from shardmill.errors import OptionsError
from shardmill.images import recipes
from shardmill.images.cost import time_ops
from shardmill.images.pixels import PixelDtype
from shardmill.images.recipe import Recipe, Views, read_recipe
from shardmill.loading.loader import Loader, LoaderStats
from shardmill.shards.open import open_dataset

HELP = "Measure images/s of a dataset with a recipe, and how the time splits between reading, decoding and waiting."
EXAMPLE = "Example: [bold]shardmill bench /data/imagenet-shards --dtype uint8 --images 20000[/]"


_COST_IMAGES = 256


def run(
    dataset: Annotated[str, typer.Argument(help="A packed dataset, or tars of others.")],
    recipe: Annotated[str, typer.Option(help="train, eval, or a JSON file that Recipe.to_json wrote.")] = "train",
    pixels: Annotated[int, typer.Option("--size", help="Side of the images, pixels.", min=1)] = 224,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16", "uint8"], typer.Option(help="Of the batch.")
    ] = "float32",
    batch_size: Annotated[int, typer.Option(min=1)] = 256,
    threads: Annotated[int | None, typer.Option(help="That decode; default: one per usable core.", min=1)] = None,
    images: Annotated[int, typer.Option(help="Measure this many; epochs repeat as needed.", min=1)] = 5000,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """See `HELP`."""
    started = time.perf_counter()
    opened = open_dataset(dataset)
    chosen = _recipe(recipe, pixels, dtype)
    loader = Loader(opened, batch_size, recipe=chosen, threads=threads, shuffle=recipe != "eval")
    result = measure(loader, images, started=started)
    sample = np.linspace(0, len(opened) - 1, min(len(opened), _COST_IMAGES)).astype(np.int64)
    costs = time_ops(chosen, opened.read(sample))
    result["microseconds"] = {cost.name: cost.microseconds for cost in costs}
    if json:
        as_json(result)
        return
    share = result["share"]
    console.print(
        f"[bold]{result['images_per_second']:,.0f} images/s[/]  "
        f"{_title(recipe, pixels, dtype)}, {loader.threads} threads"
    )
    console.print(
        facts(
            [
                ("read", f"{size(result['bytes_per_second'])}/s, {share['read']:.0%} of the time a thread reads"),
                ("decode", f"{share['decode']:.0%} of the decoding threads' time"),
                ("hand over", f"{share['hand_over']:.1%} of the consumer's time"),
                ("waiting", f"{share['wait']:.0%} of the consumer's time was spent waiting for a batch"),
                ("first batch", f"{result['first_batch_seconds']:.2f} s after the dataset was opened"),
                ("measured", f"{result['images']:,} images in {result['seconds']:.1f} s, after the first batch"),
            ]
        )
    )
    shown = table("step of the recipe", ">us an image", title="What each step costs one thread")
    for cost in costs:
        shown.add_row(cost.name, f"{cost.microseconds:,.1f}")
    console.print(shown)
    if result["skipped"]:
        console.print(f"[yellow]{result['skipped']} images were skipped[/]")


def _recipe(name: str, pixels: int, dtype: PixelDtype) -> Recipe | Views:
    if name in ("train", "eval"):
        return recipes.train(pixels, dtype=dtype) if name == "train" else recipes.eval(pixels, dtype=dtype)
    if not name.endswith(".json"):
        raise OptionsError(f"--recipe is {name!r}: it must be train, eval, or the name of a .json file")
    return read_recipe(Path(name).read_bytes())


def _title(recipe: str, pixels: int, dtype: str) -> str:
    return recipe if recipe.endswith(".json") else f"{recipe}({pixels}) {dtype}"


def measure(loader: Loader, images: int, *, started: float) -> dict[str, Any]:
    """Runs ``loader`` for at least ``images`` images after its first batch. Shares are of the measured time.

    ``started``: `time.perf_counter` before the dataset was opened.
    """
    first = begun = 0.0
    seen = encoded = 0
    before = LoaderStats()
    sizes = loader.dataset.image_bytes
    while seen < images:
        steps = 0
        for batch in loader:
            steps += 1
            if not begun:
                begun = time.perf_counter()
                first = begun - started
                before = loader.stats()
                continue
            seen += len(batch)
            encoded += int(sizes[batch.ids.numpy() if hasattr(batch.ids, "numpy") else batch.ids].sum())
            if seen >= images:
                break
        if steps < 2 and seen == 0 and len(loader) < 2:
            raise OptionsError(
                f"the dataset gives {len(loader)} batch of {loader.batch_size} an epoch: use a smaller --batch-size"
            )
    seconds = time.perf_counter() - begun
    after = loader.stats()
    loader.close()
    return {
        "images": seen,
        "seconds": seconds,
        "images_per_second": seen / seconds,
        "bytes_per_second": encoded / seconds,
        "first_batch_seconds": first,
        "threads": loader.threads,
        "skipped": after.skipped - before.skipped,
        "share": {
            "read": (after.read_seconds - before.read_seconds) / seconds,
            "decode": (after.decode_seconds - before.decode_seconds) / seconds / loader.threads,
            "hand_over": (after.hand_over_seconds - before.hand_over_seconds) / seconds,
            "wait": (after.wait_seconds - before.wait_seconds) / seconds,
        },
    }
