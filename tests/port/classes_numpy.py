"""Functions with NumPy and SciPy inside."""

CASES = {
    "BesselI": (  # SciPy's special functions, an order that may be 0; ctx is called self
        "1.5, rand(5) + 1",
        """
import numpy as np
import scipy.special

class BesselI(Function):
    @staticmethod
    def forward(self, v, z):
        self.save_for_backward(z)
        self.v = v
        z_cpu = z.data.cpu().numpy()
        if np.isclose(v, 0):
            output = scipy.special.i0e(z_cpu, dtype=z_cpu.dtype)
        else:
            output = scipy.special.ive(v, z_cpu, dtype=z_cpu.dtype)
        return torch.Tensor(output).to(z.device)

    @staticmethod
    def backward(self, g):
        z = self.saved_tensors[-1]
        v = self.v
        return None, g * (BesselI.apply(v - 1, z) - BesselI.apply(v, z) * (v + z) / z)
""",
    ),
    "MatrixRoot": (  # SciPy's matrix functions in double precision
        "rand(3, 3)",
        """
import numpy as np
import scipy.linalg

class MatrixRoot(Function):
    @staticmethod
    def forward(ctx, x):
        m = x.detach().cpu().numpy().astype(np.float64)
        m = m @ m.T + 2 * np.eye(3)
        root = torch.from_numpy(scipy.linalg.sqrtm(m).real).to(x)
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx, g):
        root, = ctx.saved_tensors
        root = root.data.cpu().numpy().astype(np.float64)
        gm = g.data.cpu().numpy().astype(np.float64)
        return torch.from_numpy(scipy.linalg.solve_sylvester(root, root, gm)).to(g)
""",
    ),
    "NumpyMixed": (  # NumPy arrays and tensors in one expression
        "randn(3, 4)",
        """
import numpy as np
from scipy import special

class NumpyMixed(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().numpy()
        ctx.save_for_backward(x)
        both = x * a
        return both.std(1) + torch.from_numpy(np.logaddexp(a, 0).max(1)) + torch.from_numpy(a.std(1)).std()

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        s = torch.from_numpy(special.expit(x.numpy()) * special.kv(1, 1 + np.abs(x.numpy())))
        return g[:, None] * s.max(dim=1, keepdim=True)[0] * s
""",
    ),
    "DistanceMap": (  # SciPy on a mask, run on the host
        "rand(7, 7), randn(7, 7)",
        """
from scipy.ndimage import distance_transform_edt as edt

class DistanceMap(Function):
    @staticmethod
    def forward(ctx, x, y):
        inside = x.detach().cpu().numpy() > 0.5
        d = torch.from_numpy(edt(inside) - edt(~inside)).float()
        ctx.save_for_backward(d)
        return (d * y).mean()

    @staticmethod
    def backward(ctx, g):
        d, = ctx.saved_tensors
        return None, g * d / d.numel()
""",
    ),
    "ConstantIndices": (  # indices that NumPy computes from sizes
        "randn(2, 5)",
        """
import numpy as np

def mirrored(places, size):
    places = np.asanyarray(places)
    period = np.fmod(places + 2 * size, 2 * size)
    back = np.where(period >= size, 2 * size - 1 - period, period)
    return np.array(back, dtype=places.dtype)

def border(size, width):
    return mirrored(np.arange(-width, size + width, dtype="int32"), size)

pad = border

class ConstantIndices(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.size = x.shape[1]
        return x[:, pad(x.shape[1], 2)]

    @staticmethod
    def backward(ctx, g):
        grad = torch.zeros(g.shape[0], ctx.size, dtype=g.dtype)
        return grad.index_add(1, torch.as_tensor(pad(ctx.size, 2)), g)
""",
    ),
}
