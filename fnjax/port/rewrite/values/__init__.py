"""Values: ctx, operators, conditions, numbers."""
