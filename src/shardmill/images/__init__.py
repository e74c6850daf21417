"""Pixels; knows nothing of storage, threads or torch."""
