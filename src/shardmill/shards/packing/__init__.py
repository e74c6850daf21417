"""Plan, scatter, cut, gather, commit: an external sort by keyed hash."""
