"""Pack any pile of images into globally shuffled, indexed shards and feed them to PyTorch."""
