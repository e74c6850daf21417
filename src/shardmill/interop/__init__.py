"""The call-compatible doors: what other libraries' users already write, over shardmill's datasets."""
