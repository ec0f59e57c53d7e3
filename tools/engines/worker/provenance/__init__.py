"""What runs in this process, as seen from inside it."""
