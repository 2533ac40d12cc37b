"""torch.autograd.Function: the class, its ctx, what it saves, and tensors that it captures."""
