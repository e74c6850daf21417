"""Packing: an external sort of any source by a keyed hash of its keys. plan -> scatter -> cut -> gather -> commit."""

from shardmill.shards.packing.options import EncodeSpec, PackOptions
from shardmill.shards.packing.packer import pack
from shardmill.shards.packing.progress import Progress, ProgressEvent
from shardmill.shards.packing.report import PackReport

__all__ = ["EncodeSpec", "PackOptions", "PackReport", "Progress", "ProgressEvent", "pack"]
