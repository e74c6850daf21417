"""Benchmarks of shardmill beside what people use today: ``python -m benchmarks.loader``, from the project's root."""
