"""Functions as they are written: quantisation, spikes, losses, normalisation, geometry, attention."""

CASES = {
    "LSQ": (  # straight-through gradients by detach, a class docstring
        "randn(4, 6), array(0.1), 4, True",
        '''
def grad_scale(x, scale):
    y = x
    y_grad = x * scale
    return (y - y_grad).detach() + y_grad

def round_pass(x: torch.Tensor) -> torch.Tensor:
    y = x.round()
    return (y - x).detach() + x

class LSQ(torch.autograd.Function):
    """Learned step size quantisation."""

    @staticmethod
    def forward(ctx, weight: torch.Tensor, alpha: torch.Tensor, nbits: int, signed: bool = True):
        if signed:
            Qn, Qp = -(2 ** (nbits - 1)), 2 ** (nbits - 1) - 1
        else:
            Qn, Qp = 0, 2 ** nbits - 1
        assert alpha > 0, f"alpha must be positive, got {alpha}"
        ctx.save_for_backward(weight, alpha)
        ctx.other = 1.0 / math.sqrt(weight.numel() * Qp), Qn, Qp
        q_w = (weight / alpha).round().clamp(Qn, Qp)
        w_q = q_w * alpha
        return w_q

    @staticmethod
    def backward(ctx, grad_weight):
        weight, alpha = ctx.saved_tensors
        g, Qn, Qp = ctx.other
        q_w = weight / alpha
        indicate_small = (q_w < Qn).float()
        indicate_big = (q_w > Qp).float()
        indicate_middle = 1.0 - indicate_small - indicate_big
        steps = indicate_small * Qn + indicate_big * Qp + indicate_middle * (-q_w + q_w.round())
        grad_alpha = (steps * grad_weight * g).sum().unsqueeze(dim=0)
        grad_weight = indicate_middle * grad_weight
        return grad_weight, grad_alpha.squeeze(), None, None
''',
    ),
    "FocalLoss": (  # one_hot, where and clamp_ with a constant of the file
        "randn(5, 4), randint(0, 4, (5,)), 2.0, 0.25",
        """
_EPS = 1e-7

class FocalLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, gamma=2.0, alpha=0.25):
        num_classes = logits.size(1)
        p = torch.sigmoid(logits)
        t = F.one_hot(target, num_classes).type_as(logits)
        pt = torch.where(t == 1, p, 1 - p).clamp_(_EPS, 1 - _EPS)
        at = t * alpha + (1 - t) * (1 - alpha)
        loss = -at * (1 - pt).pow(gamma) * pt.log()
        ctx.save_for_backward(pt, at, t)
        ctx.gamma = gamma
        ctx.n = max(int(target.numel()), 1)
        return loss.sum() / ctx.n

    @staticmethod
    def backward(ctx, grad_output):
        pt, at, t = ctx.saved_tensors
        gamma = ctx.gamma
        sign = 2 * t - 1
        d = at * sign * (gamma * (1 - pt) ** gamma * pt * pt.log() - (1 - pt) ** (gamma + 1))
        return d.mul_(grad_output / ctx.n), None, None, None
""",
    ),
    "LabelSmoothCE": (  # entries at arange and labels, masked_fill_
        "randn(6, 5), randint(0, 5, (6,)), 0.1, 3",
        """
class LabelSmoothCE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels, smoothing=0.0, padding_idx=0):
        logits = logits.float()
        max_, _ = logits.max(dim=-1, keepdim=True)
        lse = (logits - max_).exp().sum(dim=-1).log() + max_.squeeze(-1)
        n, c = logits.shape
        picked = logits[torch.arange(n), labels]
        losses = lse - (1.0 - smoothing) * picked - smoothing * logits.mean(dim=-1)
        losses.masked_fill_(labels == padding_idx, 0)
        ctx.save_for_backward(logits, lse, labels, torch.FloatTensor([smoothing]), torch.LongTensor([padding_idx]))
        return losses

    @staticmethod
    def backward(ctx, grad_loss):
        logits, lse, labels, smoothing, padding_idx = ctx.saved_tensors
        smoothing = smoothing.item()
        padding_idx = padding_idx.item()
        if not grad_loss.is_contiguous():
            grad_loss = grad_loss.contiguous()
        grad_loss = grad_loss.masked_fill(labels == padding_idx, 0).unsqueeze(-1)
        probs = torch.exp(logits - lse[:, None])
        n, c = probs.size()
        onehot = torch.zeros(n, c, device=logits.device, dtype=logits.dtype).scatter_(1, labels.unsqueeze(1), 1.0)
        return grad_loss * (probs - (1 - smoothing) * onehot - smoothing / c), None, None, None
""",
    ),
    "GroupNormManual": (  # a starred shape, var_mean, a check that raises
        "randn(2, 6, 3, 3), 3, randn(6), randn(6)",
        """
class GroupNormManual(Function):
    @staticmethod
    def forward(ctx, x, groups: int, gamma: Optional[Tensor] = None, beta: Optional[Tensor] = None, eps=1e-5) -> Tensor:
        B, C, *spatial = x.shape
        if C % groups != 0:
            raise ValueError(f"channels {C} not divisible by {groups}")
        xg = x.reshape(B, groups, -1)
        var, mean = torch.var_mean(xg, dim=-1, unbiased=False, keepdim=True)
        inv = torch.rsqrt(var + eps)
        xhat = ((xg - mean) * inv).view(B, C, *spatial)
        shape = [1, C] + [1] * len(spatial)
        out = xhat
        if gamma is not None:
            out = out * gamma.view(*shape)
        if beta is not None:
            out = out + beta.view(shape)
        ctx.save_for_backward(xhat, inv, gamma)
        ctx.groups = groups
        ctx.has_beta = beta is not None
        return out

    @staticmethod
    def backward(ctx, dy):
        xhat, inv, gamma = ctx.saved_tensors
        B, C = dy.shape[:2]
        dims = [0] + list(range(2, dy.dim()))
        dgamma = dbeta = None
        if ctx.needs_input_grad[2]:
            dgamma = (dy * xhat).sum(dim=dims)
        if ctx.has_beta and ctx.needs_input_grad[3]:
            dbeta = dy.sum(dims)
        if gamma is not None:
            dy = dy * gamma.view([1, C] + [1] * (dy.ndim - 2))
        dyg = dy.reshape(B, ctx.groups, -1)
        xg = xhat.reshape(B, ctx.groups, -1)
        m = dyg.size(-1)
        dx = inv / m * (m * dyg - dyg.sum(-1, True) - xg * (dyg * xg).sum(-1, True))
        return dx.view_as(dy), None, dgamma, dbeta, None
""",
    ),
    "GumbelST": (  # an output that is marked non-differentiable
        "randn(4, 5)",
        """
class GumbelST(Function):
    @staticmethod
    def forward(ctx, logits):
        idx = logits.argmax(dim=-1, keepdim=True)
        hard = torch.zeros_like(logits, memory_format=torch.legacy_contiguous_format).scatter_(-1, idx, 1.0)
        ctx.save_for_backward(logits)
        ctx.mark_non_differentiable(idx)
        return hard, idx

    @staticmethod
    def backward(ctx, g, _):
        logits, = ctx.saved_tensors
        p = logits.softmax(-1)
        return p * (g - (g * p).sum(-1, keepdim=True))
""",
    ),
    "NMSparse": (  # groups of entries: argsort, then scatter
        "randn(4, 8), 2, 4, 0.01",
        '''
class NMSparse(Function):
    """N:M structured sparsity with SR-STE."""
    @staticmethod
    def forward(ctx, weight, N, M, decay=0.0002):
        ctx.save_for_backward(weight)
        output = weight.clone()
        length = weight.numel()
        group = int(length / M)
        weight_temp = weight.detach().abs().reshape(group, M)
        index = torch.argsort(weight_temp, dim=1)[:, :int(M - N)]
        w_b = torch.ones(weight_temp.shape, device=weight_temp.device)
        w_b = w_b.scatter_(dim=1, index=index, value=0).reshape(weight.shape)
        ctx.mask = w_b
        ctx.decay = decay
        return output * w_b

    @staticmethod
    def backward(ctx, grad_output):
        weight, = ctx.saved_tensors
        return grad_output + ctx.decay * (1 - ctx.mask) * weight, None, None, None
''',
    ),
    "ChamferDist": (  # minima with their indices, several outputs that are not differentiable
        "randn(2, 5, 3), randn(2, 7, 3)",
        """
class ChamferDist(Function):
    @staticmethod
    def forward(ctx, xyz1, xyz2):
        B, N, _ = xyz1.size()
        M = xyz2.size(1)
        diff = xyz1.unsqueeze(2) - xyz2.unsqueeze(1)
        d = (diff ** 2).sum(-1)
        dist1, idx1 = d.min(2)
        dist2, idx2 = torch.min(d, dim=1)
        ctx.save_for_backward(xyz1, xyz2, idx1, idx2)
        ctx.mark_non_differentiable(idx1, idx2)
        return dist1, dist2, idx1.int(), idx2.int()

    @staticmethod
    def backward(ctx, g1, g2, _1, _2):
        xyz1, xyz2, idx1, idx2 = ctx.saved_tensors
        gx1 = torch.zeros_like(xyz1)
        gx2 = torch.zeros_like(xyz2)
        n2 = torch.gather(xyz2, 1, idx1.unsqueeze(-1).expand(-1, -1, 3))
        t = 2 * g1.unsqueeze(-1) * (xyz1 - n2)
        gx1 += t
        gx2.scatter_add_(1, idx1[..., None].repeat(1, 1, 3), -t)
        n1 = xyz1.gather(1, idx2[:, :, None].expand(-1, -1, xyz1.size(2)))
        t = 2 * g2[..., None] * (xyz2 - n1)
        gx2 += t
        gx1.scatter_add_(1, idx2[..., None].expand(-1, -1, 3), -t)
        return gx1, gx2
""",
    ),
    "FPS": (  # a loop that writes indices and keeps minima
        "randn(2, 9, 3), 4",
        """
class FPS(Function):
    @staticmethod
    def forward(ctx, xyz, npoint):
        B, N, C = xyz.shape
        centroids = torch.zeros(B, npoint, dtype=torch.long).to(xyz.device)
        distance = torch.ones(B, N).to(xyz) * 1e10
        farthest = torch.zeros(B, dtype=torch.long)
        batch_indices = torch.arange(B, dtype=torch.long).to(xyz.device)
        for i in range(npoint):
            centroids[:, i] = farthest
            centroid = xyz[batch_indices, farthest, :].view(B, 1, 3)
            dist = torch.sum((xyz - centroid) ** 2, -1)
            mask = dist < distance
            distance[mask] = dist[mask]
            farthest = torch.max(distance, -1)[1]
        ctx.mark_non_differentiable(centroids)
        return centroids

    @staticmethod
    def backward(ctx, a=None):
        return None, None
""",
    ),
    "SO3Log": (  # a matrix of stacked entries, series where an angle is small
        "randn(4, 3)",
        """
def hat(v):
    O = torch.zeros_like(v[..., 0])
    a, b, c = v.unbind(-1)
    return torch.stack([torch.stack([O, -c, b], -1), torch.stack([c, O, -a], -1), torch.stack([-b, a, O], -1)], -2)

class SO3Log(Function):
    @staticmethod
    def forward(ctx, w):
        theta2 = (w * w).sum(-1, keepdim=True)[..., None]
        theta = theta2.sqrt()
        small = theta < 1e-4
        A = torch.where(small, 1 - theta2 / 6, torch.sin(theta) / theta)
        B = torch.where(small, 0.5 - theta2 / 24, (1 - torch.cos(theta)) / theta2)
        W = hat(w)
        I = torch.eye(3, dtype=w.dtype, device=w.device).expand(*w.shape[:-1], 3, 3)
        R = I + A * W + B * torch.matmul(W, W)
        ctx.save_for_backward(R, w)
        return R

    @staticmethod
    def backward(ctx, grad):
        R, w = ctx.saved_tensors
        gens = torch.stack([hat(e) for e in torch.eye(3, dtype=w.dtype)])
        out = w.new_empty(w.shape)
        for i, gen in enumerate(gens):
            out[..., i] = (grad * (gen @ R)).sum(dim=(-1, -2))
        return out
""",
    ),
    "InplaceABN": (  # helpers with ctx, choices by strings, an activation in place
        "randn(4, 6), randn(6), randn(6), 0.01",
        """
ACT_LEAKY_RELU = "leaky_relu"
ACT_NONE = "none"

def _act_forward(ctx, x):
    if ctx.activation == ACT_LEAKY_RELU:
        F.leaky_relu_(x, negative_slope=ctx.slope)
    elif ctx.activation == ACT_NONE:
        pass

def _act_backward(ctx, x, dx):
    if ctx.activation == ACT_LEAKY_RELU:
        dx = torch.where(x >= 0, dx, dx * ctx.slope)
        x = torch.where(x >= 0, x, x / ctx.slope)
    return x, dx

class InplaceABN(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, slope=0.01):
        ctx.activation, ctx.slope = ACT_LEAKY_RELU, slope
        ctx.eps = 1e-5
        count = float(x.shape[0])
        mean = x.mean(0)
        var = x.var(0, unbiased=False)
        y = (x - mean).div_((var + ctx.eps).sqrt())
        y.mul_(weight).add_(bias)
        _act_forward(ctx, y)
        ctx.var = var
        ctx.save_for_backward(y, var, weight, bias)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dz):
        z, var, weight, bias = ctx.saved_tensors
        dz = dz.contiguous()
        z, dz = _act_backward(ctx, z, dz)
        xhat = (z - bias) / weight
        edz = dz.mean(0)
        eydz = (dz * xhat).mean(0)
        dx = (dz - edz - xhat * eydz) * weight / (var + ctx.eps).sqrt()
        dweight = (dz * xhat).sum(0) if ctx.needs_input_grad[1] else None
        dbias = dz.sum(0) if ctx.needs_input_grad[2] else None
        return dx, dweight, dbias, None
""",
    ),
    "DropPathish": (  # a package that may be missing, behind a flag
        "randn(3, 4)",
        """
try:
    import some_cuda_ext
    HAS_EXT = True
except ImportError:
    some_cuda_ext = None
    HAS_EXT = False

class DropPathish(Function):
    @staticmethod
    def forward(ctx, x):
        if HAS_EXT and x.is_cuda:
            return some_cuda_ext.forward(x)
        ctx.save_for_backward(x)
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        if HAS_EXT and x.is_cuda:
            return some_cuda_ext.backward(g, x)
        tsp = F.softplus(x).tanh()
        return g * (tsp + x * (1 - tsp * tsp) * x.sigmoid())
""",
    ),
    "MoEDispatch": (  # stable argsort, bincount, index_select
        "randn(6, 4), randint(0, 3, (6,)), rand(6), 3",
        """
class MoEDispatch(Function):
    @staticmethod
    def forward(ctx, x, expert, gate, num_experts):
        order = torch.argsort(expert, stable=True)
        counts = torch.bincount(expert, minlength=num_experts)
        offsets = torch.cumsum(counts, 0) - counts
        sorted_x = x.index_select(0, order)
        out = sorted_x * gate[order].unsqueeze(1)
        ctx.save_for_backward(x, order, gate)
        return out, counts

    @staticmethod
    def backward(ctx, g, _counts):
        x, order, gate = ctx.saved_tensors
        inv = torch.empty_like(order)
        inv[order] = torch.arange(order.numel(), device=order.device)
        gu = g[inv]
        return gu * gate[:, None], None, (gu * x).sum(1), None
""",
    ),
    "SSMScan": (  # a recurrence over an axis, and its adjoint that writes
        "randn(2, 5, 3), rand(2, 5, 3)",
        """
class SSMScan(Function):
    @staticmethod
    def forward(ctx, x, a):
        h = torch.zeros_like(x[:, 0])
        hs = []
        for t in range(x.shape[1]):
            h = a[:, t] * h + x[:, t]
            hs.append(h)
        hs = torch.stack(hs, dim=1)
        ctx.save_for_backward(hs, a)
        return hs

    @staticmethod
    def backward(ctx, g):
        hs, a = ctx.saved_tensors
        T = g.size(1)
        dx = torch.empty_like(g)
        da = torch.zeros_like(a)
        dh = torch.zeros_like(g[:, 0])
        for t in range(T - 1, -1, -1):
            dh = dh + g[:, t]
            dx[:, t] = dh
            if t > 0:
                da[:, t] = dh * hs[:, t - 1]
            dh = dh * a[:, t]
        return dx, da
""",
    ),
    "SymEig": (  # an eigendecomposition and its derivative
        "randn(4, 4)",
        """
class SymEig(Function):
    @staticmethod
    def forward(ctx, A):
        A = 0.5 * (A + A.transpose(-2, -1))
        s, u = torch.linalg.eigh(A)
        out = u @ torch.diag_embed(torch.exp(s)) @ u.transpose(-1, -2)
        ctx.save_for_backward(s, u)
        return out

    @staticmethod
    def backward(ctx, g):
        s, u = ctx.saved_tensors
        g = 0.5 * (g + g.mT)
        es = s.exp()
        d = s.unsqueeze(-1) - s.unsqueeze(-2)
        e = es.unsqueeze(-1) - es.unsqueeze(-2)
        eye = torch.eye(len(s), dtype=torch.bool)
        d[eye] = 1
        k = e / d
        k[eye] = es
        return u @ (k * (u.T @ g @ u)) @ u.T
""",
    ),
    "MultiOut": (  # as many outputs as sizes, gradients that may be None
        "randn(3, 4), [1, 3]",
        """
class MultiOut(Function):
    @staticmethod
    def forward(ctx, x, sizes):
        ctx.sizes = sizes
        ctx.set_materialize_grads(False)
        return tuple(t.clone() for t in torch.split(x, sizes, dim=1))

    @staticmethod
    def backward(ctx, *grads):
        ref = next(g for g in grads if g is not None)
        parts = [torch.zeros(ref.shape[0], n) if g is None else g for g, n in zip(grads, ctx.sizes)]
        return torch.cat(parts, dim=1), None
""",
    ),
    "ShiftOp": (  # writes to .data of the input through a buffer
        "randn(2, 4, 4, 8), 2",
        '''
class ShiftOp(torch.autograd.Function):
    """Temporal shift in place."""
    @staticmethod
    def forward(ctx, input, fold):
        ctx.fold_ = fold
        n, t, c, h = input.size()
        buffer = input.data.new(n, t, fold, h).zero_()
        buffer[:, :-1] = input.data[:, 1:, :fold]
        input.data[:, :, :fold] = buffer
        buffer.zero_()
        buffer[:, 1:] = input.data[:, :-1, fold: 2 * fold]
        input.data[:, :, fold: 2 * fold] = buffer
        return input

    @staticmethod
    def backward(ctx, grad_output):
        fold = ctx.fold_
        n, t, c, h = grad_output.size()
        buffer = grad_output.data.new(n, t, fold, h).zero_()
        buffer[:, 1:] = grad_output.data[:, :-1, :fold]
        grad_output.data[:, :, :fold] = buffer
        buffer.zero_()
        buffer[:, :-1] = grad_output.data[:, 1:, fold: 2 * fold]
        grad_output.data[:, :, fold: 2 * fold] = buffer
        return grad_output, None
''',
    ),
    "IndexFirstAxis": (  # gather and scatter of rows, sizes of the rest
        "randn(6, 2, 3), array([4, 0, 2, 2])",
        """
class IndexFirstAxis(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, indices):
        ctx.save_for_backward(indices)
        assert input.ndim >= 2
        ctx.first_axis_dim, other_shape = input.shape[0], input.shape[1:]
        second_dim = other_shape.numel()
        return torch.gather(
            input.flatten(1), 0, indices[:, None].expand(-1, second_dim)
        ).reshape(-1, *other_shape)

    @staticmethod
    def backward(ctx, grad_output):
        (indices,) = ctx.saved_tensors
        assert grad_output.ndim >= 2
        other_shape = grad_output.shape[1:]
        grad_output = grad_output.flatten(1)
        grad_input = torch.zeros(
            [ctx.first_axis_dim, grad_output.shape[1]],
            device=grad_output.device,
            dtype=grad_output.dtype,
        )
        grad_input.scatter_add_(0, indices[:, None].expand_as(grad_output), grad_output)
        return grad_input.reshape(ctx.first_axis_dim, *other_shape), None
""",
    ),
    "CTCish": (  # a helper with *args, infinities, a loop over time
        "randn(4, 6), randint(0, 6, (4,))",
        """
NEG_INF = float("-inf")

def log_add(*args):
    if all(a is None for a in args):
        return None
    a_max = args[0]
    for a in args[1:]:
        a_max = torch.maximum(a_max, a)
    lsp = torch.log(sum(torch.exp(a - a_max) for a in args))
    return a_max + lsp

class CTCish(Function):
    @staticmethod
    def forward(ctx, acts, labels):
        logp = F.log_softmax(acts, dim=-1)
        T, V = logp.shape
        alpha = torch.full((T,), NEG_INF)
        alpha[0] = logp[0, labels[0]]
        for t in range(1, T):
            stay = alpha[t - 1] + logp[t, 0]
            move = alpha[t - 1] + logp[t, labels[t]]
            alpha[t] = log_add(stay, move)
        ctx.save_for_backward(logp)
        return -alpha[-1]

    @staticmethod
    def backward(ctx, g):
        logp, = ctx.saved_tensors
        return g * logp.exp(), None
""",
    ),
    "BilinearWarp": (  # integer parts as indices, weights of four neighbours
        "randn(1, 2, 5, 5), randn(1, 2, 5, 5)",
        """
class BilinearWarp(Function):
    @staticmethod
    def forward(ctx, img, flow):
        B, C, H, W = img.shape
        yy, xx = torch.meshgrid(torch.arange(H), torch.arange(W), indexing="ij")
        x = (xx[None].float() + flow[:, 0]).clamp(0, W - 1.001)
        y = (yy[None].float() + flow[:, 1]).clamp(0, H - 1.001)
        x0, y0 = x.floor().long(), y.floor().long()
        wx, wy = (x - x0).unsqueeze(1), (y - y0).unsqueeze(1)
        flat = img.view(B, C, H * W)

        def read(yi, xi):
            idx = (yi * W + xi).view(B, 1, -1).expand(-1, C, -1)
            return flat.gather(2, idx).view(B, C, H, W)

        out = (1 - wy) * ((1 - wx) * read(y0, x0) + wx * read(y0, x0 + 1))
        out = out + wy * ((1 - wx) * read(y0 + 1, x0) + wx * read(y0 + 1, x0 + 1))
        ctx.save_for_backward(x0, y0, wx, wy)
        return out

    @staticmethod
    def backward(ctx, g):
        x0, y0, wx, wy = ctx.saved_tensors
        B, C, H, W = g.shape
        gi = torch.zeros(B, C, H * W, device=g.device, dtype=g.dtype)
        for dy in (0, 1):
            for dx in (0, 1):
                w = (wy if dy else 1 - wy) * (wx if dx else 1 - wx)
                idx = ((y0 + dy) * W + x0 + dx).view(B, 1, -1).expand(B, C, -1)
                gi.scatter_add_(2, idx, (g * w).view(B, C, -1))
        return gi.view(B, C, H, W), None
""",
    ),
    "EMACodebook": (  # nearest codes: distances by addmm, argmin, rows of a codebook
        "randn(5, 4), randn(6, 4)",
        """
class EMACodebook(Function):
    @staticmethod
    def forward(ctx, inputs, codebook):
        with torch.no_grad():
            embedding_size = codebook.size(1)
            inputs_size = inputs.size()
            inputs_flatten = inputs.view(-1, embedding_size)
            codebook_sqr = torch.sum(codebook ** 2, dim=1)
            inputs_sqr = torch.sum(inputs_flatten ** 2, dim=1, keepdim=True)
            distances = torch.addmm(codebook_sqr + inputs_sqr, inputs_flatten, codebook.t(), alpha=-2.0)
            _, indices_flatten = torch.min(distances, dim=1)
            indices = indices_flatten.view(*inputs_size[:-1])
        ctx.save_for_backward(indices_flatten, codebook)
        ctx.mark_non_differentiable(indices_flatten)
        codes_flatten = torch.index_select(codebook, dim=0, index=indices_flatten)
        codes = codes_flatten.view_as(inputs)
        return (codes, indices_flatten)

    @staticmethod
    def backward(ctx, grad_output, grad_indices):
        grad_inputs, grad_codebook = None, None
        if ctx.needs_input_grad[0]:
            grad_inputs = grad_output.clone()
        if ctx.needs_input_grad[1]:
            indices, codebook = ctx.saved_tensors
            embedding_size = codebook.size(1)
            grad_output_flatten = (grad_output.contiguous().view(-1, embedding_size))
            grad_codebook = torch.zeros_like(codebook)
            grad_codebook.index_add_(0, indices, grad_output_flatten)
        return (grad_inputs, grad_codebook)
""",
    ),
    "NamedTupleOut": (  # a namedtuple in forward and on ctx
        "randn(3, 4)",
        """
from collections import namedtuple
Stats = namedtuple("Stats", ["mean", "std"])

class NamedTupleOut(Function):
    @staticmethod
    def forward(ctx, x):
        stats = Stats(x.mean(0), x.std(0, unbiased=False))
        ctx.stats = stats
        return (x - stats.mean) / stats.std

    @staticmethod
    def backward(ctx, g):
        return g / ctx.stats.std[None]
""",
    ),
    "PartialLoop": (  # tensors by *args, lists that loops extend
        "[2, 3], randn(5, 3), randn(5, 3)",
        """
class PartialLoop(Function):
    @staticmethod
    def forward(ctx, sizes, *tensors):
        ctx.sizes = sizes
        ctx.n = len(tensors)
        outs = []
        for t in tensors:
            pieces = t.split(sizes, dim=0)
            outs.extend([p.mean(dim=0) for p in pieces])
        return torch.stack(outs)

    @staticmethod
    def backward(ctx, g):
        grads, k = [], 0
        for _ in range(ctx.n):
            parts = []
            for s in ctx.sizes:
                parts.append((g[k] / s).expand(s, -1))
                k += 1
            grads.append(torch.cat(parts, dim=0))
        return (None, *grads)
""",
    ),
    "AllFinite": (  # warnings and logging under a check, a try without effect
        "randn(3, 4)",
        """
import warnings
import logging
logger = logging.getLogger(__name__)

class AllFinite(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        if not torch.isfinite(x).all():
            warnings.warn("input is not finite")
        logger.debug("shape %s", x.shape)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        if g is None:
            return None
        try:
            g = g.clamp(-5, 5)
        except RuntimeError as e:
            print(f"failed: {e}")
            raise
        return torch.nan_to_num(g, nan=0.0, posinf=1e4, neginf=-1e4)
""",
    ),
    "WhitenedBatch": (  # one factor for a batch of right sides
        "rand(3, 3) + 1, randn(2, 3, 4)",
        """
class WhitenedBatch(Function):
    @staticmethod
    def forward(ctx, factor, b):
        y = torch.linalg.solve_triangular(factor, b, upper=False)
        ctx.save_for_backward(factor, y)
        return y

    @staticmethod
    def backward(ctx, g):
        factor, y = ctx.saved_tensors
        gb = torch.linalg.solve_triangular(factor.mT, g, upper=True)
        return -(gb @ y.mT).sum(0).tril(), gb
""",
    ),
}
