"""Proof of a slice in the user's interpreter: load reports, and window equivalence on the CPU."""
