"""Names of torch: which object each one is, and what the machine answers."""
