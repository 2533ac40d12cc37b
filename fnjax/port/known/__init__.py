"""What is known of a value, of the memory that it lies in, and of the variables at one point."""
