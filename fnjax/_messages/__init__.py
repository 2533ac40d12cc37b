"""Error messages and warnings."""
