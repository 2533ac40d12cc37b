"""Custom operators: what torch.library.custom_op is for, as a layer on Function."""
