"""State that a traced block may change: how it is found, put back and merged."""
