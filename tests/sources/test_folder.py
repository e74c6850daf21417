"""Folders of images, with and without classes and labels; what must not be packed in silence."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from shardmill.errors import SourceError
from shardmill.sources.folder import FolderSource
from shardmill.sources.open import open_source
from shardmill.sources.reading import RangeReader, load_all


def tree(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


def opened(root: Path, **options: object) -> FolderSource:
    source = open_source(root, **options)  # type: ignore[arg-type]
    assert isinstance(source, FolderSource)
    return source


def test_a_directory_per_class(tmp_path: Path) -> None:
    tree(
        tmp_path,
        "zebra/1.jpg",
        "ant/b.png",
        "ant/A.JPEG",
        "ant/deep/er/x.v2.jpg",
        "README.md",
        ".DS_Store",
        "ant/.x.jpg",
    )
    source = opened(tmp_path)
    samples = list(source)
    assert [(s.key, s.label, s.class_name, dict(s.fields)) for s in samples] == [
        ("ant/A", 0, "ant", {"JPEG": b"ant/A.JPEG"}),
        ("ant/b", 0, "ant", {"png": b"ant/b.png"}),
        ("ant/deep/er/x%2Ev2", 0, "ant", {"jpg": b"ant/deep/er/x.v2.jpg"}),
        ("zebra/1", 1, "zebra", {"jpg": b"zebra/1.jpg"}),
    ]
    info = source.describe()
    assert (info.kind, info.label_source, info.class_names) == ("folder", "sorted directory names", ("ant", "zebra"))
    assert info.estimated_bytes == sum(len(data) for s in samples for data in s.fields.values())
    # README.md and .DS_Store lie beside the class folders, which is where the walk does not go.
    assert info.ignored == 1


def test_parts_one_after_another_are_the_whole(tmp_path: Path) -> None:
    source = opened(tree(tmp_path, "a/1.jpg", "a/2.jpg", "b/1.jpg"))
    parts = pickle.loads(pickle.dumps(source.split()))
    assert [s for part in parts for s in part] == list(source) == list(load_all(source.refs()))
    assert len(parts) == 2
    assert parts[1].describe().estimated_bytes == len("b/1.jpg")


def test_a_pile_without_labels(tmp_path: Path) -> None:
    source = opened(tree(tmp_path, "b.jpg", "a.jpg", "notes.txt"))
    assert [(s.key, s.label, s.class_name) for s in source] == [("a", -1, None), ("b", -1, None)]
    assert (source.describe().label_source, source.describe().ignored) == ("none", 1)


@pytest.mark.parametrize(
    "labels",
    [{"d/a.jpg": 3, "b.jpg": 4}, {"a.jpg": 3, "b": 4}, {"d/a": 3, "b.jpg": 4}, {"a": 3, "b": 4}],
)
def test_labels_by_path_name_or_stem(tmp_path: Path, labels: dict[str, int]) -> None:
    tree(tmp_path / "in", "d/a.jpg", "b.jpg")
    (tmp_path / "labels.json").write_text(json.dumps(labels), encoding="utf-8-sig")
    source = opened(tmp_path / "in", labels=tmp_path / "labels.json")
    assert {s.key: s.label for s in source} == {"b": 4, "d/a": 3}
    assert source.describe().label_source == "labels.json"
    assert source.describe().class_names is None


def test_class_names_as_labels(tmp_path: Path) -> None:
    tree(tmp_path / "in", "1.jpg", "2.jpg", "3.jpg")
    (tmp_path / "labels.json").write_text('{"1": "tench", "2": "ant", "3": "tench"}')
    source = opened(tmp_path / "in", labels=tmp_path / "labels.json")
    assert [s.label for s in source] == [1, 0, 1]
    assert source.describe().class_names == ("ant", "tench")


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ("[1, 2]", "JSON object"),
        ("{}", "JSON object"),
        ("{", "not JSON"),
        ('{"a": 1, "a": 2, "b": 3}', "comes twice"),
        ('{"a": 1, "b": "x"}', "'b': labels must be all"),
        ('{"a": true, "b": true}', "must be all"),
        ('{"a": 1, "b": 1.5}', "must be all"),
        ('{"a": -2, "b": 1}', "0 to 2"),
        ('{"a": 1}', r"no label for 'b\.jpg'"),
        ('{"a": 1, "b": 2, "c": 3}', "1 entries have no image, the first is 'c'"),
    ],
)
def test_labels_that_do_not_fit(tmp_path: Path, labels: str, words: str) -> None:
    tree(tmp_path / "in", "a.jpg", "b.jpg")
    (tmp_path / "labels.json").write_text(labels)
    with pytest.raises(SourceError, match=words) as caught:
        opened(tmp_path / "in", labels=tmp_path / "labels.json").describe()
    assert "labels.json" in str(caught.value)


def test_one_entry_for_two_images(tmp_path: Path) -> None:
    tree(tmp_path / "in", "d/a.jpg", "e/a.jpg")
    (tmp_path / "labels.json").write_text('{"a": 1}')
    with pytest.raises(SourceError, match=r"fits both 'd/a\.jpg' and 'e/a\.jpg'"):
        opened(tmp_path / "in", labels=tmp_path / "labels.json").describe()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a/x.jpg", "a/x.JPG"], r"x\.JPG' and 'a/x\.jpg' want the same key"),
        (["a/x.jpg", "a/x.png"], "same key"),
        (["a/x.jpg", "a/x.bin"], r"a/x\.bin.*ignore="),
        (["a/x.jpg", "b/notes.txt"], r"b/notes\.txt"),
        (["a/x.jpg", "b/.hidden"], "'b' holds no images"),
        (["a/x.jpg", "y.jpg"], "both images"),
        (["train/x.jpg", "val/y.jpg"], "look like splits"),
        (["README"], "no images"),
    ],
)
def test_piles_that_are_refused(tmp_path: Path, names: list[str], words: str) -> None:
    tree(tmp_path, *names)
    with pytest.raises(SourceError, match=words) as caught:
        list(opened(tmp_path).refs())
    assert str(tmp_path) in str(caught.value)


def test_an_empty_image(tmp_path: Path) -> None:
    tree(tmp_path, "a/x.jpg")
    (tmp_path / "a/empty.jpg").touch()
    with pytest.raises(SourceError, match=r"a/empty\.jpg.*0 bytes"):
        list(opened(tmp_path))


def test_links_are_refused_unless_followed(tmp_path: Path) -> None:
    tree(tmp_path, "in/a/x.jpg", "elsewhere/y.jpg")
    (tmp_path / "in/a/link.jpg").symlink_to(tmp_path / "elsewhere/y.jpg")
    with pytest.raises(SourceError, match=r"link\.jpg: a symbolic link.*follow_links"):
        list(opened(tmp_path / "in"))
    assert [s.key for s in opened(tmp_path / "in", follow_links=True)] == ["a/link", "a/x"]


def test_a_link_in_a_circle(tmp_path: Path) -> None:
    tree(tmp_path, "a/x.jpg")
    (tmp_path / "a/b").symlink_to(tmp_path / "a")
    with pytest.raises(SourceError, match="leads back"):
        list(opened(tmp_path, follow_links=True))


def test_a_broken_link_and_a_fifo(tmp_path: Path) -> None:
    tree(tmp_path, "a/x.jpg")
    (tmp_path / "a/gone.jpg").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SourceError, match=r"gone\.jpg"):
        list(opened(tmp_path, follow_links=True))
    (tmp_path / "a/gone.jpg").unlink()
    os.mkfifo(tmp_path / "a/pipe.jpg")
    with pytest.raises(SourceError, match=r"pipe\.jpg: not a regular file"):
        list(opened(tmp_path))


def test_a_folder_called_like_an_image_is_a_folder(tmp_path: Path) -> None:
    assert [s.key for s in opened(tree(tmp_path, "a/x.jpg/y.jpg"))] == ["a/x.jpg/y"]


def test_a_file_that_shrinks_or_changes_between_listing_and_reading(tmp_path: Path) -> None:
    path = tree(tmp_path, "a/x.jpg") / "a/x.jpg"
    (ref,) = opened(tmp_path).refs()
    path.write_bytes(b"x")
    with pytest.raises(SourceError, match="only 1 of 7 bytes"):
        list(load_all([ref]))
    path.unlink()
    with pytest.raises(SourceError, match=r"x\.jpg: cannot open"):
        list(load_all([ref]))
    path.write_bytes(b"a/x.jpg")
    reader = RangeReader()
    reader.load(ref)
    path.write_bytes(b"a/y.jpg and more")
    with pytest.raises(SourceError, match="changed while it was read"):
        reader.close()


def test_few_files_are_open_at_a_time(tmp_path: Path) -> None:
    tree(tmp_path, *(f"a/{i}.jpg" for i in range(50)))
    refs = list(opened(tmp_path).refs())
    with RangeReader(max_open_files=3) as reader:
        for ref in refs:
            reader.load(ref)
            assert len(reader._open) <= 3
    assert not reader._open


def test_the_fingerprint_sees_what_changed(tmp_path: Path) -> None:
    tree(tmp_path, "a/x.jpg", "b/y.jpg")
    before = opened(tmp_path).describe().fingerprint
    assert before == opened(tmp_path).describe().fingerprint
    os.utime(tmp_path / "a/x.jpg", (1, 1))
    touched = opened(tmp_path).describe().fingerprint
    tree(tmp_path, "b/z.jpg")
    assert len({before, touched, opened(tmp_path).describe().fingerprint}) == 3


def test_images_with_the_real_labels(imagenettools: Path) -> None:
    source = opened(imagenettools / "Images", labels=imagenettools / "ClassInfo.json")
    truth = json.loads((imagenettools / "ClassInfo.json").read_text())
    samples = list(source)
    assert {f"{s.key}.JPEG": s.label for s in samples} == truth
    for s in samples:
        assert s.fields["JPEG"] == (imagenettools / "Images" / f"{s.key}.JPEG").read_bytes()
    assert source.describe().label_source == "ClassInfo.json"
