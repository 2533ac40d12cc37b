"""Records of operations while they run: values and their nodes, what is written, random streams."""
