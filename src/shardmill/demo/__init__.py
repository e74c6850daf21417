"""The tour: pictures drawn on the spot, packed, verified, trained on, and timed beside torchvision."""

from shardmill.demo.tour import Tour, run

__all__ = ["Tour", "run"]
