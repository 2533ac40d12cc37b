"""Partition of the backward pass."""
