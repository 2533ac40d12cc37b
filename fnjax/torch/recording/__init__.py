"""What is recorded while operations run: values and their nodes, what is written, random streams."""
