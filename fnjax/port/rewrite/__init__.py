"""The rewrites: one file for each kind, which says what a node is and what takes its place."""
