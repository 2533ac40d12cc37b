"""Control flow of loaded files: the source pass, and what its calls do where they run."""
