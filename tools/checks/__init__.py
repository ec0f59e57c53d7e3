"""What each check of run_compare runs and which rows it holds equal: plans as data, made by pure functions."""
