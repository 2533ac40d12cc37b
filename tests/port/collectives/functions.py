"""Functions of tensor, sequence, expert and data parallelism, as PyTorch's users write them."""

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

gather_into = dist.all_gather_into_tensor


def _sum(x, group):
    if dist.get_world_size(group) == 1:
        return x
    dist.all_reduce(x.contiguous(), group=group)
    return x


def _part(x, group, dim):
    size = dist.get_world_size(group)
    return x.chunk(size, dim)[dist.get_rank(group)].contiguous()


def _rows(x, group):
    size, rank = group.size(), group.rank()
    local = x.shape[0] // size
    start = rank * local
    return x[start : start + local]


def _whole(x, group, dim):
    parts = [torch.empty_like(x) for _ in range(group.size())]
    parts[group.rank()] = x
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim=dim)


def _each(x, group):
    parts = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous(), group=group)
    return parts


class Copy(torch.autograd.Function):
    """f."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, grad):
        return _sum(grad, ctx.group), None


class Reduce(torch.autograd.Function):
    """g."""

    @staticmethod
    def forward(ctx, x, group):
        return _sum(x.clone(), group)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Scatter(torch.autograd.Function):
    """Split by rank; gathered in backward."""

    @staticmethod
    def forward(ctx, x, group=None, dim=-1):
        ctx.group, ctx.dim = group, dim
        return _part(x, group, dim)

    @staticmethod
    def backward(ctx, grad):
        return _whole(grad, ctx.group, ctx.dim), None, None


class ScatterRows(torch.autograd.Function):
    """A slice by rank."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _rows(x, group).clone()

    @staticmethod
    def backward(ctx, grad):
        return _whole(grad, ctx.group, 0), None


class Gather(torch.autograd.Function):
    """Gathered; split in backward."""

    @staticmethod
    def forward(ctx, x, group, dim):
        ctx.group, ctx.dim = group, dim
        return _whole(x, group, dim)

    @staticmethod
    def backward(ctx, grad):
        return _part(grad, ctx.group, ctx.dim), None, None


class GatherSum(torch.autograd.Function):
    """Gathered; reduce-scattered in backward, asynchronously."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        size = list(x.shape)
        size[0] *= group.size()
        out = x.new_empty(size)
        handle = gather_into(out, x.contiguous(), group=group, async_op=True)
        handle.wait()
        return out

    @staticmethod
    def backward(ctx, grad):
        n = ctx.group.size()
        out = torch.empty(grad.shape[0] // n, *grad.shape[1:], dtype=grad.dtype, device=grad.device)
        work = dist.reduce_scatter_tensor(out, grad.contiguous(), group=ctx.group, async_op=True)
        if work is not None:
            work.wait()
        return out, None


class ReduceScatter(torch.autograd.Function):
    """Reduce-scattered from a list; gathered in backward."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        parts = list(x.chunk(group.size(), dim=0))
        out = torch.empty_like(parts[0])
        dist.reduce_scatter(out, parts, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return _whole(grad, ctx.group, 0), None


class AllToAll(torch.autograd.Function):
    """Of experts."""

    @staticmethod
    def forward(ctx, group, x, output_sizes=None, input_sizes=None):
        ctx.group, ctx.sizes = group, (output_sizes, input_sizes)
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), output_sizes, input_sizes, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        output_sizes, input_sizes = ctx.sizes
        return None, AllToAll.apply(ctx.group, grad, input_sizes, output_sizes), None, None


class Ulysses(torch.autograd.Function):
    """All-to-all of lists: sequence for heads."""

    @staticmethod
    def forward(ctx, group, x, scatter, gather):
        ctx.group, ctx.scatter, ctx.gather = group, scatter, gather
        return _exchange(x, scatter, gather, group)

    @staticmethod
    def backward(ctx, grad):
        return None, _exchange(grad, ctx.gather, ctx.scatter, ctx.group), None, None


def _exchange(x, scatter, gather, group):
    n = dist.get_world_size(group)
    inputs = [t.contiguous() for t in torch.tensor_split(x, n, scatter)]
    outputs = [torch.empty_like(inputs[0]) for _ in range(n)]
    dist.all_to_all(outputs, inputs, group=group)
    return torch.cat(outputs, dim=gather).contiguous()


