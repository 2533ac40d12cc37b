"""Subcommands of `fnjax`, and their common code; those of the porter are in port."""
