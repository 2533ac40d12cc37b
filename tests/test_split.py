"""split_vjp: the two halves of a backward pass next to jax.vjp."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from fnjax._primitives.identity import identify

WIDTH = 8
MESH = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])


def numbers(*shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape) / np.sqrt(shape[-1]), jnp.float32)


class Product(fnjax.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        return grad_output @ w.T, x.T @ grad_output


@jax.custom_vjp
def product_of_jax(x, w):
    return x @ w


product_of_jax.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, g: (2 * g @ kept[1].T, 3 * kept[0].T @ g))


def mlp(weights, x):
    for matrix, bias in weights:
        x = jnp.tanh(x @ matrix + bias)
    return x


def block(w, x):
    h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w["gain"]
    q, k, v = (h @ w[name] for name in "qkv")
    x = x + jax.nn.softmax(q @ k.swapaxes(-1, -2)) @ v @ w["o"]
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"]


def shared(w, x):
    x = jnp.tanh(x @ w["q"])
    return {"once more": jnp.sin(x @ w["q"]), "count": jnp.arange(3) + w["steps"]}


def convolution(w, x):
    return jax.nn.relu(jax.lax.conv(x, w["kernel"], (1, 1), "SAME") + w["bias"][:, None, None]) * w["scale"]


def branches(w, x):
    one, other = (lambda x: jnp.tanh(x @ w["q"]) @ w["k"]), (lambda x: jnp.sin(x @ w["v"]))
    return jax.lax.cond(x.sum() > 0, one, other, x) + jax.lax.cond(x.sum() < 0, one, other, x)


def dropped(w, inputs):
    key, x = inputs
    return jax.random.bernoulli(key, 0.5, x.shape) * (x @ w["q"])


def over_devices(check_vma):
    def inside(q, k, v, x):
        return jax.lax.psum(jnp.tanh(x @ q) @ k, "i") @ v

    specs = (jax.P(None, "i"), jax.P("i", None), jax.P(), jax.P())
    run = jax.shard_map(inside, mesh=MESH, in_specs=specs, out_specs=jax.P(), check_vma=check_vma)
    return lambda w, x: run(w["q"], w["k"], w["v"], x)


def scanned(step):
    return lambda w, x: jax.lax.scan(lambda x, w: (step(w, x), None), x, w)[0]


SIZES = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH), "gain": (WIDTH,)}
W = {name: numbers(*size, seed=1) for name, size in SIZES.items()}
W |= {"up": numbers(WIDTH, 4 * WIDTH), "down": numbers(4 * WIDTH, WIDTH)}
LAYERS = jax.tree.map(lambda x: jnp.stack([x, x * 0.9, x * 1.1]), W)
X, BATCH = numbers(6, WIDTH), numbers(2, 6, WIDTH)
FUNCTIONS = lambda w, x: jax.nn.silu(Product.apply(jnp.tanh(Product.apply(x, w["q"])), w["k"]))
CASES = {
    "mlp": (mlp, [(W["q"], W["gain"]), (W["k"], W["gain"])], X),
    "transformer block": (block, W, BATCH),
    "scan": (scanned(block), LAYERS, BATCH),
    "scan of checkpoints": (scanned(jax.checkpoint(block)), LAYERS, BATCH),
    "Functions": (FUNCTIONS, W, X),
    "scan of Functions": (scanned(FUNCTIONS), LAYERS, X),
    "custom_vjp": (lambda w, x: product_of_jax(jnp.tanh(product_of_jax(x, w["q"])), w["k"]), W, X),
    "weights used twice": (shared, W | {"steps": jnp.int32(2)}, X),
    "one layer many times": (lambda w, x: jax.lax.fori_loop(0, 4, lambda i, x: block(w, x), x), W, X),
    "convolution": (convolution, {"kernel": numbers(4, 3, 3, 3), "bias": numbers(4), "scale": 2}, numbers(2, 3, 8, 8)),
    "cond": (branches, W, X),
    "jit": (lambda w, x: jax.jit(block)(w, jax.jit(block)(w, x)), W, X),
    "shard_map": (over_devices(True), W, X),
    "shard_map, unchecked": (over_devices(False), W, X),
    "dropout": (dropped, W, (jax.random.key(0), X)),
    "complex": (lambda w, x: jnp.sin(x @ w), W["q"] + 1j * W["k"], X * (1 + 2j)),
    "tokens": (lambda w, tokens: w[tokens], W["q"], jnp.array([1, 2, 1])),
    "nothing for the weights": (lambda w, x: x * 2, W, X),
}
CASES["bfloat16"] = (block, *jax.tree.map(lambda x: x.astype(jnp.bfloat16), (W, BATCH)))

QUICK = {"mlp", "scan of Functions", "weights used twice", "cond", "custom_vjp", "tokens"}  # the others: make test-all


def marked(names):
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names]


def is_float(x):
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def by_vjp(f, weights, inputs, cotangent):
    """Output and gradients by jax.vjp in the leaves that are floats, None for the others."""
    leaves, tree = jax.tree.flatten((weights, inputs))
    moving = [is_float(x) for x in leaves]

    def of_moving(*given):
        given = iter(given)
        return f(*tree.unflatten([next(given) if m else x for m, x in zip(moving, leaves, strict=True)]))

    out, pullback = jax.vjp(of_moving, *(x for x, m in zip(leaves, moving, strict=True) if m))
    zero = lambda o, ct: np.zeros(o.shape, jax.dtypes.float0) if ct is None else ct
    grads = iter(pullback(jax.tree.map(zero, out, cotangent)))
    return out, *tree.unflatten([next(grads) if m else None for m in moving])


def cotangent_of(f, weights, inputs):
    out = jax.eval_shape(f, weights, inputs)
    return jax.tree.map(lambda o: numbers(1, *o.shape)[0].astype(o.dtype) if is_float(o) else None, out)


def first_half(f, weights, inputs, cotangent, seconds):
    out, backward_input, backward_weight = fnjax.split_vjp(f, weights, inputs)
    seconds.append(backward_weight)
    return out, *backward_input(cotangent)


def flops(fun, *args):
    return jax.jit(fun).lower(*args).compile().cost_analysis().get("flops", 0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", marked(CASES))
def test_halves(name):
    """Both halves give jax.vjp's numbers, compiled, and what is pending has one structure in and out of jit."""
    f, weights, inputs = CASES[name]
    cotangent, seconds = cotangent_of(f, weights, inputs), []
    # Closed over, so that None can stand in the cotangent.
    expected = jax.jit(lambda w, x: by_vjp(f, w, x, cotangent))(weights, inputs)
    out, grad_inputs, pending = jax.jit(lambda w, x: first_half(f, w, x, cotangent, seconds))(weights, inputs)
    got = out, jax.jit(seconds[0])(pending), grad_inputs
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        precision = float(jnp.finfo(one.dtype).eps) if is_float(one) else 0
        size = float(jnp.max(jnp.abs(other)))
        np.testing.assert_allclose(one.astype(complex), other.astype(complex), rtol=0, atol=8 * precision * size)
    eager = jax.eval_shape(lambda w, x: first_half(f, w, x, cotangent, seconds)[2], weights, inputs)
    assert jax.tree.structure(eager) == jax.tree.structure(pending)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(pending))


