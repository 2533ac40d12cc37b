"""Lines of the table, by the kind of operation."""