class Linear(torch.autograd.Function):
    """A column parallel layer: the gradient of what the devices share is summed."""

    @staticmethod
    def forward(ctx, x, w, group):
        ctx.save_for_backward(x, w)
        ctx.group = group
        return x @ w.t()

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        grad_x = grad @ w
        handle = dist.all_reduce(grad_x, group=ctx.group, async_op=True)
        grad_w = grad.t() @ x
        handle.wait()
        return grad_x, grad_w, None


class SyncNorm(torch.autograd.Function):
    """Batch norm over all devices."""

    @staticmethod
    def forward(ctx, x, w, group):
        count = x.shape[0] * dist.get_world_size(group)
        sums = torch.stack([x.sum(0), (x * x).sum(0)])
        dist.all_reduce(sums, ReduceOp.SUM, group)
        mean = sums[0] / count
        scale = (sums[1] / count - mean * mean + 1e-5).rsqrt()
        normal = (x - mean) * scale
        ctx.save_for_backward(normal, scale, w)
        ctx.group, ctx.count = group, count
        return normal * w

    @staticmethod
    def backward(ctx, grad):
        normal, scale, w = ctx.saved_tensors
        sums = torch.stack([grad.sum(0), (grad * normal).sum(0)])
        dist.all_reduce(sums, group=ctx.group)
        mean, slope = sums / ctx.count
        return (grad - mean - normal * slope) * scale * w, (grad * normal).sum(0), None


class CrossEntropy(torch.autograd.Function):
    """Of logits whose classes lie on different devices."""

    @staticmethod
    def forward(ctx, logits, target, group):
        top = logits.max(dim=-1)[0]
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
        logits = logits - top.unsqueeze(-1)
        size = logits.shape[-1]
        first = group.rank() * size
        outside = (target < first) | (target >= first + size)
        local = target.clone() - first
        local[outside] = 0
        rows = torch.arange(logits.shape[0])
        chosen = logits[rows, local]
        chosen[outside] = 0.0
        exp = logits.exp()
        total = exp.sum(-1)
        dist.all_reduce(chosen, group=group)
        dist.all_reduce(total, group=group)
        ctx.save_for_backward(exp / total.unsqueeze(-1), outside, local)
        return total.log() - chosen

    @staticmethod
    def backward(ctx, grad):
        softmax, outside, local = ctx.saved_tensors
        rows = torch.arange(softmax.shape[0])
        softmax = softmax.clone()
        softmax[rows, local] -= 1.0 - outside.float()
        return softmax * grad.unsqueeze(-1), None, None


class Broadcast(torch.autograd.Function):
    """Of the world, without a group."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.broadcast(y, src=1)
        return y

    @staticmethod
    def backward(ctx, grad):
        total = grad.clone()
        dist.all_reduce(total, op=dist.ReduceOp.AVG if False else dist.ReduceOp.SUM)
        return total * (dist.get_rank() == 1)


class Contrast(torch.autograd.Function):
    """All features on each device; each takes back its own part of the sum."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return tuple(parts)

    @staticmethod
    def backward(ctx, *grads):
        grads = torch.stack(grads)
        dist.all_reduce(grads)
        return grads[dist.get_rank()]


class Norm(torch.autograd.Function):
    """Of what all processes have; backward multiplies a sum over them with what was saved."""

    @staticmethod
    def forward(ctx, x, group):
        square = (x * x).sum()
        dist.all_reduce(square, group=group)
        norm = square.sqrt()
        ctx.save_for_backward(x, norm)
        ctx.group = group
        return norm

    @staticmethod
    def backward(ctx, g):
        x, norm = ctx.saved_tensors
        g = g.clone()
        dist.all_reduce(g, group=ctx.group)
        return g * x / norm, None


class Halo(torch.autograd.Function):
    """A row of either neighbour, zeros at the ends."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        first, last = _each(x[:1], group), _each(x[-1:], group)
        above = last[rank - 1] if rank > 0 else torch.zeros_like(x[:1])
        below = first[rank + 1] if rank < size - 1 else torch.zeros_like(x[:1])
        return torch.cat([above, x, below])

    @staticmethod
    def backward(ctx, g):
        rank, size = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        first, last = _each(g[:1], ctx.group), _each(g[-1:], ctx.group)
        grad = g[1:-1].clone()
        if rank > 0:
            grad[:1] += last[rank - 1]
        if rank < size - 1:
            grad[-1:] += first[rank + 1]
        return grad, None