COUNTED = ["mlp", "transformer block", "scan", "scan of Functions", "weights used twice", "convolution", "cond"]


@pytest.mark.parametrize("name", marked(COUNTED))
def test_operations_are_done_once(name):
    """By XLA's count the halves together do at most 1.01 of the whole, and the second has a share of it."""
    f, weights, inputs = CASES[name]
    cotangent, seconds = cotangent_of(f, weights, inputs), []
    whole = flops(lambda w, x: by_vjp(f, w, x, cotangent), weights, inputs)
    first = lambda w, x: first_half(f, w, x, cotangent, seconds)
    pending = jax.eval_shape(first, weights, inputs)[2]
    second = flops(seconds[0], pending)
    assert flops(first, weights, inputs) + second <= 1.01 * whole
    assert second > 0.1 * whole


def test_a_scan_in_each_half():
    """Both halves of a scan over layers are scans, with the residuals of one layer for each."""
    seconds = []
    one = jax.eval_shape(lambda w, x: first_half(block, w, x, BATCH, seconds)[2], W, BATCH)
    run = lambda w, x: first_half(scanned(block), w, x, BATCH, seconds)[2]
    layers = jax.eval_shape(run, LAYERS, BATCH)
    of_input, of_weight = str(jax.make_jaxpr(run)(LAYERS, BATCH)), str(jax.make_jaxpr(seconds[-1])(layers))
    assert len(re.findall(r"\bscan\[", of_input)) == 2  # forward's, and that of the first half
    assert len(re.findall(r"\bscan\[", of_weight)) == 1
    count = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
    assert count(layers) <= 3 * count(one)


