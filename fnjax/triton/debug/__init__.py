"""Execution of launches program by program: faults, races and drawings."""
