"""The reading halves of the cortx and AIStore texts run as written, apart from the import and where the shards lie."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from shardmill.errors import OptionsError
from shardmill.interop import webdataset as wds
from shardmill.interop.cortx import RemoteDataset, make_client

TEXTS = Path(__file__).resolve().parents[3] / "shared" / "reference" / "systems-sources"
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

# Only the import is not in the text.
CORTX = """
import torch as ch
from tqdm import tqdm
from shardmill.interop.cortx import RemoteDataset, make_client
from torchvision import transforms
preproc = transforms.Compose([
    transforms.RandomResizedCrop(224),
    transforms.RandomHorizontalFlip(),
    transforms.ToTensor(),
])
if __name__ == '__main__':
    # Define the connection settings for our client
    client = make_client(URL, ACCESS_KEY, SECRET_KEY)
    bucket = 'testbucket' # Bucket where to read/write our ML dataset
    folder = 'imagenet-val' # Folder where this particular dataset will be
    dataset = (RemoteDataset(client, bucket, folder)
        .decode("pil") # Decode the data as PIL images
        .to_tuple("jpg;png", "cls") # Extract images and labels from the dataset
        .map_tuple(preproc, lambda x: x) # Apply data augmentations
        .batched(64) # Make batches of 64 images
    )
    # We create a regular pytorch data loader as we would do for regular data sets
    dataloader = ch.utils.data.DataLoader(dataset, num_workers=3, batch_size=None)
    for image, label in tqdm((x for x in dataloader), total = 100000 / 60):
        # Train / evaluate ML models on this batch of data
        pass
