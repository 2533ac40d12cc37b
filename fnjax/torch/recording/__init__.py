"""State of running operations: values and nodes of autograd, the journal of writes, random streams."""
