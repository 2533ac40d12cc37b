"""Memory: who sees it, and writes that become new values."""
