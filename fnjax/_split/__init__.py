"""The backward pass in two halves."""