def test_unjitted():
    """Without jit the numbers are those of jax.vjp without it."""
    out, grad_inputs, pending = first_half(mlp, *CASES["mlp"][1:], X, seconds := [])
    expected = by_vjp(mlp, *CASES["mlp"][1:], X)
    jax.tree.map(np.testing.assert_array_equal, (out, seconds[0](pending), grad_inputs), expected)


def test_one_second_half_for_all():
    """One jitted second half serves every microbatch, is compiled once, and can be given its arguments to keep."""
    seconds, compiled = [], []

    def counted(pending):
        compiled.append(pending)
        return seconds[0](pending)

    second = jax.jit(counted, donate_argnums=0)
    first = jax.jit(lambda w, x: first_half(block, w, x, x, seconds))
    for scale in (1.0, 2.0):
        x = BATCH * scale
        _, _, pending = first(W, x) if scale == 1 else first_half(block, W, x, x, [])
        expected = by_vjp(block, W, x, x)[1]
        with warnings.catch_warnings(action="ignore"):  # not all have the shape of a result
            got = second(jax.tree.map(jnp.copy, pending))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), got, expected)
    assert len(compiled) == 1


def test_compiled_apart():
    """Results of split_vjp can be returned from jit: forward and both halves are three programs, each compiled once."""
    compiled = []

    def counted(name, f):
        return jax.jit(lambda *args: (compiled.append(name), f(*args))[1])

    forward = counted("forward", lambda w, x: fnjax.split_vjp(block, w, x))
    first, second = (counted(name, lambda half, given: half(given)) for name in ("input", "weight"))
    for scale in (1.0, 2.0, 3.0):
        x = BATCH * scale
        out, backward_input, backward_weight = forward(W, x)
        grad_inputs, pending = first(backward_input, x)
        got = out, second(backward_weight, pending), grad_inputs
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), got, by_vjp(block, W, x, x))
    assert compiled == ["forward", "input", "weight"]


def test_captured():
    """Arrays that f closes over are residuals, too: each microbatch has its own scale or mask."""
    seconds = []
    pendings = [first_half(lambda w, x, m=m: x @ w * m, W["q"], X, X, seconds)[2] for m in (X, X + 1)]
    expected = by_vjp(lambda w, x: x @ w * (X + 1), W["q"], X, X)[1]
    np.testing.assert_allclose(seconds[0](pendings[1]), expected, rtol=1e-5)


def test_transformed():
    """The halves stand under vmap and under grad, also in what f closes over."""

    def total(scale, x):
        _, grad_inputs, pending = first_half(lambda w, x: jnp.sin(scale * x @ w), W["q"], x, x, seconds := [])
        return jnp.sum(grad_inputs**2) + jnp.sum(seconds[0](pending) ** 2)

    def of_vjp(scale, x):
        _, grad_weights, grad_inputs = by_vjp(lambda w, x: jnp.sin(scale * x @ w), W["q"], x, x)
        return jnp.sum(grad_inputs**2) + jnp.sum(grad_weights**2)

    run = lambda f: jax.jit(jax.vmap(jax.grad(f, (0, 1)), (None, 0)))(1.5, BATCH)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), run(total), run(of_vjp))


