"""The packed form: tar shards, index columns, manifest, and the reader over them."""
