"""The rewrites: one file for each kind, which enters its handlers in the registry."""
