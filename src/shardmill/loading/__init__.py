"""The training side: order, threads, batches."""
