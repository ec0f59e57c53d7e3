"""Comparing captures: identity, then bits, then statistics."""
