"""The MCP server and every other way in: stdio and HTTP entry, CLI, prompts, resources."""
