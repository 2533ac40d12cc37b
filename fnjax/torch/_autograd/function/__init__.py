"""torch.autograd.Function: the class, its ctx, saved values, and captured tensors."""
