"""Layers of sequences: attention, transformers, recurrent networks."""
