"""bitgate.toml: sides, models, workloads, policy."""
