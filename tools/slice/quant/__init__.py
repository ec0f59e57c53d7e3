"""Quantisation configurations: which modules they name, per format, and how that survives a cut."""
