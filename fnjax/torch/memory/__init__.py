"""Memory of tensors: storages, layouts, dtypes."""
