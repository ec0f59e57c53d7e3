"""Looking at an engine while it computes: hashes at semantic points, operator programs, experiments on them."""
