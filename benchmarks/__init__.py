"""Ratios measured in one run: ``python -m benchmarks`` (``make bench``) prints one table."""
