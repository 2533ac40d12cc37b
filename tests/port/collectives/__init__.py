"""Functions with collectives of torch.distributed: their ports on four devices beside what four gloo processes gave."""
