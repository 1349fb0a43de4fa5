"""Families of models: each module reads one kind of layers from a config's fields."""
