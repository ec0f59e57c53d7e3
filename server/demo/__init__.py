"""`bitgate demo`: the main job on a seeded tiny model, through a real MCP client, on the real engine of this machine."""
