"""Syntax trees of Python, for loading and the porter."""
