"""Damaged, cut, ambiguous and hostile tars: each is a `TarError` at the right byte, never a silent end."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from shardmill.errors import TarError
from shardmill.shards.tar import END, Member, member_header, padded, read_members, read_stream


def block(name: bytes = b"a.jpg", size: bytes | int = 0, typeflag: bytes = b"0", *, magic: bytes = b"ustar\x0000",
          prefix: bytes = b"", checksum: str = "unsigned") -> bytes:  # fmt: skip
    """A header with any field, and a checksum that fits it."""
    field = b"%011o\0" % size if isinstance(size, int) else size
    head = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + field + b"00000000000\0" + b" " * 8 + typeflag
    head = (head + bytes(100) + magic.ljust(8, b"\0") + bytes(80) + prefix.ljust(155, b"\0")).ljust(512, b"\0")
    total = sum(head) if checksum == "unsigned" else sum(byte - 256 * (byte >= 128) for byte in head)
    return head[:148] + b"%06o\0 " % total + head[156:]


def pax(*records: bytes, typeflag: bytes = b"x") -> bytes:
    """A PAX header of raw records."""
    return padded_body(block(b"./PaxHeaders/a", sum(map(len, records)), typeflag), b"".join(records))


def record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    while length < len(b"%d %b=%b\n" % (length, key, value)):
        length += 1
    return b"%d %b=%b\n" % (length, key, value)


def long_name(name: bytes, typeflag: bytes = b"L") -> bytes:
    return padded_body(block(b"././@LongLink", len(name) + 1, typeflag, magic=b"ustar  \0"), name + b"\0")


def padded_body(head: bytes, body: bytes) -> bytes:
    return head + body + bytes(padded(len(body)) - len(body))


def base256(value: int) -> bytes:
    return bytes([0x80 if value >= 0 else 0xFF]) + value.to_bytes(11, "big", signed=True)


def member(name: str = "a.jpg", data: bytes = b"payload") -> bytes:
    return padded_body(member_header(name, len(data)), data)


FIRST = member("a.jpg", bytes(700))  # 1536 bytes
SECOND = member("b.jpg", b"x" * 512)  # 1024 bytes
SOUND = FIRST + SECOND + END


def by_ranges(data: bytes) -> list[Member]:
    return list(read_members(lambda at, n: data[at : at + n], len(data), "x.tar"))


def by_stream(data: bytes) -> list[Member]:
    return [m for m, _ in read_stream(io.BytesIO(data), "x.tar")]


READERS = pytest.mark.parametrize("read", [by_ranges, by_stream])
Reader = Callable[[bytes], list[Member]]


@dataclass
class Bad:
    """Damaged bytes, the offset that the error must name, and words it must say."""

    data: bytes
    offset: int
    words: str


def flipped(data: bytes, at: int, value: int = 0xFF) -> bytes:
    return data[:at] + bytes([data[at] ^ value]) + data[at + 1 :]


INNER = member("evil.jpg") + END
SAYS_MORE = pax(record(b"size", b"%d" % len(INNER))) + padded_body(block(size=0), INNER) + END
SAYS_LESS = pax(record(b"size", b"0")) + padded_body(block(size=len(INNER)), INNER) + END
BAD = {
    "1 header byte flipped": Bad(flipped(SOUND, 1536 + 3), 1536, "checksum"),
    "3 size not octal": Bad(FIRST + block(size=b"000000x0123\0") + END, 1536, "not an octal"),
    "3 size empty": Bad(FIRST + block(size=bytes(12)) + END, 1536, "not an octal"),
    "3 size minus": Bad(FIRST + block(size=b"-0000001000\0") + END, 1536, "not an octal"),
    "3 size with a tail": Bad(FIRST + block(size=b"0000001\x00777\0") + END, 1536, "not an octal"),
    "4 no end marker": Bad(FIRST + SECOND, 2560, "end marker is missing"),
    "5 cut in a header": Bad(FIRST + SECOND[:100], 1536, "inside a header"),
    "7 cut in the end marker": Bad(FIRST + END[:700], 1536, "end marker is cut"),
    "7 one zero block": Bad(FIRST + END[:512], 1536, "end marker is cut"),
    "8 zero block in the middle": Bad(FIRST + bytes(512) + SECOND + END, 1536, "single zero block"),
    "9 two tars": Bad(SOUND + SOUND, len(SOUND), "data after the end marker"),
    "10 garbage after the end": Bad(SOUND + bytes(512) + b"garbage", len(SOUND) + 512, "data after the end marker"),
    "10 garbage far after the end": Bad(SOUND + bytes(1 << 21) + b"\1", len(SOUND) + (1 << 21), "data after"),
    "12 empty file": Bad(b"", 0, "empty file"),
    "12 zeros": Bad(bytes(10240), 0, "nothing but zeros"),
    "12 html": Bad(b"<!DOCTYPE html><html>" + b" " * 1000, 0, "3c 21 44 4f 43"),
    "12 short html": Bad(b"<html>", 0, "not a tar"),
    "12 gzip": Bad(b"\x1f\x8b" + bytes(range(256)) * 4, 0, "gzip-compressed"),
    "13 -512": Bad(FIRST + block(size=base256(-512)) + END, 1536, "negative"),
    "13 -1024": Bad(FIRST + block(size=base256(-1024)) + END, 1536, "negative"),
    "13 -2**63": Bad(FIRST + block(size=base256(-(2**63))) + END, 1536, "negative"),
    "14 2**63": Bad(FIRST + block(size=base256(2**63)) + END, 1536, "negative or over"),
    "16 pax says more": Bad(SAYS_MORE, 1024, "ambiguous"),
    "16 pax says less": Bad(SAYS_LESS, 1024, "ambiguous"),
    "16 twice": Bad(pax(record(b"size", b"1"), record(b"size", b"2")) + block() + END, 512, "twice"),
    "17 length 0": Bad(pax(b"0 path=x\n") + block() + END, 512, "length 0"),
    "17 length 1": Bad(pax(b"1 path=x\n") + block() + END, 512, "length 1"),
    "17 length huge": Bad(pax(b"99999999999 path=x\n") + block() + END, 512, "length 99999999999"),
    "17 length 30 digits": Bad(pax(b"9" * 30 + b" path=x\n") + block() + END, 512, "start with its length"),
    "17 length short by one": Bad(pax(b"9 path=xy\n") + block() + END, 512, "damaged"),
    "17 no equals sign": Bad(pax(b"9 pathxy\n") + block() + END, 512, "damaged"),
    "17 no key": Bad(pax(b"5 =x\n") + block() + END, 512, "damaged"),
    "17 size no number": Bad(pax(record(b"size", b"1e3")) + block() + END, 512, "not a number"),
    "17 size negative": Bad(pax(record(b"size", b"-512")) + block() + END, 512, "not a number"),
    "17 size 2**63": Bad(pax(record(b"size", b"%d" % 2**63)) + block() + END, 512, "not a number"),
    "17 path with NUL": Bad(pax(record(b"path", b"a\0b")) + block() + END, 512, "NUL"),
    "17 path empty": Bad(pax(record(b"path", b"")) + block() + END, 512, "empty"),
    "18 pax path and another long name": Bad(
        pax(record(b"path", b"one")) + long_name(b"two") + block() + END, 2048, "ambiguous"),
    "18 two pax headers": Bad(pax(record(b"path", b"a")) * 2 + block() + END, 1024, "two PAX"),
    "18 two long names": Bad(long_name(b"a") * 2 + block() + END, 1024, "two GNU long names"),
    "18 pax and then the end": Bad(FIRST + pax(record(b"path", b"a")) + END, 2560, "between an extended header"),
    "18 pax and then nothing": Bad(FIRST + pax(record(b"path", b"a")), 2560, "between an extended header"),
    "18 global between pax and its member": Bad(
        pax(record(b"path", b"a")) + pax(record(b"x", b"y"), typeflag=b"g") + block() + END, 1024, "global"),
    "19 global header and then the end": Bad(
        FIRST + pax(record(b"x", b"y"), typeflag=b"g") + END, 2560, "between an extended header"),
    "19 global path": Bad(pax(record(b"path", b"a"), typeflag=b"g") + block() + END, 0, "global"),
    "19 1 MB of pax": Bad(pax(record(b"comment", b"x" * 2**20)) + block() + END, 0, "at most 65536"),
    "19 claim of 8 GiB pax": Bad(block(size=2**33 - 1, typeflag=b"x") + END, 0, "at most 65536"),
    "20 long name of 1 GiB": Bad(block(size=2**30, typeflag=b"L") + END, 0, "GNU long name"),
    "20 long name with a tail": Bad(long_name(b"a\0b") + block() + END, 512, "bytes after its end"),
    "20 long name empty": Bad(long_name(b"") + block() + END, 0, "GNU long name"),
    "22 a file called like a folder": Bad(FIRST + block(b"d/") + END, 1536, "a directory by its name"),
    "22 a prefix and no name": Bad(FIRST + block(b"", prefix=b"p") + END, 1536, "ambiguous"),
    "22 no name": Bad(FIRST + block(b"") + END, 1536, "without a name"),
    "23 prefix of no posix header": Bad(
        FIRST + block(magic=b"ustar  \0", prefix=b"1234") + END, 1536, "ambiguous"),
    "24 hard link": Bad(FIRST + block(typeflag=b"1") + END, 1536, "a hard link"),
    "24 symlink": Bad(FIRST + block(typeflag=b"2") + END, 1536, "a symbolic link"),
    "24 device": Bad(FIRST + block(typeflag=b"3") + END, 1536, "a device"),
    "24 FIFO": Bad(FIRST + block(typeflag=b"6") + END, 1536, "a FIFO"),
    "24 link with a size": Bad(FIRST + padded_body(block(size=9, typeflag=b"2"), b"x") + END, 1536, "readers disagree"),
    "24 folder with a size": Bad(FIRST + padded_body(block(b"d/", 9, b"5"), b"x") + END, 1536, "readers disagree"),
    "24 unknown type": Bad(FIRST + block(typeflag=b"V") + END, 1536, "'V'"),
    "25 old GNU sparse": Bad(FIRST + block(typeflag=b"S", magic=b"ustar  \0") + END, 1536, "sparse"),
    "25 PAX sparse": Bad(pax(record(b"GNU.sparse.major", b"1")) + block() + END, 0, "sparse"),
}  # fmt: skip


@READERS
@pytest.mark.parametrize("case", BAD)
def test_a_bad_tar_is_refused_where_it_is_bad(case: str, read: Reader) -> None:
    bad = BAD[case]
    with pytest.raises(TarError) as caught:
        read(bad.data)
    assert bad.words in str(caught.value)
    assert caught.value.path == "x.tar"
    assert caught.value.offset == bad.offset
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@READERS
def test_a_tar_cut_anywhere_is_refused(read: Reader) -> None:
    for size in range(len(SOUND)):
        with pytest.raises(TarError):
            read(SOUND[:size])
    assert [m.name for m in read(SOUND)] == ["a.jpg", "b.jpg"]


@READERS
def test_a_cut_body_names_its_member(read: Reader) -> None:
    with pytest.raises(TarError, match=r"b\.jpg.*cut"):
        read(FIRST + SECOND[:600])


def test_a_payload_that_is_cut_is_not_delivered() -> None:
    for _, payload in read_stream(io.BytesIO(FIRST[:1000]), "x.tar"):
        with pytest.raises(TarError, match="cut"):
            payload.read()
        break


def test_members_before_the_damage_are_delivered() -> None:
    data = flipped(SOUND, 1536)
    seen: list[str] = []
    stream = (m for m, _ in read_stream(io.BytesIO(data), "x"))
    for members in (read_members(lambda at, n: data[at : at + n], len(data), "x"), stream):
        with pytest.raises(TarError):
            seen.extend(m.name for m in members)
    assert seen == ["a.jpg", "a.jpg"]


def test_a_size_beyond_the_file_is_refused_before_anything_is_read() -> None:
    data = FIRST + block(b"huge", base256(2**63 - 1)) + END
    asked = []

    def read(at: int, size: int) -> bytes:
        asked.append(size)
        return data[at : at + size]

    with pytest.raises(TarError, match="huge"):
        list(read_members(read, len(data), "x"))
    assert max(asked) == 512


def test_a_stream_that_claims_an_exabyte_ends_at_its_end() -> None:
    data = block(b"huge", base256(2**60)) + bytes(1 << 21)
    for _, payload in read_stream(io.BytesIO(data), "x"):
        with pytest.raises(TarError, match="huge"):
            payload.read()
        break


GOOD = {
    "15 pax size over 8 GiB beside a zero": pax(record(b"size", b"%d" % 2**34)) + block(),
    "16 pax size that agrees": pax(record(b"size", b"7")) + padded_body(block(size=7), b"x" * 7),
    "18 pax and long name that agree": pax(record(b"path", b"a.jpg")) + long_name(b"a.jpg") + block(b"other"),
    "19 global header": pax(record(b"comment", b"git"), typeflag=b"g") + block(),
    "19 vendor keys": pax(record(b"SCHILY.xattr.user.a", b"\xff\0="), record(b"LIBARCHIVE.x", b"1")) + block(),
    "20 long name and long link": long_name(b"target", b"K") + long_name(b"a.jpg") + block(b"other"),
    "24 folders are passed over": block(b"d/", 0, b"5") + block(b"e/", 0, b"\0", magic=b"") + block(),
    "26 signed checksum": block(b"a.jpg", prefix=b"", checksum="signed"),
    "26 v7": block(typeflag=b"\0", magic=b""),
    "26 contiguous file": block(typeflag=b"7"),
    "26 spaces in the size": block(size=b"          7 ") + bytes(512),
    "28 empty member": block(),
}


@pytest.mark.parametrize("case", GOOD)
def test_odd_but_sound_tars_are_read(case: str) -> None:
    reader = read_members(lambda at, n: (GOOD[case] + END)[at : at + n], None, "x")
    assert next(reader).name == "a.jpg"


def test_a_signed_checksum_of_a_name_over_127() -> None:
    data = block("é".encode(), checksum="signed") + END
    assert by_ranges(data)[0].name == "é"
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["é"]


def test_special_members_can_be_listed() -> None:
    data = block(b"d", 0, b"5") + block(b"l", 0, b"2") + block(b"f") + END
    found = read_members(lambda at, n: data[at : at + n], len(data), "x", special="list")
    assert [(m.name, m.typeflag) for m in found] == [("d", "5"), ("l", "2"), ("f", "0")]


def test_a_payload_can_be_read_in_pieces_or_not_at_all() -> None:
    members = read_stream(io.BytesIO(SOUND), "x")
    _, payload = next(members)
    assert [len(payload.read(300)) for _ in range(4)] == [300, 300, 100, 0]
    assert next(members)[0].name == "b.jpg"
    assert next(members, None) is None


def test_reading_can_start_at_a_members_end() -> None:
    found = read_members(lambda at, n: SOUND[at : at + n], len(SOUND), "x", start=1536)
    assert [m.name for m in found] == ["b.jpg"]


def test_a_pipe_that_gives_few_bytes_at_a_time() -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 7))

    assert [(m.name, len(p.read())) for m, p in read_stream(Slow(SOUND), "x")] == [("a.jpg", 700), ("b.jpg", 512)]
