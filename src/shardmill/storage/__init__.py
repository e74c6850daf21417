"""Named bytes and ranges of them."""
