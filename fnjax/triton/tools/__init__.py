"""The part of `triton.tools` that launches need."""
