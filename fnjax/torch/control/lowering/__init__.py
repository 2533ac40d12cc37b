"""The source pass: lowers control flow of a loaded function to calls of the runtime."""
