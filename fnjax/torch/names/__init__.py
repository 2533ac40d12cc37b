"""Names of torch: the registry of their objects, devices, versions, and process groups."""
