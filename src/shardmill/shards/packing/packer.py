"""`pack`: the stages in order, and what holds between them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from shardmill.errors import OptionsError
from shardmill.machine import usable_cores
from shardmill.shards.executor import Executor, LocalProcesses, SerialExecutor
from shardmill.shards.manifest import MANIFEST, Manifest
from shardmill.shards.packing import journal as journals
from shardmill.shards.packing.job import Job
from shardmill.shards.packing.options import EncodeSpec, Means, PackOptions, share_memory
from shardmill.shards.packing.progress import Progress, ProgressBoard, terminal_progress
from shardmill.shards.packing.report import PackReport
from shardmill.shards.packing.workspace import Lock, Workspace, has_manifest, workspace
from shardmill.sources.open import Spec, open_source
from shardmill.sources.protocols import RefSource, Source, SourceInfo, SplittableSource

T = TypeVar("T")
R = TypeVar("R")

_MOST_RANGES = 64
_MOST_REFERENCE_RANGES = 8  # listing is quick, and every range leaves a run that gather must look into


def pack(
    source: Spec,
    dest: str | os.PathLike[str],
    *,
    shard_bytes: int = 256 * 2**20,
    shard_samples: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    memory_bytes: int = 2**30,
    scratch: str | os.PathLike[str] | None = None,
    encode: EncodeSpec | None = None,
    sequential: bool = False,
    executor: Executor | None = None,
    resume: bool = False,
    progress: bool | Progress = True,
    name: str = "shard",
) -> PackReport:
    """Packs ``source`` into globally shuffled, indexed tar shards in the folder ``dest``.

    The place of a sample is a hash of ``seed`` and its key: the same source, seed and limits give the same bytes for
    any number of workers, any memory and any listing order. Nothing is a dataset until the manifest is written, last.

    ``shard_bytes``, ``shard_samples``: most bytes (end marker included) and samples of a shard. ``workers``:
    processes, by default one per usable core; 1 works in this process. ``memory_bytes``: what all processes together
    may hold besides 150 MB for the interpreters, at least 64 MiB; one sample must fit on top. ``scratch``: folder for
    the bulky temporary files, by default in ``dest``; they are as large as the source where it is re-encoded, cannot
    be read in any order, or is read ``sequential``: front to back, written twice, for hard disks and tape. ``encode``:
    re-encode every image; by default bytes are kept. ``executor``: where tasks run, with ``workers`` of them at a time;
    it must see ``dest``, ``scratch`` and the source under the same paths. ``resume``: continue an interrupted pack of
    the same source with the same options. ``progress``: a callable that gets every `ProgressEvent`, or whether to draw
    a bar where stderr is a terminal. ``name``: of the shards.

    Raises `OptionsError` for options that make no sense or a ``dest`` that is in use or not free, `SourceError` for
    what the source holds, `OSError` naming the path for what the disk refuses. After any of them, and after Ctrl-C,
    SIGTERM or a crash, ``resume=True`` continues.
    """
    options = PackOptions(name, shard_bytes, shard_samples, seed, encode)
    means = share_memory(memory_bytes=memory_bytes, workers=workers or usable_cores())
    opened = open_source(source)
    space = workspace(Path(dest).absolute(), None if scratch is None else Path(scratch).absolute())
    callback = terminal_progress() if progress is True else (progress or None)
    with _sigterm_as_exit():
        _refuse_finished(space, resume=resume)
        with Lock(space):
            if has_manifest(space.dest):
                return _clean_up(space, resume=resume)
            job = _prepare(opened, options, means, space, resume=resume, sequential=sequential)
            with closing_progress(callback), _executor(executor, means) as runner:
                try:
                    return job.run(runner, ProgressBoard(space.control, callback))
                except BaseException:
                    space.stop()
                    raise
                finally:
                    job.journal.close()


def _refuse_finished(space: Workspace, *, resume: bool) -> None:
    if has_manifest(space.dest) and not (resume and space.control.exists()):
        raise OptionsError(f"{space.dest} already holds a dataset ({MANIFEST}): choose another folder, or delete it")
    if not space.dest.exists():
        space.dest.mkdir(parents=True)
    if not space.dest.is_dir():
        raise OptionsError(f"{space.dest} is not a folder")


def _clean_up(space: Workspace, *, resume: bool) -> PackReport:
    """The pack was finished, but killed before it removed its temporary files."""
    if not resume:
        raise OptionsError(f"{space.dest} already holds a dataset ({MANIFEST}): choose another folder, or delete it")
    path = space.dest / MANIFEST
    manifest = Manifest.from_bytes(path.read_bytes(), path=str(path))
    space.remove()
    return PackReport(
        space.dest, manifest.samples, manifest.shards, manifest.total_bytes, passes=0, seconds={}, resumed=True
    )


def _prepare(
    source: Source, options: PackOptions, means: Means, space: Workspace, *, resume: bool, sequential: bool
) -> Job:
    info = source.describe()
    _refuse_inside(info, space)
    parts: Sequence[Source] = source.split() if isinstance(source, SplittableSource) else [source]
    by_reference = not sequential and options.encode is None and all(isinstance(part, RefSource) for part in parts)
    ranges = min(_MOST_REFERENCE_RANGES if by_reference else _MOST_RANGES, len(parts))
    plan: dict[str, Any] = {
        "source": {"name": info.name, "kind": info.kind, "fingerprint": info.fingerprint, "parts": len(parts)},
        "options": options.describe(),
        "runs": str(space.runs),
        "boot": boot_id(),
        "by_reference": by_reference,
    }
    old = journals.resume(space.journal)
    if old is None:
        _refuse_occupied(space)
        space.make()
        _empty(space.runs)
        journal = journals.start(space.journal, plan)
    else:
        journal = old
        try:
            if not resume:
                raise OptionsError(
                    f"{space.dest} holds an unfinished pack: continue it with resume=True (--resume), or delete "
                    f"{space.control} and the shards beside it"
                )
            differing = [
                line for name in ("source", "options") for line in journals.differences(old.plan[name], plan[name])
            ]
            differing += journals.differences(
                {"scratch": old.plan["runs"], "one pass": old.plan["by_reference"]},
                {"scratch": plan["runs"], "one pass": by_reference},
            )
            if differing:
                raise OptionsError(
                    f"{space.dest} cannot be resumed: {'; '.join(differing)}. Use the same source and options, or "
                    f"delete {space.control} and the shards beside it"
                )
            space.make()
            if plan["boot"] is None or old.plan["boot"] != plan["boot"]:
                # Runs are not synced: after a crash of the machine they may be full of holes.
                journal.forget_ranges(plan)
                _empty(space.runs)
        except BaseException:
            journal.close()
            raise
    return Job(source, info, parts, by_reference, ranges, options, means, space, journal, resumed=old is not None)


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        entry.unlink()


def boot_id() -> str | None:
    """What this machine calls the time since it was started; ``None`` where it has no name for it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _refuse_inside(info: SourceInfo, space: Workspace) -> None:
    root = Path(info.name)
    if root.is_dir() and space.dest.resolve().is_relative_to(root.resolve()):
        raise OptionsError(f"{space.dest} lies inside the source {root}: choose a folder outside, or it packs itself")


def _refuse_occupied(space: Workspace) -> None:
    for entry in sorted(space.dest.iterdir()):
        if entry.name == "index" or entry.suffix == ".tar":
            raise OptionsError(f"{space.dest} holds {entry.name} already: choose an empty folder, or delete it")


def _executor(given: Executor | None, means: Means) -> AbstractContextManager[Executor]:
    if given is not None:
        return nullcontext(given)
    return nullcontext(SerialExecutor()) if means.workers == 1 else LocalProcesses(means.workers)


@contextmanager
def closing_progress(progress: Progress | None) -> Iterator[None]:
    """Ends a progress display that has a ``close``, whatever happens."""
    try:
        yield
    finally:
        close: Callable[[], Any] | None = getattr(progress, "close", None)
        if close is not None:
            close()


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that temporaries go and workers end; only the main thread may ask for that."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
