"""What ``shardmill demo`` does, step by step, with nothing but public names."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image, ImageStat
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from shardmill.demo import comparison, generator, screen
from shardmill.demo.training import Epoch, train
from shardmill.errors import OptionsError, ShardmillError

VALIDATION_SHARE = 6
"""One picture in so many is kept for validation."""

_CROP = 64
_PICTURE_BYTES = 95_000  # a generous mean, to ask for disk space before it runs out
_FIRST_VALIDATION_NUMBER = 1_000_000  # no training picture has this number, so none is drawn twice


@dataclass(frozen=True, slots=True)
class Tour:
    """What a run measured.

    ``seconds``: step -> wall time. ``epochs``: empty without torch. ``rates``: images/s at 224 pixels, shardmill
    first; torchvision's is absent where it is not installed.
    """

    folder: Path
    kept: bool
    seconds: dict[str, float]
    epochs: tuple[Epoch, ...]
    rates: tuple[comparison.Rates, ...]

    @property
    def accuracy(self) -> float | None:
        """Validation accuracy after the last epoch, 0..1; None without torch."""
        return self.epochs[-1].accuracy if self.epochs else None


def run(
    folder: Path | None = None,
    *,
    images: int = 4000,
    epochs: int = 8,
    rounds: int = 3,
    keep: bool = False,
    seed: int = 0,
    console: Console | None = None,
) -> Tour:
    """Draw, pack, verify, load, train and race, telling the story on ``console``.

    ``folder``: where to work; it must be new or empty, and everything stays there. Without it a temporary folder is
    used and removed at the end, also after an error or Ctrl-C, unless ``keep``. Needs about 200 KB of disk an image.
    ``rounds``: of the race; its median is shown. Without torch the training is left out, without torchvision the race.
    """
    if images < 4 * len(generator.SCENES):
        raise OptionsError(f"images is {images}: the demo needs at least {4 * len(generator.SCENES)}, four a class")
    if epochs < 1 or rounds < 1:
        raise OptionsError(f"epochs and rounds must be at least 1, got {epochs} and {rounds}")
    console = console or Console(highlight=False)
    with _workplace(folder, keep=keep) as place:
        _ask_for_space(place, images)
        return _Steps(console, place, images, seed, folder is not None or keep).all(epochs, rounds)


@contextmanager
def _workplace(folder: Path | None, *, keep: bool) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise OptionsError(f"{folder} is not empty: name a new folder for the demo")
        yield folder
    elif keep:
        yield Path(tempfile.mkdtemp(prefix="shardmill-demo-"))
    else:
        with tempfile.TemporaryDirectory(prefix="shardmill-demo-") as name:
            yield Path(name)


def _ask_for_space(place: Path, images: int) -> None:
    need, free = 2 * images * _PICTURE_BYTES, shutil.disk_usage(place).free
    if free < need:
        raise OptionsError(
            f"{place} has {free / 1e6:,.0f} MB free and the demo needs {need / 1e6:,.0f} MB: "
            "name another folder (--folder) or draw fewer images (--images)"
        )


def _type(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


class _Steps:
    """The steps in order; each prints its heading, does its work, and prints what came of it."""

    def __init__(self, console: Console, place: Path, images: int, seed: int, kept: bool) -> None:
        self.console, self.place, self.seed, self.kept = console, place, seed, kept
        held_out = max(len(generator.SCENES), images // VALIDATION_SHARE)
        self.plans = {
            "train": generator.plan(images - held_out, seed=seed),
            "val": generator.plan(held_out, seed=seed, first=_FIRST_VALIDATION_NUMBER),
        }
        self.images = images
        self.seconds: dict[str, float] = {}
        self.step = 0

    def all(self, epochs: int, rounds: int) -> Tour:
        begin = time.perf_counter()
        self.console.print(screen.welcome(self.images))
        self.draw()
        self.pack()
        self.verify()
        self.open()
        passes = self.train(epochs)
        rates = self.race(rounds)
        self.seconds["all"] = time.perf_counter() - begin
        self.farewell(passes, rates)
        return Tour(self.place, self.kept, self.seconds, tuple(passes), tuple(rates))

    @contextmanager
    def timed(self, name: str, title: str, what: str) -> Iterator[None]:
        self.step += 1
        self.console.print()
        self.console.print(screen.heading(self.step, title, what))
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start

    def say(self, step: str, text: str) -> None:
        self.console.print(screen.done(text, self.seconds[step]))

    def pictures(self, split: str) -> Path:
        return self.place / "pictures" / split

    def packed(self, split: str) -> Path:
        return self.place / split

    def draw(self) -> None:
        total = 0
        with self.timed("draw", "Draw", "photo-like JPEGs, a folder for each of ten classes"):
            if screen.has_colours(self.console):
                self.console.print(screen.gallery(self.showpieces(), self.console))
            with screen.progress(self.console) as bar:
                task = bar.add_task("drawing", total=self.images)
                for split, plan in self.plans.items():
                    for batch in generator.write(plan, self.pictures(split)):
                        total += batch.size
                        bar.advance(task, batch.pictures)
        mean = total / self.images
        self.say(
            "draw", f"{self.images:,} pictures, {total / 1e6:,.0f} MB, {mean / 1e3:.0f} kB each: sized like ImageNet"
        )

    def showpieces(self) -> list[tuple[str, Image.Image]]:
        """One picture a class, of the first few the one with the most contrast: it survives being made tiny."""
        classes = list(generator.SCENES)
        first = [[p for p in self.plans["train"] if p.label == label][:5] for label in range(len(classes))]
        drawn = [[generator.draw(picture) for picture in pictures] for pictures in first]
        best = [max(images, key=lambda image: sum(ImageStat.Stat(image).stddev)) for images in drawn]
        return list(zip(classes, best, strict=True))

    def pack(self) -> None:
        import shardmill as sm

        with self.timed("pack", "Pack", "shuffled shards, an index, checksums"):
            for split in self.plans:
                sm.pack(
                    self.pictures(split), self.packed(split), shard_bytes=64 * 2**20, seed=self.seed, progress=False
                )
        size = sum(p.stat().st_size for split in self.plans for p in self.packed(split).rglob("*") if p.is_file())
        shards = sum(len(list(self.packed(split).glob("*.tar"))) for split in self.plans)
        rate = size / 1e6 / self.seconds["pack"]
        self.say("pack", f"{shards} WebDataset tars, {size / 1e6:,.0f} MB, {rate:,.0f} MB/s")

    def verify(self) -> None:
        import shardmill as sm

        with self.timed("verify", "Verify", "every byte against its checksum"):
            for split in self.plans:
                report = sm.verify(self.packed(split))
                if report.faults:
                    raise ShardmillError(f"the packed pictures have {len(report.faults)} faults: {report.faults[0]}")
        self.say("verify", f"{self.images:,} images, no fault")

    def open(self) -> None:
        import shardmill as sm

        with self.timed("open", "Open", "the index is memory-mapped, images are read when asked for"):
            loader = self.loader("train", sm.recipes.train(224), batch_size=comparison.BATCH)
            images, labels = next(iter(loader))
        shape = f"images {_type(images)} {list(images.shape)}, labels {_type(labels)} {list(labels.shape)}"
        self.say("open", f"batch 1 of {len(loader)}: {escape(shape)}")

    def loader(self, split: str, recipe: Any, *, batch_size: int, shuffle: bool = True) -> Any:
        import shardmill as sm

        dataset = sm.open(self.packed(split))
        return sm.Loader(dataset, batch_size, recipe=recipe, seed=self.seed, shuffle=shuffle)

    def train(self, epochs: int) -> list[Epoch]:
        import shardmill as sm

        if find_spec("torch") is None:
            self.console.print(
                "\n[yellow]torch is not installed, so nothing is trained:[/] pip install torch torchvision"
            )
            return []
        passes: list[Epoch] = []
        what = f"a small network on {_CROP} x {_CROP} crops, on the CPU, past {screen.GOAL:.0%}"
        with self.timed("train", "Train", what):
            training = self.loader("train", sm.recipes.train(_CROP), batch_size=64)
            recipe = sm.recipes.eval(_CROP, resize=_CROP * 9 // 8)
            validation = self.loader("val", recipe, batch_size=200, shuffle=False)
            with Live(screen.epochs_table(passes, epochs), console=self.console, transient=True) as live:
                for epoch in train(training, validation, classes=len(generator.SCENES), epochs=epochs, seed=self.seed):
                    passes.append(epoch)
                    live.update(screen.epochs_table(passes, epochs), refresh=True)
            self.console.print(screen.epochs_table(passes, epochs))
        right = passes[-1].accuracy
        self.say("train", f"{right:.1%} of {len(self.plans['val']):,} pictures never seen before are named rightly")
        return passes

    def race(self, rounds: int) -> list[comparison.Rates]:
        import shardmill as sm

        recipe = "ImageFolder + DataLoader, RandomResizedCrop(224), float32"
        with self.timed("race", "Race", recipe):
            ours = comparison.ShardmillLoader(self.loader("train", sm.recipes.train(224), batch_size=comparison.BATCH))
            entrants: list[comparison.Entrant] = [ours]
            missing = [name for name in ("torch", "torchvision") if find_spec(name) is None]
            if not missing:
                batches = max(1, len(self.plans["train"]) // comparison.BATCH)
                workers = max(2, comparison.cores())
                entrants.append(comparison.TorchvisionFolder(self.pictures("train"), workers=workers, batches=batches))
            rates: list[comparison.Rates] = []
            with screen.progress(self.console) as bar:
                task = bar.add_task("racing", total=rounds * len(entrants))
                for latest in comparison.race(entrants, rounds=rounds):
                    rates = latest
                    bar.advance(task)
        self.console.print(screen.rates_chart(rates))
        if missing:
            self.console.print(
                f"[yellow]{' and '.join(missing)} not installed, so nothing to race:[/] pip install torch torchvision"
            )
        return rates

    def farewell(self, passes: list[Epoch], rates: list[comparison.Rates]) -> None:
        facts = []
        for split, plan in self.plans.items():
            tars = sorted(self.packed(split).glob("*.tar"))
            size = sum(t.stat().st_size for t in tars)
            shards = "1 shard" if len(tars) == 1 else f"{len(tars)} shards"
            facts.append((split, f"{len(plan):,} images in {shards}, {size / 1e6:,.0f} MB"))
        if passes:
            facts.append(("accuracy", f"{passes[-1].accuracy:.1%} after {sum(e.seconds for e in passes):.0f} s"))
        if rates:
            facts.append(("speed", ", ".join(f"{r.name} {r.median:,.0f} images/s" for r in rates)))
        facts.append(("in all", f"{self.seconds['all']:.0f} s"))
        facts.append(("kept in", str(self.place)) if self.kept else ("files", "removed; --folder DIR keeps them"))
        self.console.print()
        self.console.print(screen.farewell(facts, str(self.packed("train")), kept=self.kept))
