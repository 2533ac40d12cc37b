"""Many devices: groups, collectives, and slices by rank."""
