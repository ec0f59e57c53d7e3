"""The engines of the worker, one module each (and its helpers, prefixed by its name)."""
