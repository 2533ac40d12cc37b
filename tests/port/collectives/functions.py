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


def get_all_group():
    if not hasattr(get_all_group, "made"):
        get_all_group.made = dist.new_group()
    return get_all_group.made


class Contrast(torch.autograd.Function):
    """All features on each device; each takes back its own part of the sum."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x, group=get_all_group())
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


class CompReduce(torch.autograd.Function):
    """Each part reduced to its own process, in a comprehension."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.n, ctx.group = dist.get_world_size(group), group
        out = [torch.zeros_like(x) for _ in range(ctx.n)]
        dist.all_gather(out, x, group=group)
        return tuple(out)

    @staticmethod
    def backward(ctx, *grads):
        all_gradients = list(grads)
        works = [dist.reduce(all_gradients[i], i, group=ctx.group, async_op=True) for i in range(ctx.n)]
        for w in works:
            w.wait()
        return all_gradients[dist.get_rank(ctx.group)], None


class ReduceView(torch.autograd.Function):
    """Views of a buffer that are summed; what is saved is the input."""

    @staticmethod
    def forward(ctx, x, group):
        buf = torch.cat([x.sum(0), (x**2).sum(0)])
        d = x.shape[1]
        dist.all_reduce(buf[:d], group=group)
        dist.all_reduce(buf[d:].view(-1), group=group)
        ctx.save_for_backward(x)
        ctx.group = group
        return buf

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        d = x.shape[1]
        dist.all_reduce(g, group=ctx.group)
        return g[:d] + 2 * x * g[d:], None


class LoopOver(torch.autograd.Function):
    """Two gradients, one after the other."""

    @staticmethod
    def forward(ctx, a, b, group):
        ctx.group = group
        return a.clone(), b.clone()

    @staticmethod
    def backward(ctx, ga, gb):
        for t in (ga, gb):
            dist.all_reduce(t, group=ctx.group)
        return ga, gb, None


