"""Draw the pictures of docs/guides/pictures.md: python docs/pictures/draw.py, with the extras graph and examples."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp

import fnjax

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "examples"))

from digits import LayerNorm, Swish  # noqa: E402 - found through the path above
from sinh import SinhIntermediates, SinhOutputs  # noqa: E402 - as above
from square_exp import Exp, Square  # noqa: E402 - as above


class CubeOnce(fnjax.Function):
    """x³ with a backward that must not be differentiated."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @fnjax.once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad_output


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def network(params, x):
    for layer in params:
        x = Swish.apply(LayerNorm.apply(x @ layer["kernel"], layer["weight"], layer["bias"]))
    return jnp.mean(x**2)


LAYER = {"kernel": array(64, 64), "weight": array(64), "bias": array(64)}
PICTURES = {
    "chain": lambda: fnjax.make_dot(lambda x: jnp.sum(Exp.apply(jnp.sin(Square.apply(x)))), array(1000)),
    "square": lambda: fnjax.make_dot(Square.apply, array(1000), order=2),
    "exp": lambda: fnjax.make_dot(Exp.apply, array(1000), order=2),
    "sinh_outputs": lambda: fnjax.make_dot(SinhOutputs.apply, array(1000), order=2),
    "sinh_intermediates": lambda: fnjax.make_dot(SinhIntermediates.apply, array(1000), order=2),
    "once": lambda: fnjax.make_dot(CubeOnce.apply, array(1000), order=2),
    "layer_norm": lambda: fnjax.make_dot(LayerNorm.apply, array(32, 8), array(8), array(8), opened=True),
    "network": lambda: fnjax.make_dot(network, [LAYER] * 6, array(32, 64), argnums=0),
}


def main():
    for name, make in PICTURES.items():
        path = make().render(HERE / f"{name}.svg")
        print(f"{path}: {Path(path).stat().st_size} bytes")


if __name__ == "__main__":
    main()
