"""Control flow of loaded files: the source pass (lowering), and the runtime functions that it calls."""
