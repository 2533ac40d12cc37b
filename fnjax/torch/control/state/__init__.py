"""State that a traced block may change: how it is found, restored and merged."""
