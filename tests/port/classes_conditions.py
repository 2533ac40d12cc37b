"""Functions with conditions that ask Python and tensors, and with Python's choices among tensors' values.

Each is run with each line of arguments.
"""

_FORWARDS = {
    "ClipByNorm": (
        ["randn(4), None", "randn(4) * 9, 1.0"],
        """
n = x.norm()
if k is not None and n > k:
    x = x * (k / n)
return x * 1
""",
    ),
    "ClipUnless": (
        ["randn(4), None", "randn(4) * 9, 1.0"],
        """
if k is None or x.norm() <= k:
    return x * 1
return x * (k / x.norm())
""",
    ),
    "ClipEarly": (
        ["randn(4), None", "randn(4) * 9, 1.0"],
        """
if k is not None and x.norm() > k:
    return x * (k / x.norm())
y = x * 2
return y + 1
""",
    ),
    "ClipByOption": (
        ["randn(4), {}", "randn(4) * 9, {'clip': 1.0}"],
        """
if 'clip' in k and x.norm() > k['clip']:
    x = x / x.norm() * k['clip']
return x * 1
""",
    ),
    "ClipAtShape": (
        ["randn(4), 0", "randn(2, 4), 0"],
        """
if x.dim() == 2 and x.sum() > -99:
    x = x - x[:, :1]
return x * 2
""",
    ),
    "PythonLast": (
        ["randn(4), 2"],
        """
if x.max() > -9 and k:
    x = x * (2 // k)
return x * 1
""",
    ),
    "NumberOrArray": (
        ["randn(4), 0", "randn(4), 2"],
        """
if k > 0 and x.max() > -9:
    x = x / k
return x * 1
""",
    ),
    "NotBoth": (
        ["randn(4), None", "randn(4), 0.1"],
        """
if not (k is not None and x.max() > k):
    return x * 2
return x * k
""",
    ),
    "WithElse": (
        ["randn(4), None", "randn(4), 9.0"],
        """
if k is not None and x.max() > k:
    y = x * k
elif x.min() < -9:
    y = x
else:
    y = x - 1
return y
""",
    ),
    "InAVariable": (
        ["randn(4), None", "randn(4), 0.1"],
        """
big = k is not None and x.max() > k
if big:
    x = x * k
y = x + 1 if not big else x - k
return y
""",
    ),
    "InAnExpression": (
        ["randn(4), None", "randn(4), 9.0"],
        """
return x * k if k is not None and x.max() > k else x - 1
""",
    ),
    "CheckedOption": (
        ["randn(4), 9.0"],
        """
assert k is None or x.max() < k and x.min() > -k
return x * 2
""",
    ),
    "RunningMinimum": (
        ["randn(4), None"],
        """
low = None
for v in (x * 2, x * 3):
    m = v.max()
    if low is None or m < low:
        low = m
best = None
for v in (x * 2, x * 3):
    best = v.max() if best is None or v.max() > best else best
return x / low + best
""",
    ),
    "Skipping": (
        ["randn(6), None"],
        """
s = torch.zeros((), dtype=x.dtype)
for i in range(6):
    if x[i] < 0:
        continue
    if x[i] > 1:
        s = s + 1
        continue
    s = s + x[i]
return x * s
""",
    ),
    "OverEntries": (
        ["randn(6), None"],
        """
n = 0
for v in x * 2:
    if k is not None or v < 0:
        continue
    n += 1
return x * n
""",
    ),
    "AnyOf": (
        ["randn(4), None", "randn(4) + 9, 2"],
        """
if any(v < 0 for v in x):
    x = x * 2
if all([v > 0 for v in (x.min(), x.max())]) and k:
    x = x * k
if not any(d > 9 for d in x.shape):
    x = x + 1
return x * 1
""",
    ),
    "FromADictionary": (
        ["randn(4), None"],
        """
stats = {'scale': x.abs().max(), 'n': 4}
stats['low'] = x.min()
if stats['scale'] > 0:
    x = x / stats['scale']
if stats['low'] < 0:
    x = x + stats['n']
if stats['n'] > 3:
    x = x * 2
return x * 1
""",
    ),
    "GivenOrFound": (
        ["randn(4), 2.0", "randn(4), 0.0"],
        """
s = k or x.abs().max()
y = x / s if s > 1 else x * 2
return y * max(s, 1e-8)
""",
    ),
    "WhereItLies": (
        ["randn(4), None"],
        """
if x.device.type == 'cuda' or torch.is_grad_enabled():
    return x * 100
if x.device.type != 'cpu':
    return x * 10
return x * 2
""",
    ),
}


def _class(name: str, body: str) -> str:
    lines = "".join(f"        {line}\n" for line in body.strip().splitlines())
    return (
        f"class {name}(Function):\n    @staticmethod\n    def forward(ctx, x, k):\n{lines}\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g * 1, None\n"
    )


CASES = {
    f"{name}{i}": (given, _class(f"{name}{i}", body))
    for name, (lines, body) in _FORWARDS.items()
    for i, given in enumerate(lines)
}
