"""Adapters of the kernel stack: what each engine accepts, and the job its worker executes."""
