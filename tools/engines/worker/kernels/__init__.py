"""Training-side modules whose forward values come from the operators that the rollout engine dispatches.

Runs in the user's interpreter: needs torch and vLLM, imports nothing of bitgate outside the worker folder.
"""
