"""Calls: of torch, of Python, of what the file defines."""
