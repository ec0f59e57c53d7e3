"""Runs in the user's interpreter, next to torch and the engine. Imports nothing of bitgate outside this folder."""
