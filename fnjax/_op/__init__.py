"""Custom operators like those of torch.library.custom_op, as a layer on Function."""
