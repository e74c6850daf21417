"""From the byte range of one sample to its fields."""

from __future__ import annotations

from shardmill.errors import TarError
from shardmill.shards.grouping import plain_name
from shardmill.shards.tar import HeaderReader


def parse_sample(data: memoryview, *, key: str, path: str, start: int) -> dict[str, bytes]:
    """The fields of the sample whose members fill ``data``, by extension, in file order.

    ``data`` begins at byte ``start`` of the shard ``path``. Raises `TarError` where a member is damaged or belongs to
    another key: then the index and the shard do not fit together.
    """
    end = start + len(data)

    def read(offset: int, size: int) -> bytes:
        return bytes(data[offset - start : offset - start + size])

    headers = HeaderReader(read, end, path)
    fields: dict[str, bytes] = {}
    at = start
    while at < end:
        member, at = headers.next(at)
        name = "" if member is None else plain_name(member.name)
        if member is None or not name.startswith(key + ".") or at > end:
            found = "the end of the tar" if member is None else repr(name)
            raise TarError(
                f"found {found} where the index has a member of this sample",
                path=path,
                offset=at if member is None else member.header_offset,
                key=key,
                hint="the index does not belong to this shard: run `shardmill index` or pack again",
            )
        fields[name[len(key) + 1 :]] = read(member.payload_offset, member.size)
    return fields
