"""Test data: real ImageNet JPEGs repeated under distinct keys, as a folder of classes and packed by shardmill.

Kept in a work directory and used again by the next run of the same size.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import SAMPLE, log


@dataclass(frozen=True, slots=True)
class Data:
    """``folder/<class>/<class>_<copy>.JPEG`` and the same images packed in ``dataset``."""

    folder: Path
    dataset: Path
    scratch: Path
    samples: int

    @property
    def shards(self) -> tuple[str, ...]:
        return tuple(str(path) for path in sorted(self.dataset.glob("*.tar")))


def make_folder(work_dir: Path, *, images: int | None, repeat: int) -> Path:
    """Copies, not links: links would need an eighth of the page cache."""
    if not SAMPLE.is_dir():
        raise SystemExit(f"{SAMPLE} is not there: the benchmarks run on the shared ImageNet sample")
    sources = sorted(SAMPLE.glob("*.JPEG"))[:images]
    folder = work_dir / f"folder-{len(sources)}x{repeat}"
    if folder.exists():
        return folder
    log(f"copying {len(sources)} images {repeat} times to {folder}")
    temporary = folder.with_suffix(".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    for source in sources:
        (temporary / source.stem).mkdir(parents=True)
        for copy in range(repeat):
            shutil.copyfile(source, temporary / source.stem / f"{source.stem}_{copy}.JPEG")
    temporary.rename(folder)
    return folder


def pack(folder: Path, dataset: Path, *, shard_samples: int) -> Path:
    """Packs ``folder`` once; a half-made dataset has no manifest and is made again."""
    import shardmill as sm

    if not (dataset / "shardmill.json").exists():
        log(f"packing {dataset}")
        shutil.rmtree(dataset, ignore_errors=True)
        dataset.parent.mkdir(parents=True, exist_ok=True)
        sm.pack(str(folder), str(dataset), shard_samples=shard_samples, progress=False)
    return dataset


def make(work_dir: Path, *, images: int | None, repeat: int, shards: int) -> Data:
    """The sample (or its first ``images``) ``repeat`` times; ``shards`` tars."""
    work_dir.mkdir(parents=True, exist_ok=True)
    folder = make_folder(work_dir, images=images, repeat=repeat)
    samples = sum(1 for _ in folder.glob("*/*.JPEG"))
    name = folder.name.removeprefix("folder-")
    dataset = pack(folder, work_dir / f"packed-{name}-{shards}", shard_samples=-(-samples // shards))
    scratch = work_dir / f"peers-{name}"
    scratch.mkdir(exist_ok=True)
    return Data(folder, dataset, scratch, samples)
