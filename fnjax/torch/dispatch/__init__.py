"""Running an operation of the table: binding, promotion, checks, the compiled function."""
