"""New tensors."""

import re

from fnjax._torch_ops.record import Call, Refuse, Template
from fnjax._torch_ops.registry import add_lines, add_operation

PLACE = "layout=None, device=None, pin_memory=False, requires_grad=False, memory_format=None"
_NEW = f"dtype=None, {PLACE}"
add_lines(f"""
torch.empty | *size, {_NEW} | jnp.empty(size, dtype=dtype) | float made
torch.empty_strided | size, stride, *, {_NEW} | jnp.empty(size, dtype=dtype) | float
torch.empty_permuted | size, physical_layout, *, {_NEW} | jnp.empty(size, dtype=dtype) | float
torch.full | size, fill_value, *, {_NEW} | jnp.full(size, fill_value, dtype=dtype) | same made
torch.zeros_like | input, *, {_NEW} | jnp.zeros_like(input, dtype=dtype) | same each
torch.ones_like | input, *, {_NEW} | jnp.ones_like(input, dtype=dtype) | same each
torch.empty_like | input, *, {_NEW} | jnp.empty_like(input, dtype=dtype) | same each
torch.full_like | input, fill_value, *, {_NEW} | jnp.full_like(input, fill_value, dtype=dtype) | same each
torch.arange | end, *, {_NEW} | jnp.arange(end, dtype=dtype) | int made sized
torch.logspace | start, end, steps, base=10.0, *, {_NEW} | _logspace(start, end, steps, base, dtype) | float
torch.eye | n, m=None, *, {_NEW} | jnp.eye(n, M=m, dtype=dtype) | float made
torch.tensor | data, *, {_NEW} | jnp.array(data, dtype=dtype) | same made copies of_data
torch.as_tensor torch.asarray | data, dtype=None, device=None, *, copy=None, requires_grad=False | jnp.asarray(data, dtype=dtype) | same maybe of_data
torch.from_numpy | ndarray | jnp.asarray(ndarray) | same
.new_tensor | input, data, *, {_NEW} | jnp.array(data, dtype=input.dtype) | same made copies of_data
torch.vander | x, N=None, increasing=False | jnp.vander(x, N=N, increasing=increasing) | same
""")  # fmt: skip


def _make_single(name: str, number: str) -> Template:
    """Return the rule of `torch.zeros(())`: like a number, it does not promote another dtype."""

    def build(call: Call) -> str:
        alone = call.read_literal("size") in {(), ((),)} and not call.is_given("dtype")
        return f"jnp.array({number})" if alone else f"jnp.{name}(size, dtype=dtype)"

    return build


for _name, _number in {"zeros": "0.0", "ones": "1.0"}.items():
    add_operation(f"torch.{_name}", f"*size, {_NEW}", _make_single(_name, _number), "float", made=True)


def _build_arange(call: Call) -> str:
    """Render an arange; a step of 1 is left out."""
    return (
        "jnp.arange(start, end, step, dtype=dtype)" if call.is_given("step") else "jnp.arange(start, end, dtype=dtype)"
    )


add_operation("torch.arange", f"start, end, step=1, *, {_NEW}", _build_arange, "int")


def _build_linspace(call: Call) -> str:
    """Render linspace, exact if the file rounds numbers: jnp.linspace may be below PyTorch's integer."""
    whole = call.is_given("dtype") and re.search("int|long|short", call.find_named_dtype("dtype"))
    name = "_linspace" if whole or call.rounding else "jnp.linspace"
    return f"{name}(start, end, steps, dtype=dtype)"


add_operation("torch.linspace", f"start, end, steps, *, {_NEW}", _build_linspace, "float", made=True)


def _build_scalar(call: Call) -> str:
    return "jnp.array(s, dtype=(dtype))" if call.is_given("dtype") else "jnp.array(s, dtype=jnp.float32)"


add_operation("torch.scalar_tensor", f"s, *, {_NEW}", _build_scalar)


def _make_new_like(template: str) -> Template:
    """Return the rule of `x.new_zeros(size)`, which has x's dtype by default."""

    def build(call: Call) -> str:
        return template.replace("DTYPE", "(dtype)" if call.is_given("dtype") else "input.dtype")

    return build


for _name in ("zeros", "ones", "empty"):
    add_operation(
        f".new_{_name}", f"input, *size, {_NEW}", _make_new_like(f"jnp.{_name}(size, dtype=DTYPE)"), made=True
    )
add_operation(
    ".new_full",
    f"input, size, fill_value, *, {_NEW}",
    _make_new_like("jnp.full(size, fill_value, dtype=DTYPE)"),
    made=True,
)
add_operation(".new_empty_strided", f"input, size, stride, *, {_NEW}", _make_new_like("jnp.empty(size, dtype=DTYPE)"))
add_operation(".new_tensor", f"input, data, *, {_NEW}", _make_new_like("jnp.array(data, dtype=DTYPE)"))


def _make_window(name: str) -> Template:
    """Render a window of jnp; the periodic form is the symmetric one with one more element, without its last."""

    def build(call: Call) -> str:
        periodic = call.read_literal("periodic")
        if not isinstance(periodic, bool):
            raise Refuse("periodic must be True or False as a literal")
        return f"jnp.{name}(window_length + 1)[:-1]" if periodic else f"jnp.{name}(window_length)"

    return build


for _name, _torch in {"hanning": "hann", "bartlett": "bartlett", "blackman": "blackman", "hamming": "hamming"}.items():
    add_operation(f"torch.{_torch}_window", f"window_length, periodic=True, *, {_NEW}", _make_window(_name), "float")


def _build_kaiser(call: Call) -> str:
    periodic = call.read_literal("periodic")
    if not isinstance(periodic, bool):
        raise Refuse("periodic must be True or False as a literal")
    return "jnp.kaiser(window_length + 1, beta)[:-1]" if periodic else "jnp.kaiser(window_length, beta)"


add_operation("torch.kaiser_window", f"window_length, periodic=True, beta=12.0, *, {_NEW}", _build_kaiser, "float")