class AllGatherIntoViews(torch.autograd.Function):
    """Into views that have no name."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        n = dist.get_world_size(group)
        out = torch.empty((n, *tuple(x.shape)), dtype=x.dtype, device=x.device)
        dist.all_gather(list(out.unbind(0)), x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, g):
        dist.all_reduce(g, group=ctx.group)
        return g[dist.get_rank(ctx.group)], None


class Grouped(torch.autograd.Function):
    """The sum over neighbours only."""

    @staticmethod
    def forward(ctx, x, num_groups):
        ctx.num_groups = num_groups
        input_list = [torch.zeros_like(x) for k in range(dist.get_world_size())]
        dist.all_gather(input_list, x, async_op=False)
        inputs = torch.stack(input_list, dim=0)
        if num_groups > 1:
            rank = dist.get_rank()
            group_idx = rank // num_groups
            inputs = inputs[group_idx * num_groups : (group_idx + 1) * num_groups]
        return torch.sum(inputs, dim=0)

    @staticmethod
    def backward(ctx, grad_output):
        grad_output_list = [torch.zeros_like(grad_output) for k in range(dist.get_world_size())]
        dist.all_gather(grad_output_list, grad_output, async_op=False)
        grad_outputs = torch.stack(grad_output_list, dim=0)
        if ctx.num_groups > 1:
            rank = dist.get_rank()
            group_idx = rank // ctx.num_groups
            grad_outputs = grad_outputs[group_idx * ctx.num_groups : (group_idx + 1) * ctx.num_groups]
        grad_outputs = torch.sum(grad_outputs, dim=0)
        return grad_outputs, None


class OwnPart(torch.autograd.Function):
    """The rank is passed."""

    @staticmethod
    def forward(ctx, tensor, rank, world_size):
        output = [torch.empty_like(tensor) for _ in range(world_size)]
        dist.all_gather(output, tensor)
        ctx.rank = rank
        ctx.batch_size = tensor.shape[0]
        return torch.cat(output, 0)

    @staticmethod
    def backward(ctx, grad_output):
        return (grad_output[ctx.batch_size * ctx.rank : ctx.batch_size * (ctx.rank + 1)], None, None)


def _pass_on(to_send, group):
    rank = dist.get_rank(group)
    world = dist.get_world_size(group)
    res = torch.empty_like(to_send)
    send_rank = dist.get_global_rank(group, (rank + 1) % world) if group is not None else (rank + 1) % world
    recv_rank = dist.get_global_rank(group, (rank - 1) % world) if group is not None else (rank - 1) % world
    send_op = dist.P2POp(dist.isend, to_send, send_rank, group=group)
    recv_op = dist.P2POp(dist.irecv, res, recv_rank, group=group)
    reqs = dist.batch_isend_irecv([send_op, recv_op])
    for r in reqs:
        r.wait()
    return res


class RingScores(torch.autograd.Function):
    """Scores of ring attention, written in parts."""

    @staticmethod
    def forward(ctx, sub_q, sub_k, batch_size, num_heads, sub_seq, group):
        ctx.save_for_backward(sub_q, sub_k)
        ctx.sub_seq = sub_seq
        ctx.group = group
        n = dist.get_world_size(group)
        rank = dist.get_rank(group)
        attention_score = torch.empty(batch_size * num_heads, sub_seq, sub_seq * n, dtype=sub_q.dtype)
        part_a = torch.matmul(sub_q, sub_k.transpose(2, 1))
        start_idx = rank * sub_seq
        end_idx = (rank + 1) * sub_seq
        attention_score[:, :, start_idx:end_idx] = part_a
        for i in range(n - 1):
            sub_k = _pass_on(sub_k, group)
            src = (rank - 1 - i) % n
            start_idx = src * sub_seq
            end_idx = (src + 1) * sub_seq
            part_a = torch.matmul(sub_q, sub_k.transpose(2, 1))
            attention_score[:, :, start_idx:end_idx] = part_a
        return attention_score

    @staticmethod
    def backward(ctx, grad_output):
        sub_q, sub_k = ctx.saved_tensors
        rank = dist.get_rank(ctx.group)
        n = dist.get_world_size(ctx.group)
        grad_k = torch.matmul(grad_output.transpose(2, 1), sub_q)
        dist.all_reduce(grad_k, group=ctx.group)
        grad_k = grad_k[:, rank * ctx.sub_seq : (rank + 1) * ctx.sub_seq]
        grad_q = torch.zeros_like(sub_q)
        start_idx = rank * ctx.sub_seq
        end_idx = (rank + 1) * ctx.sub_seq
        grad_q += torch.matmul(grad_output[:, :, start_idx:end_idx], sub_k)
        for i in range(n - 1):
            sub_k = _pass_on(sub_k, ctx.group)
            src = (rank - 1 - i) % n
            grad_q += torch.matmul(grad_output[:, :, src * ctx.sub_seq : (src + 1) * ctx.sub_seq], sub_k)
        return grad_q, grad_k, None, None, None, None


class SumExp(torch.autograd.Function):
    """Summed in both directions, with what is made of the input saved."""

    @staticmethod
    def forward(ctx, x, group):
        e = x.exp()
        s = e.sum(-1)
        dist.all_reduce(s, group=group)
        ctx.save_for_backward(e, s)
        ctx.group = group
        return s.log()

    @staticmethod
    def backward(ctx, g):
        e, s = ctx.saved_tensors
        g = g.clone()
        dist.all_reduce(g, group=ctx.group)
        return (g / s).unsqueeze(-1) * e, None


def _swap(to_left, to_right, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    left, right = (rank - 1) % n, (rank + 1) % n
    from_left, from_right = torch.empty_like(to_right), torch.empty_like(to_left)
    ops = [
        dist.P2POp(dist.isend, to_left, left, group),
        dist.P2POp(dist.isend, to_right, right, group),
        dist.P2POp(dist.irecv, from_left, left, group),
        dist.P2POp(dist.irecv, from_right, right, group),
    ]
    for req in dist.batch_isend_irecv(ops):
        req.wait()
    return from_left, from_right


class Neighbours(torch.autograd.Function):
    """A row of either neighbour of a ring, in one batch of sends and receives."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        above, below = _swap(x[:1].contiguous(), x[-1:].contiguous(), group)
        return torch.cat([above, x, below])

    @staticmethod
    def backward(ctx, grad):
        of_left, of_right = _swap(grad[:1].contiguous(), grad[-1:].contiguous(), ctx.group)
        grad = grad[1:-1].clone()
        grad[-1:] += of_right
        grad[:1] += of_left
        return grad, None


class PassTwo(torch.autograd.Function):
    """Two arrays to the next of the ring, which gets them in their order; what was received is sent on."""

    @staticmethod
    def forward(ctx, x, y, group):
        ctx.group = group
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        to, of = (rank + 1) % n, (rank + n - 1) % n
        a, b, c = torch.empty_like(x), torch.empty_like(y), torch.empty_like(x)
        sent = [dist.isend(x, to, group), dist.isend(y, to, group)]
        dist.recv(a, of, group)
        dist.recv(b, of, group)
        sent.append(dist.isend(a, to, group))
        dist.recv(c, of, group)
        for work in sent:
            work.wait()
        return a + 2 * b + 3 * c

    @staticmethod
    def backward(ctx, grad):
        n = dist.get_world_size(ctx.group)
        parts = [torch.empty_like(grad) for _ in range(n)]
        dist.all_gather(parts, grad.contiguous(), group=ctx.group)
        one, two = (parts[(dist.get_rank(ctx.group) + k) % n] for k in (1, 2))
        return one + 3 * two, 2 * one, None


def _start_sum(x, group, wait=None):
    out = x.clone()
    work = dist.all_reduce(out, group=group, async_op=True)
    work.wait()
    return wait() if callable(wait) else out


_REDUCTIONS = {"later": _start_sum, "now": _sum}


class CopyView(torch.autograd.Function):
    """f, whose sum is chosen from a table, in a helper with a branch."""

    @staticmethod
    def forward(ctx, x, group, how):
        ctx.group, ctx.how = group, how
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return _REDUCTIONS[ctx.how](grad, ctx.group), None, None
