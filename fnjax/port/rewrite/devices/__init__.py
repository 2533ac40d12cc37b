"""Many devices: groups, collectives, and parts by rank."""
