"""What kvlayout costs, and what others cost at the same work: ``python -m benchmarks`` prints one table."""
