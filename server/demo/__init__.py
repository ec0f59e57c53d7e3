"""`bitgate demo`: the main job on a seeded tiny model, through a real MCP client, on this machine's real engine."""
