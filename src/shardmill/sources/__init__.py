"""Where raw samples come from; every source is an iterable of Sample."""