@pytest.mark.parametrize("check_vma", [True, False])
def test_inside_shard_map(check_vma):
    """Called inside of shard_map, weights that devices share get their total where JAX checks what varies."""

    def inside(w, x):
        _, grad_inputs, pending = first_half(lambda w, x: jnp.tanh(x @ w), w, x, x, seconds := [])
        return grad_inputs, seconds[0](pending)

    def by_jax(w, x):
        _, grad_weights, grad_inputs = by_vjp(lambda w, x: jnp.tanh(x @ w), w, x, x)
        return grad_inputs, grad_weights

    how = {"mesh": MESH, "in_specs": (jax.P(), jax.P("i")), "check_vma": check_vma}
    x = numbers(8, WIDTH)
    got, expected = (
        jax.jit(jax.shard_map(f, out_specs=(jax.P("i"), jax.P()), **how))(W["q"], x) for f in (inside, by_jax)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, expected)


def test_cotangents_that_do_not_fit():
    """A cotangent of another structure, shape or dtype is refused, with what was due."""
    _, backward_input, _ = fnjax.split_vjp(lambda w, x: {"y": x @ w, "n": jnp.arange(2)}, W["q"], X)
    with pytest.raises(fnjax.errors.ArgumentError, match="another structure"):
        backward_input(X)
    with pytest.raises(fnjax.errors.ArgumentError, match="another structure"):
        backward_input({"y": None, "n": None, "z": X})
    with pytest.raises(
        fnjax.errors.ArgumentError, match=r"output.y of f\n  expected: shape \(6, 8\) and dtype float32"
    ):
        backward_input({"y": X[:3], "n": None})
    with pytest.raises(fnjax.errors.ArgumentError, match=r"got: shape .* and dtype float16"):
        backward_input({"y": X.astype(jnp.float16), "n": None})
    with pytest.raises(fnjax.errors.ArgumentError, match=r"output.n of f\n  expected: None"):
        backward_input({"y": X, "n": jnp.arange(2)})
    with pytest.raises(fnjax.errors.ArgumentError, match=r"output\.y of f"):
        backward_input({"y": None, "n": None})


def test_pending_of_another_function():
    """Residuals of another function, of another number in it, or of other shapes are refused."""
    _, _, pending = first_half(lambda w, x: jnp.sin(x @ w) * 2.0, W["q"], X, X, seconds := [])
    for other, x in ((lambda w, x: jnp.cos(x @ w), X), (lambda w, x: jnp.sin(x * 3.0 @ w), X), (mlp, X)):
        weights = [(W["q"], W["gain"])] if other is mlp else W["q"]
        first_half(other, weights, x, x, seconds)
        with pytest.raises(fnjax.errors.ArgumentError, match="pending of another function"):
            seconds[-1](pending)
    with pytest.raises(fnjax.errors.ArgumentError, match="pending of another function"):
        seconds[0](jax.tree.map(lambda x: x[:1], pending))
    with pytest.raises(fnjax.errors.ArgumentError, match="pending of another function"):
        seconds[0](list(jax.tree.leaves(pending)))


class InBackward(fnjax.Function):
    """x @ w, whose backward applies a function to grad_output."""

    @staticmethod
    def forward(ctx, x, w, f):
        ctx.save_for_backward(x, w)
        ctx.f = f
        return x @ w

    @staticmethod
    def backward(ctx, grad_output):
        x, w = ctx.saved_tensors
        return ctx.f(grad_output @ w.T), x.T @ ctx.f(grad_output), None


def on_host(k):
    shape = lambda g: jax.ShapeDtypeStruct(g.shape, g.dtype)
    return lambda g: jax.pure_callback(lambda g: np.asarray(g) * k, shape(g), g, vmap_method="sequential")


def of_table(table):
    return lambda g: jax.lax.map(jax.jit(lambda row: row * table), g)


def with_slope(slope):
    @jax.custom_jvp
    def same(g):
        return g * 1.0

    same.defjvp(lambda primals, tangents: (primals[0] * 1.0, tangents[0] * slope))
    return same


