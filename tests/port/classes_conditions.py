"""Functions with conditions that ask Python and tensors, and with Python's choices among tensors' values.

Each is run with each line of arguments.
"""

_FORWARDS = {
    "ClipByNorm": (  # Python's condition first, then the tensor's
        ["randn(4), None", "randn(4) * 9, 1.0"],
        """
n = x.norm()
if k is not None and n > k:
    x = x * (k / n)
return x * 1
""",
    ),
    "ClipUnless": (  # a return where Python or the tensor says so
        ["randn(4), None", "randn(4) * 9, 1.0"],
        """
if k is None or x.norm() <= k:
    return x * 1
return x * (k / x.norm())
""",
    ),
    "ClipEarly": (  # a return where both say so, and code after it
        ["randn(4), None", "randn(4) * 9, 1.0"],
        """
if k is not None and x.norm() > k:
    return x * (k / x.norm())
y = x * 2
return y + 1
""",
    ),
    "ClipByOption": (  # a key in a dictionary as Python's condition
        ["randn(4), {}", "randn(4) * 9, {'clip': 1.0}"],
        """
if 'clip' in k and x.norm() > k['clip']:
    x = x / x.norm() * k['clip']
return x * 1
""",
    ),
    "ClipAtShape": (  # a number of dimensions as Python's condition
        ["randn(4), 0", "randn(2, 4), 0"],
        """
if x.dim() == 2 and x.sum() > -99:
    x = x - x[:, :1]
return x * 2
""",
    ),
    "PythonLast": (  # the tensor's condition first, Python's guards a division
        ["randn(4), 2"],
        """
if x.max() > -9 and k:
    x = x * (2 // k)
return x * 1
""",
    ),
    "NumberOrArray": (  # a number that may be an array, in a condition
        ["randn(4), 0", "randn(4), 2"],
        """
if k > 0 and x.max() > -9:
    x = x / k
return x * 1
""",
    ),
    "NotBoth": (  # `not` of Python's and the tensor's condition
        ["randn(4), None", "randn(4), 0.1"],
        """
if not (k is not None and x.max() > k):
    return x * 2
return x * k
""",
    ),
    "WithElse": (  # elif and else after such a condition
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
    "InAVariable": (  # such a condition in a variable, used twice
        ["randn(4), None", "randn(4), 0.1"],
        """
big = k is not None and x.max() > k
if big:
    x = x * k
y = x + 1 if not big else x - k
return y
""",
    ),
    "InAnExpression": (  # such a condition in an expression
        ["randn(4), None", "randn(4), 9.0"],
        """
return x * k if k is not None and x.max() > k else x - 1
""",
    ),
    "CheckedOption": (  # an assert of such a condition
        ["randn(4), 9.0"],
        """
assert k is None or x.max() < k and x.min() > -k
return x * 2
""",
    ),
    "RunningMinimum": (  # None at first, then a minimum of tensors, in a loop
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
    "FromADictionary": (  # tensors and numbers in one dictionary, in conditions
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
    "GivenOrFound": (  # `k or x`, Python's number or a tensor
        ["randn(4), 2.0", "randn(4), 0.0"],
        """
s = k or x.abs().max()
y = x / s if s > 1 else x * 2
return y * max(s, 1e-8)
""",
    ),
    "WhereItLies": (  # conditions on the device and on gradient mode
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


CASES = {name: ("\n".join(lines), _class(name, body)) for name, (lines, body) in _FORWARDS.items()}
