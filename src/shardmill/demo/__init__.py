"""The tour: pictures drawn on the spot, packed, verified, trained on, and timed beside torchvision."""
