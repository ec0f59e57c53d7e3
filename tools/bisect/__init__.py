"""bisect_layer: from two computations that differ to the first operator that does, why, and a script that shows it."""
