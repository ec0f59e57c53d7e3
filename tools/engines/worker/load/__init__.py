"""Serving load in the engine's own process, one turn at a time."""
