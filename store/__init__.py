"""The SQLite evidence store: hash chain, artifacts, migrations, verification. Imports nothing else of bitgate."""
