"""Integers only: sizes, layouts, moves and the prover. Imports attrs and the standard library."""
