"""Functions with NumPy and SciPy inside."""

CASES = {
    "NumpyFft": (  # NumPy's Fourier transforms in forward and backward
        "randn(6, 6)",
        """
from numpy.fft import irfft2, rfft2

class NumpyFft(Function):
    @staticmethod
    def forward(ctx, input):
        numpy_input = input.detach().numpy()
        return input.new(abs(rfft2(numpy_input)))

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.new(irfft2(grad_output.numpy()))
""",
    ),
    "ScipyConv": (  # SciPy's convolutions, and a write to a NumPy array
        "randn(8, 8), randn(3, 3), randn(1, 1)",
        """
import numpy as np
from scipy.signal import convolve2d, correlate2d

class ScipyConv(Function):
    @staticmethod
    def forward(ctx, image, kernel, bias):
        image, kernel, bias = image.detach(), kernel.detach(), bias.detach()
        result = correlate2d(image.numpy(), kernel.numpy(), mode="valid")
        result += bias.numpy()
        ctx.save_for_backward(image, kernel, bias)
        return torch.as_tensor(result, dtype=image.dtype)

    @staticmethod
    def backward(ctx, g):
        image, kernel, bias = ctx.saved_tensors
        g = g.detach().numpy()
        grad_bias = np.sum(g, keepdims=True)
        grad_image = convolve2d(g, kernel.numpy(), mode="full")
        grad_kernel = correlate2d(image.numpy(), g, mode="valid")
        return torch.from_numpy(grad_image), torch.from_numpy(grad_kernel).float(), torch.from_numpy(grad_bias)
""",
    ),
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
    "NumpyMethods": (  # methods and sizes of NumPy arrays
        "randn(3, 5)",
        """
import numpy as np

class NumpyMethods(Function):
    @staticmethod
    def forward(ctx, x):
        a = x.detach().cpu().numpy()
        z = (a - a.mean(axis=1, keepdims=True)) / (a.std(axis=1, keepdims=True) + 1e-3) + a.max(axis=1, keepdims=True)
        ctx.count = a.size
        ctx.save_for_backward(x)
        return torch.from_numpy(z * (2 * a).var())

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        clipped = np.clip(g.numpy(), a_min=-1, a_max=1) * np.sign(x.numpy())
        return torch.tensor(clipped, dtype=g.dtype, device=g.device) / ctx.count
""",
    ),
    "NumpySmoothing": (  # a helper that fills a NumPy array
        "randn(3, 5), 0.7",
        """
import numpy as np

def smooth(a, alpha):
    out = np.zeros(a.shape, dtype=np.float32)
    out[:, 0] = a[:, 0]
    for t in range(1, a.shape[1]):
        out[:, t] = alpha * out[:, t - 1] + (1 - alpha) * a[:, t]
    return out - out.std()

class NumpySmoothing(Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return torch.from_numpy(smooth(x.detach().numpy(), alpha)).to(x.device)

    @staticmethod
    def backward(ctx, g):
        a = g.numpy()
        grad = np.zeros_like(a)
        carry = np.zeros(a.shape[0], dtype=a.dtype)
        for t in range(a.shape[1] - 1, 0, -1):
            carry = ctx.alpha * carry + a[:, t]
            grad[:, t] = (1 - ctx.alpha) * carry
        grad[:, 0] = ctx.alpha * carry + a[:, 0]
        return torch.from_numpy(grad), None
""",
    ),
    "NumpyTable": (  # a constant table of NumPy as a lookup
        "rand(6) * 4 - 1",
        """
import numpy as np

LEVELS = np.array([0.0, 0.5, 2.0, 1.0], dtype=np.float32)

class NumpyTable(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.scale = np.sqrt(np.prod(x.shape))
        steps = np.array([1, 2, 1, 3])
        index = np.clip(np.floor(x.detach().numpy()), 0, 3).astype(np.int64)
        return torch.from_numpy(LEVELS[index] * steps[index]).float()

    @staticmethod
    def backward(ctx, g):
        return g / ctx.scale
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
