"""The only module of the loader that imports torch: arrays to tensors, pinned memory, the copy to the device."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
import torch.distributed

from shardmill.errors import OptionsError
from shardmill.records import Batch


def distributed_place() -> tuple[int, int] | None:
    """(rank, world size) of torch.distributed's default group, or ``None`` where it is not initialised."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def allocate_pinned(size: int) -> Any:
    """Page-locked memory, which a GPU copies from without the CPU; costs about 0.3 s a GB, once per slab."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()


class TensorMaker:
    """Batches of arrays to batches of tensors on ``device``. For one consumer thread.

    On the CPU nothing is copied: a tensor looks into the batch's slab, and the slab returns when the tensor is gone.
    With CUDA the copy runs on a stream of its own, from pinned memory, while the consumer's kernels of earlier steps
    still run; the consumer's current stream waits for it, the CPU does not. The slab is held until the copy is done.
    Any other device: an ordinary blocking copy.
    """

    def __init__(self, device: object, pixel_dtype: str) -> None:
        try:
            self.device = torch.device("cpu" if device is None else device)  # type: ignore[call-overload]
        except (RuntimeError, TypeError) as error:
            raise OptionsError(f"device={device!r} is not a torch device: {error}") from None
        self.cuda = self.device.type == "cuda"
        if self.cuda and not torch.cuda.is_available():
            raise OptionsError(f"device={device!r}, but torch sees no CUDA device")
        self._bfloat16 = pixel_dtype == "bfloat16"
        self._stream: torch.cuda.Stream | None = None
        # Copies that may still be reading: (event at the end of the copy, the host tensors).
        self._copying: deque[tuple[torch.cuda.Event, tuple[torch.Tensor, ...]]] = deque()

    def __call__(self, batch: Batch) -> Batch:
        """The same batch as tensors."""
        several = isinstance(batch.images, tuple)
        images = tuple(torch.from_numpy(view) for view in (batch.images if several else (batch.images,)))
        if self._bfloat16:
            images = tuple(view.view(torch.bfloat16) for view in images)
        host = tuple(torch.from_numpy(a) for a in (batch.labels, batch.ids, batch.valid) if a is not None)
        if self.cuda:
            moved = self._copy(images, host)
        elif self.device.type == "cpu":
            moved = (*images, *host)
        else:
            moved = tuple(tensor.to(self.device) for tensor in (*images, *host))
        return Batch(moved[: len(images)] if several else moved[0], *moved[len(images) :])

    def _copy(self, images: tuple[torch.Tensor, ...], host: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        while self._copying and self._copying[0][0].query():  # type: ignore[no-untyped-call]
            self._copying.popleft()
        with torch.cuda.device(self.device):
            if self._stream is None:
                self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            current = torch.cuda.current_stream()
            # Images lie in a pinned slab; the small arrays are pinned here, as a copy from pageable memory would wait.
            pinned = (*images, *(tensor.pin_memory() for tensor in host))
            with torch.cuda.stream(self._stream):
                moved = tuple(tensor.to(self.device, non_blocking=True) for tensor in pinned)
                done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                done.record(self._stream)
            current.wait_event(done)
            for tensor in moved:
                # Memory of the side stream, used on the consumer's: not to be given out again before that is done.
                tensor.record_stream(current)
        self._copying.append((done, pinned))
        return moved
