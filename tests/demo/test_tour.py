"""The whole tour at a tiny size: every step runs with the public names, and nothing is left behind."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import shardmill as sm
from shardmill import demo
from shardmill.demo import comparison, generator, screen, tour
from shardmill.demo.comparison import Rates
from shardmill.demo.training import Epoch, small_network, train
from shardmill.errors import OptionsError


def paper() -> Console:
    return Console(file=io.StringIO(), width=100, highlight=False)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture(autouse=True)
def _temporary_folders_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_the_tour_from_pictures_to_the_race(tmp_path: Path) -> None:
    console = paper()
    folder = tmp_path / "kept"
    result = demo.run(folder, images=60, epochs=1, rounds=1, console=console)
    text = printed(console)
    for step in ("Draw", "Pack", "Verify", "Open", "Train", "Race"):
        assert step in text
    assert set(result.seconds) == {"draw", "pack", "verify", "open", "train", "race", "all"}
    assert len(result.epochs) == 1
    assert result.accuracy is not None
    assert 0.0 <= result.accuracy <= 1.0
    assert result.rates[0].name == "shardmill"
    assert len(result.rates) == 2
    assert all(rate.median > 0 for rate in result.rates)

    # What was packed is what was drawn, under the right names, and the two sets share nothing.
    train_set, val_set = sm.open(folder / "train"), sm.open(folder / "val")
    assert (len(train_set), len(val_set)) == (50, 10)
    assert train_set.classes == val_set.classes == tuple(generator.SCENES)
    assert not set(train_set.keys) & set(val_set.keys)
    sample = train_set[0]
    drawn = next((folder / "pictures" / "train").rglob(f"{Path(sample.key).name}.jpg"))
    assert sample.fields["jpg"] == drawn.read_bytes()
    assert drawn.parent.name == (train_set.classes or ())[sample.label]


def test_without_torch_it_says_what_to_install_and_still_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def hidden(name: str, package: str | None = None) -> object:
        return None if name in {"torch", "torchvision"} else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    monkeypatch.setattr(tour, "find_spec", hidden)
    console = paper()
    result = demo.run(images=40, rounds=1, console=console)
    assert result.epochs == ()
    assert result.accuracy is None
    assert [rate.name for rate in result.rates] == ["shardmill"]
    assert printed(console).count("pip install torch torchvision") == 2
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> Iterator[None]:
        assert any(tmp_path.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr(generator, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo.run(images=40, console=paper())
    assert list(tmp_path.iterdir()) == []


def test_bad_use_is_refused_before_anything_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionsError, match="at least 40"):
        demo.run(tmp_path / "new", images=39, console=paper())
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(OptionsError, match="not empty"):
        demo.run(tmp_path, console=paper())
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(OptionsError, match="MB free"):
        demo.run(tmp_path / "new", images=10**12, console=paper())


def test_training_is_the_same_for_the_same_seed() -> None:
    torch = pytest.importorskip("torch")
    generator_ = torch.Generator().manual_seed(0)
    images = torch.randn(20, 3, 32, 32, generator=generator_)
    labels = torch.arange(20) % 4
    images[:, 0] += labels[:, None, None] * 2.0

    class Twice:
        def __iter__(self) -> Iterator[tuple[object, object]]:
            yield images[:10], labels[:10]
            yield images[10:], labels[10:]

        def __len__(self) -> int:
            return 2

        def set_epoch(self, epoch: int) -> None:
            assert epoch in {0, 1, 2, 3}

    runs = [list(train(Twice(), Twice(), classes=4, epochs=4, seed=7)) for _ in range(2)]
    assert [e.loss for e in runs[0]] == [e.loss for e in runs[1]]
    assert runs[0][-1].loss < runs[0][0].loss
    assert [e.number for e in runs[0]] == [1, 2, 3, 4]
    assert all(0 <= e.waiting <= 1 for e in runs[0])
    assert sum(p.numel() for p in small_network(10).parameters()) < 250_000


def test_the_race_is_run_in_turn_and_warm() -> None:
    calls: list[str] = []

    class Runner:
        def __init__(self, name: str) -> None:
            self.name = name

        def warm(self) -> None:
            calls.append(f"warm {self.name}")

        def round(self) -> float:
            calls.append(self.name)
            return float(len(calls))

    *_, last = comparison.race([Runner("a"), Runner("b")], rounds=2)
    assert calls == ["warm a", "warm b", "a", "b", "a", "b"]
    assert last == [Rates("a", (3.0, 5.0)), Rates("b", (4.0, 6.0))]
    assert last[0].median == 4.0


def test_tiny_pictures_show_their_colours() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor", highlight=False)
    red = Image.fromarray(np.full((60, 90, 3), (250, 10, 20), np.uint8))
    assert screen.has_colours(console)
    console.print(screen.gallery([("red", red)], console))
    assert "38;2;250;10;20" in printed(console)
    assert not screen.has_colours(paper())


def test_the_screens_fit_eighty_columns() -> None:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    epochs = [Epoch(1, 2.1, 0.45, 900.0, 0.05, 4.0), Epoch(2, 0.3, 0.951, 950.0, 0.04, 4.0)]
    console.print(screen.welcome(3600))
    console.print(screen.epochs_table(epochs, 3))
    console.print(screen.rates_chart([Rates("shardmill", (2000.0,)), Rates("ImageFolder", (500.0,))]))
    console.print(screen.farewell([("train", "3,000 images")], "/tmp/demo/train", kept=True))
    text = printed(console)
    assert "95.1%" in text
    assert "4.0 times" in text
    assert "shardmill info /tmp/demo/train" in text
    assert max(len(line) for line in text.splitlines()) <= 80
