"""What a side produced for some tokens, on disk: format and fail-closed reading."""
