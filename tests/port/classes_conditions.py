"""Functions with conditions that ask Python and tensors, and with Python's choices among tensors' values.

Each is run with each line of arguments.
"""

_FORWARDS = {
    "CheckedOption": (  # an assert of such a condition
        ["randn(4), 9.0"],
        """
assert k is None or x.max() < k and x.min() > -k
return x * 2
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


def make_class(name: str, body: str) -> str:
    """The text of a class with that body of forward, whose gradient is that of its result."""
    lines = "".join(f"        {line}\n" for line in body.strip().splitlines())
    return (
        f"class {name}(Function):\n    @staticmethod\n    def forward(ctx, x, k):\n{lines}\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g * 1, None\n"
    )


CASES = {name: ("\n".join(lines), make_class(name, body)) for name, (lines, body) in _FORWARDS.items()}
