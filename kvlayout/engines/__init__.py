"""The only rooms that know an engine or a store by name. None of them imports it at module level."""
