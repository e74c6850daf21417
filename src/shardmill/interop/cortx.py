"""cortx_pytorch's reading door, ``RemoteDataset(client, bucket, folder)``, over local or mounted shards.

A bucket is a folder under the end point, as a mounted object store shows it. S3 end points are refused for now.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from shardmill.errors import OptionsError
from shardmill.interop.webdataset import WebDataset
from shardmill.shards.open import tars_in


@dataclass(frozen=True, slots=True)
class LocalClient:
    """What `make_client` gives: the folder whose subfolders are buckets."""

    root: Path


def make_client(
    end_point: str | os.PathLike[str], access_key: str | None = None, secure_key: str | None = None
) -> LocalClient:
    """A client for the buckets under ``end_point``: a path or a ``file://`` URL. Keys are taken and not used.

    Raises `OptionsError` for any other URL, and where the folder does not exist.
    """
    scheme, separator, rest = os.fspath(end_point).partition("://")
    if separator and scheme != "file":
        raise OptionsError(f"{os.fspath(end_point)}: this version reads local paths and file:// URLs only")
    root = Path(rest if separator else scheme)
    if not root.is_dir():
        raise OptionsError(f"{root} is not a folder: the end point is the folder that holds the buckets")
    return LocalClient(root)


def RemoteDataset(client: LocalClient, bucket: str, folder: str, shuffle: bool = True) -> WebDataset:  # noqa: N802
    """The stream over all tars of ``folder`` in ``bucket``, to be decoded and mapped as webdataset's.

    ``shuffle``: the shards come in another order every epoch. Only this folder is read, never one whose name begins
    alike. Every sample comes once an epoch over all workers and ranks. Raises `OptionsError` where there is no shard.
    """
    place = client.root / bucket / folder
    if not place.is_dir():
        raise OptionsError(f"{place} is not a folder: there is no {folder!r} in bucket {bucket!r}")
    return WebDataset([str(path) for path in tars_in(place)], shardshuffle=shuffle)
