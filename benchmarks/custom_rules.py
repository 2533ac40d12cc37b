"""Derivatives of the same rules as a Function, a jax.custom_vjp and a hijax primitive: what is right, what raises.

python benchmarks/custom_rules.py

Four rules, each for the loss sum(F(x) ** 3), next to its closed form: a sine that saves its input; an exponential that
saves its output; a sine that NumPy computes; rounding with the gradient of the identity. A custom_vjp is written in two
ways: its forward rule computes the output, or calls the function itself, which then has the custom rule at each order.
A hijax primitive has rules for reverse mode and calls itself, as JAX's documentation says.

Then two pullbacks of one staged call of a product, both taken before either is used; the rules save only what the
gradients that are asked for need.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import hijax

import fnjax

HiPrim = getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive  # its name until JAX 0.11


def host_sin(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")


# forward; (x, y) → what is saved; saved → slope; NumPy: the slope of the rule, and the slope of that
RULES = {
    "saved input": (jnp.sin, lambda x, y: x, jnp.cos, np.cos, lambda x: -np.sin(x)),
    "saved output": (jnp.exp, lambda x, y: y, lambda y: y, np.exp, np.exp),
    "NumPy": (host_sin, lambda x, y: x, jnp.cos, np.cos, lambda x: -np.sin(x)),
    "rounding": (jnp.rint, lambda x, y: y, jnp.ones_like, np.ones_like, np.zeros_like),
}
VALUES = {"saved input": np.sin, "saved output": np.exp, "NumPy": np.sin, "rounding": np.rint}


def by_custom_vjp(forward, save, slope, *, calls_itself):
    f = jax.custom_vjp(forward)

    def fwd(x):
        y = f(x) if calls_itself else forward(x)
        return y, save(x, y)

    f.defvjp(fwd, lambda saved, ct: (ct * slope(saved),))
    return f


def by_hijax(forward, save, slope):
    class F(HiPrim):
        def __init__(self, aval):
            self.in_avals, self.out_aval, self.params = (aval,), aval, {}
            super().__init__()

        def expand(self, x):
            return forward(x)

        def vjp_fwd(self, _, x):
            y = self(x)
            return y, save(x, y)

        def vjp_bwd_retval(self, saved, ct):
            return (ct * slope(saved),)

    return lambda x: F(jax.typeof(x))(x)


def by_fnjax(forward, save, slope):
    class F(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            y = forward(x)
            ctx.save_for_backward(save(x, y))
            return y

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * slope(*ctx.saved_tensors)

    return F.apply


FORMS = {
    "custom_vjp": lambda *rule: by_custom_vjp(*rule, calls_itself=False),
    "calling itself": lambda *rule: by_custom_vjp(*rule, calls_itself=True),
    "hijax": by_hijax,
    "fnjax": by_fnjax,
}
QUANTITIES = {
    "grad": jax.grad,
    "vmap of grad": lambda loss: jax.vmap(jax.grad(loss)),
    "grad of checkpoint": lambda loss: jax.grad(jax.checkpoint(loss)),
    "grad of grad": lambda loss: jax.grad(lambda x: jnp.sum(jax.grad(loss)(x))),
    "Hessian": lambda loss: lambda x: jnp.diagonal(jax.hessian(loss)(x)),
    "jvp of grad": lambda loss: lambda x: jax.jvp(jax.grad(loss), (x,), (jnp.ones_like(x),))[1],
}
X = np.array([0.7, 1.6], np.float32)


def wanted(rule, quantity):
    *_, slope, second = RULES[rule]
    y, s = VALUES[rule](X), slope(X)
    return 3 * y**2 * s if quantity in list(QUANTITIES)[:3] else 6 * y * s**2 + 3 * y**2 * second(X)


def verdict(run, want):
    try:
        got = run()
    except Exception as e:  # noqa: BLE001 - whatever it raises is the result
        return type(e).__name__
    same = jax.tree.map(lambda g, w: np.allclose(g, w, rtol=1e-5), got, want)
    return "right" if all(jax.tree.leaves(same)) else "WRONG"


def product_by_custom_vjp():
    f = jax.custom_vjp(lambda x, y: x * y)

    def fwd(x, y):
        return x.value * y.value, (x.value if y.perturbed else None, y.value if x.perturbed else None)

    f.defvjp(fwd, lambda saved, ct: tuple(None if s is None else ct * s for s in saved[::-1]), symbolic_zeros=True)
    return f


def product_by_hijax():
    class Product(HiPrim):
        def __init__(self, x, y):
            self.in_avals, self.out_aval, self.params = (x, y), x, {}
            super().__init__()

        def expand(self, x, y):
            return x * y

        def vjp_fwd(self, needs, x, y):
            return self(x, y), (x if needs[1] else None, y if needs[0] else None)

        def vjp_bwd_retval(self, saved, ct):
            return tuple(None if s is None else ct * s for s in saved[::-1])

    return lambda x, y: Product(jax.typeof(x), jax.typeof(y))(x, y)


class Product(fnjax.Function):
    @staticmethod
    def forward(ctx, x, y):
        needs_x, needs_y = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_y else None, y if needs_x else None)
        return x * y

    @staticmethod
    def backward(ctx, grad_output):
        return tuple(None if s is None else grad_output * s for s in ctx.saved_tensors[::-1])


def pull_interleaved(f, x, y, ct):
    """Take a pullback in x, then one in y; then use the first."""
    _, in_x = jax.vjp(lambda x: f(x, y), x)
    _, in_y = jax.vjp(lambda y: f(x, y), y)
    return in_x(ct)[0], in_y(ct)[0]


def rows():
    """Return for each derivative of each rule what becomes of it in each form."""
    table = {}
    for rule, (forward, save, slope, *_) in RULES.items():
        fs = {form: make(forward, save, slope) for form, make in FORMS.items()}
        for quantity, D in QUANTITIES.items():
            table[f"{rule}: {quantity}"] = {
                form: verdict(lambda f=f, D=D: D(lambda x: jnp.sum(f(x) ** 3))(X), wanted(rule, quantity))
                for form, f in fs.items()
            }
    x, y = np.float32([1, 2, 3]), np.float32([10, 20, 30])
    products = {"custom_vjp": product_by_custom_vjp(), "hijax": product_by_hijax(), "fnjax": Product.apply}
    table["interleaved pullbacks of jit"] = {
        form: verdict(lambda f=f: pull_interleaved(jax.jit(f), x, y, jnp.ones(3)), (y, x))
        for form, f in products.items()
    }
    return table


def main():
    print(f"JAX {jax.__version__}, Python {sys.version.split()[0]}, fnjax {fnjax.__version__}")
    print((f"{'':34}" + "".join(f"{form:22}" for form in FORMS)).rstrip())
    for name, found in rows().items():
        print(f"{name:34}" + "".join(f"{found.get(form, ''):22}" for form in FORMS).rstrip())


if __name__ == "__main__":
    main()