class Times(fnjax.Function):
    """x k."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.k, None


# Pairs of which the programs' texts are the same, but for addresses.
ALIKE = {
    "callbacks": (on_host(1), on_host(5)),
    "tables": (of_table(np.arange(8.0, dtype="f")), of_table(np.arange(1.0, 9.0, dtype="f"))),
    "signs of zero": (of_table(np.zeros(8, "f")), of_table(-np.zeros(8, "f"))),
}


@pytest.mark.parametrize("name", ALIKE)
def test_programs_that_read_alike(name):
    """Compiled halves are not shared by functions that differ in a callback or a constant alone."""
    first, second = (jax.jit(lambda half, given: half(given)) for _ in range(2))
    for f in ALIKE[name]:
        _, backward_input, backward_weight = fnjax.split_vjp(lambda w, x, f=f: InBackward.apply(x, w, f), W["q"], X)
        grad_inputs, pending = first(backward_input, X)
        expected = jax.jit(f)(X @ W["q"].T), X.T @ jax.jit(f)(X)
        for got, want in zip((grad_inputs, second(backward_weight, pending)), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(np.asarray(want)[got == 0]))


DISTINCT = [
    lambda a, b: jnp.sin(a) - jnp.cos(b) * a,
    lambda a, b: jnp.sin(a) - jnp.cos(b) * b,
    lambda a, b: jnp.sin(b) - jnp.cos(a) * a,
    lambda a, b: jnp.sin(a) - jnp.sin(b) * a,
    lambda a, b: (jnp.sin(a) - jnp.cos(b) * a) * 0.0,
    lambda a, b: (jnp.sin(a) - jnp.cos(b) * a) * -0.0,
    lambda a, b: a**2 + b,
    lambda a, b: a**3 + b,
    lambda a, b: (a, b),
    lambda a, b: (b, a),
    lambda a, b: jax.lax.while_loop(lambda c: c < b, lambda c: c + a, a),
    lambda a, b: jax.lax.while_loop(lambda c: c < a, lambda c: c + a, a),
    lambda a, b: jax.lax.cond(a > b, jnp.sin, jnp.cos, a),
    lambda a, b: jax.lax.cond(a > b, jnp.cos, jnp.sin, a),
    lambda a, b: jax.lax.cond(a > b, lambda a: a, lambda a: a * float("nan"), a),
]


def test_programs_are_told_apart():
    """The key of a program is that of its next trace, and differs from other programs' keys."""
    first, again = ([identify(jax.make_jaxpr(lambda *x, f=f: f(*x))(1.0, 2.0)) for f in DISTINCT] for _ in range(2))
    assert [[one == other for other in again] for one in first] == np.eye(len(DISTINCT), dtype=bool).tolist()
    assert list(map(hash, first)) == list(map(hash, again))


AGAIN = {"callback": on_host(2), "table": of_table(np.arange(8.0)), "Function": lambda g: Times.apply(g, 2)}


@pytest.mark.parametrize("f", AGAIN.values(), ids=AGAIN)
def test_traced_again(f):
    """A function that is traced again has the halves that are compiled: also with callbacks, tables and Functions."""
    compiled = []
    run = jax.jit(lambda half, given: (compiled.append(half), half(given))[1])
    for _ in range(2):
        _, backward_input, backward_weight = fnjax.split_vjp(lambda w, x: InBackward.apply(x, w, f), W["q"], X)
        run(backward_weight, run(backward_input, X)[1])
    assert [type(half) for half in compiled] == [fnjax._split.vjp.BackwardInput, fnjax._split.vjp.BackwardWeight]


def test_rules_that_cannot_be_compared():
    """Residuals of a trace are evaluated by that trace's rules, whichever backward_weight gets them."""
    seconds = []

    def total(x, f):
        _, _, pending = first_half(lambda w, x: InBackward.apply(x, w, f), W["q"], X, x, seconds)
        return jnp.sum(seconds[0](pending))  # of X.T @ f(x)

    for slope in (3.0, 7.0):
        expected = np.broadcast_to(slope * X.sum(1, keepdims=True), X.shape)
        np.testing.assert_allclose(jax.grad(total)(X, with_slope(slope)), expected, rtol=1e-5)


def test_leaves_that_are_no_arrays():
    """A leaf that is not an array is refused, with its place."""
    with pytest.raises(fnjax.errors.ArgumentError, match=r"leaf in weights.name that is no array\n.*\n  got: str 'a'"):
        fnjax.split_vjp(lambda w, x: x, {"name": "a"}, X)
