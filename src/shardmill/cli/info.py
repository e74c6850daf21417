"""``shardmill info``: what a dataset holds."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer

from shardmill.cli.show import as_json, console, facts, format_name, literal, size, table
from shardmill.shards.dataset import Dataset
from shardmill.shards.open import open_dataset

HELP = "Show what a dataset holds: samples, shards, classes, formats, sizes."
EXAMPLE = "Example: [bold]shardmill info /data/imagenet-shards[/]"

# Statistics look at this many rows at most, evenly spread: a dataset of 1e9 rows answers as quickly as a small one.
_MAX_ROWS = 2_000_000


def run(
    dataset: Annotated[str, typer.Argument(help="A packed dataset, or tars of others.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """See `HELP`."""
    opened = open_dataset(dataset)
    found = describe(opened)
    if json:
        as_json(found)
        return
    shuffle = found["shuffle"]
    console.print(literal(opened.path, "bold"), soft_wrap=True)
    console.print(
        facts(
            [
                ("samples", f"{found['samples']:,}"),
                (
                    "shards",
                    f"{found['shards']:,}, {size(found['bytes'])} in all, {size(found['mean_shard_bytes'])} each",
                ),
                ("classes", f"{found['classes']:,} (from {found['label_source']})" if found["classes"] else "none"),
                ("shuffle", f"global, seed {shuffle['seed']}" if shuffle else "the source's own order"),
                (
                    "checksums",
                    "crc32c per sample, sha256 per shard" if found["checksums"] else "none: run shardmill index",
                ),
                ("images", _images(found)),
                ("encode", "original bytes" if found["encode"] is None else str(found["encode"])),
                ("written by", found["created_by"]),
            ]
        )
    )
    if found["per_label"]:
        shown = table("label", "class", ">samples", title="Largest and smallest classes")
        for label, name, count in found["per_label"]:
            shown.add_row(str(label), literal(name or ""), f"{count:,}")
        console.print(shown)


def describe(dataset: Dataset) -> dict[str, Any]:
    """Everything that ``info`` prints, as JSON types. Formats, sizes and classes are of at most 2 M rows."""
    step = -(-len(dataset) // _MAX_ROWS)
    columns = {name: dataset.index.columns[name][::step] for name in ("image_format", "image_bytes", "width", "height")}
    formats = np.bincount(columns["image_format"], minlength=1)
    labels = np.asarray(dataset.labels[::step])
    # Not bincount: one label of 2**31 - 1 would cost it 16 GiB.
    present, counts = np.unique(labels[labels >= 0], return_counts=True)
    ranked = np.argsort(-counts, kind="stable")
    shown = ranked if len(ranked) <= 6 else np.concatenate([ranked[:3], ranked[-3:]])
    names = dataset.classes or ()
    return {
        "path": dataset.path,
        "samples": len(dataset),
        "shards": dataset.manifest.shards,
        "bytes": dataset.manifest.total_bytes,
        "mean_shard_bytes": dataset.manifest.total_bytes // max(1, dataset.manifest.shards),
        "classes": len(names) or len(present),
        "label_source": dataset.manifest.label_source,
        "shuffle": dataset.manifest.shuffle,
        "checksums": dataset.manifest.checksums,
        "encode": dataset.manifest.encode,
        "created_by": dataset.manifest.created_by,
        "digest": dataset.digest,
        "rows_examined": len(labels),
        "formats": {format_name(i): int(n) for i, n in enumerate(formats) if n},
        "median_width": int(np.median(columns["width"])),
        "median_height": int(np.median(columns["height"])),
        "median_image_bytes": int(np.median(columns["image_bytes"])),
        "per_label": [
            (k, names[k] if k < len(names) else None, count * step)
            for k, count in zip(present[shown].tolist(), counts[shown].tolist(), strict=True)
        ],
    }


def _images(found: dict[str, Any]) -> str:
    kinds = ", ".join(f"{count:,} {name}" for name, count in found["formats"].items())
    return f"{kinds}; median {found['median_width']} x {found['median_height']}, {size(found['median_image_bytes'])}"