"""
CORTX_OWN = {"from shardmill.interop.cortx import RemoteDataset, make_client"}

AISTORE = """
from torchvision import transforms
import shardmill.interop.webdataset as wds
normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
train_transform = transforms.Compose([
    transforms.RandomResizedCrop(224),
    transforms.RandomHorizontalFlip(),
    transforms.ToTensor(),
    normalize,
])
dataset = (
    wds.WebDataset(shard_url, handler=wds.handlers.warn_and_continue)
        .decode("pil")
        .to_tuple("jpg;png;jpeg cls", handler=wds.handlers.warn_and_continue)
        .map_tuple(train_transform, lambda x: x)
)
loader = wds.WebLoader(
    dataset,
    batch_size=64,
    shuffle=False,
    num_workers=1,
)
to_tensor = transforms.Compose([transforms.ToTensor()])
etl_dataset = (
    wds.WebDataset(etl_object_url, handler=wds.handlers.warn_and_continue)
        .decode("rgb")
        .to_tuple("npy cls", handler=wds.handlers.warn_and_continue)
        .map_tuple(to_tensor, lambda x: x)
)
etl_loader = wds.WebLoader(
    etl_dataset,
    batch_size=64,
    shuffle=False,
    num_workers=1,
)
val_dataset = (
    wds.WebDataset(val_urls, handler=wds.handlers.warn_and_continue)
        .decode("rgb")
        .to_tuple("npy cls", handler=wds.handlers.warn_and_continue)
        .map_tuple(to_tensor, lambda x: x)
)
val_loader = wds.WebLoader(
    val_dataset,
    batch_size=64,
    shuffle=False,
    num_workers=1,
)
"""
AISTORE_OWN = {"import shardmill.interop.webdataset as wds"}


@pytest.mark.parametrize(
    ("script", "own", "name"),
    [(CORTX, CORTX_OWN, "cortx_pytorch.txt"), (AISTORE, AISTORE_OWN, "aistore_etl_webdataset.txt")],
)
def test_the_lines_are_those_of_the_text(script: str, own: set[str], name: str) -> None:
    if not TEXTS.parents[1].exists():
        pytest.skip("the texts are not on this machine")
    text = {line.strip() for line in (TEXTS / name).read_text().splitlines()}
    written = {line.strip() for line in script.splitlines()} - own - {""}
    assert written <= text


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, write_tar: Any, make_sample: Any) -> list[Path]:
    """Two tars of 70 and 3 samples with images as .jpg and .png, as cortx and AIStore have them."""
    place = tmp_path_factory.mktemp("texts")
    found = []
    for number, count in enumerate((70, 3)):
        samples = []
        for i in range(count):
            whole = make_sample(3 * i + i % 2)
            samples.append(
                {"__key__": f"im-{i}", "cls": str(i).encode()} | {n: whole[n] for n in ("jpg", "png") if n in whole}
            )
        found.append(write_tar(place / f"imagenet-train-{number:06d}.tar", samples))
    return found


def run(script: str, **names: Any) -> dict[str, Any]:
    space = {"__name__": "__main__", **names}
    exec(compile(script, "script", "exec"), space)
    return space


def test_cortx(shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # tqdm need not be installed: this one remembers what it saw.
    (tmp_path / "tqdm.py").write_text(
        "seen = []\n\ndef tqdm(items, total):\n    for each in items:\n        seen.append(each)\n        yield each\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tqdm", raising=False)
    for place in ("imagenet-val", "imagenet-val2"):
        (tmp_path / "testbucket" / place).mkdir(parents=True)
        for path in shards:
            (tmp_path / "testbucket" / place / path.name).write_bytes(path.read_bytes())
    run(CORTX, URL=f"file://{tmp_path}", ACCESS_KEY="key", SECRET_KEY="secret")
    seen = sys.modules.pop("tqdm").seen
    assert [tuple(images.shape) for images, _ in seen] == [(64, 3, 224, 224), (9, 3, 224, 224)]
    assert sorted(label for _, labels in seen for label in labels.tolist()) == sorted([*range(70), *range(3)])


def test_cortx_refuses_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="local paths and file"):
        make_client("https://s3.example.com", "key", "secret")
    with pytest.raises(OptionsError, match="is not a folder"):
        make_client(tmp_path / "nothing")
    with pytest.raises(OptionsError, match="there is no 'val' in bucket 'b'"):
        RemoteDataset(make_client(tmp_path), "b", "val")


def test_cortx_without_shuffle_keeps_the_order_of_the_shards(shards: list[Path]) -> None:
    client = make_client(shards[0].parents[1])
    stream = RemoteDataset(client, ".", shards[0].parent.name, shuffle=False)
    assert [int(sample["cls"]) for sample in stream] == [*range(70), *range(3)]


def test_aistore(shards: list[Path], tmp_path: Path, write_tar: Any) -> None:
    from torchvision import transforms

    def wd_transform(sample: dict[str, Any]) -> dict[str, Any]:
        sample["npy"] = to_tensor(sample.pop("jpg")).permute(1, 2, 0).numpy().astype("float32")
        return sample

    to_tensor = transforms.ToTensor()
    # What the transform leaves in the store: .npy in place of the image, so no image in any sample.
    import numpy as np

    stored = []
    for sample in wds.WebDataset(str(shards[0])).decode("pil").select(lambda each: "jpg" in each).map(wd_transform):
        stream = tmp_path / "array.npy"
        np.save(stream, sample["npy"])
        stored.append({"__key__": sample["__key__"], "cls": str(sample["cls"]).encode(), "npy": stream.read_bytes()})
    etl = write_tar(tmp_path / "etl-000000.tar", stored)
    val = [write_tar(tmp_path / f"val-{i:06d}.tar", stored) for i in range(3)]

    space = run(
        AISTORE,
        shard_url=str(shards[0]),
        etl_object_url=str(etl),
        val_urls=str(val[0]).replace("000000", "{000000..000002}"),
    )
    first = list(space["loader"])
    assert [tuple(images.shape) for images, _ in first] == [(64, 3, 224, 224), (6, 3, 224, 224)]
    assert [label for _, labels in first for label in labels.tolist()] == list(range(70))
    (batch,) = space["etl_loader"]
    assert batch[0].dtype == torch.float32
    assert tuple(batch[0].shape) == (35, 3, 13, 19)
    expected = [to_tensor(each["jpg"]) for each in wds.WebDataset(str(shards[0])).decode("pil") if "jpg" in each]
    assert torch.equal(batch[0], torch.stack(expected))
    assert sum(len(labels) for _, labels in space["val_loader"]) == 3 * 35
