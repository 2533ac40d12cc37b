"""The source pass: control flow of a loaded function as calls of the runtime."""
