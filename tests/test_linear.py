"""Linear Functions: wherever JAX transposes or differentiates one, it uses its forward and backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.sparse.linalg import bicgstab, cg, gmres
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import fnjax
from tests.wrappers import four_devices, once_in_scan

pytestmark = pytest.mark.usefixtures("x64")

rng = np.random.default_rng(0)
M = rng.normal(size=(3, 3)) + 3 * np.eye(3)
C = M + 1j * rng.normal(size=(3, 3))
X = np.array([1.0, 2.0, -0.5])  # float64, which jnp makes with 64-bit numbers enabled only
Z = X + 1j * X[::-1]


def on_host(function, x, vmap_method="sequential"):
    """Call NumPy, which JAX can neither differentiate nor transpose."""
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda x: function(np.asarray(x)), result, x, vmap_method=vmap_method)


class MatVec(fnjax.Function):
    linear = True

    @staticmethod
    def forward(ctx, x):
        return on_host(lambda x: M @ x, x)

    @staticmethod
    def backward(ctx, grad_output):
        return on_host(lambda g: M.T @ g, grad_output)


class Complex(fnjax.Function):
    """In PyTorch's convention backward is the conjugate transpose."""

    linear = True

    @staticmethod
    def forward(ctx, x):
        return on_host(lambda x: C @ x, x)

    @staticmethod
    def backward(ctx, grad_output):
        return on_host(lambda g: C.conj().T @ g, grad_output)


class WithRule(fnjax.Function):
    """Callbacks without vmap_method, which only the batching rules can batch."""

    linear = True

    @staticmethod
    def forward(ctx, x):
        return on_host(lambda x: x @ M.T, x, None)

    @staticmethod
    def backward(ctx, grad_output):
        return Transposed.apply(grad_output)

    @classmethod
    def vmap(cls, info, in_dims, x):
        return cls.apply(jnp.moveaxis(x, in_dims[0], 0)), 0


class Transposed(WithRule):
    @staticmethod
    def forward(ctx, x):
        return on_host(lambda x: x @ M, x, None)

    @staticmethod
    def backward(ctx, grad_output):
        return WithRule.apply(grad_output)


class Several(fnjax.Function):
    """An integer array, arrays in a container and a static value are parameters; x and y the linear arguments."""

    linear = True

    @staticmethod
    def forward(ctx, k, x, y, weights, name):
        ctx.k, ctx.sines, ctx.weights = k, jnp.sin(weights["w"]), weights
        return on_host(lambda x: M @ x, x) * ctx.sines + k * y, name, y[:2] * weights["w"][:2]

    @staticmethod
    def backward(ctx, grad, none, short):
        assert none is None
        grad_y = ctx.k * grad + jnp.pad(short * ctx.weights["w"][:2], (0, 1))
        return None, on_host(lambda g: M.T @ g, grad * ctx.sines), grad_y, None, None


def several(k, x, y, weights, name):
    return M @ x * jnp.sin(weights["w"]) + k * y, name, y[:2] * weights["w"][:2]


def jointly(function):
    """A function of one array from one with two, with parameters that depend on nothing."""

    def both(x):
        first, _, second = function(jnp.array(3), x, x[::-1] * 2, {"w": jnp.arange(1.0, 4.0)}, "name")
        return first.at[:2].add(second)

    return both


CASES = {
    "real": (MatVec.apply, lambda x: M @ x, X),
    "complex": (Complex.apply, lambda x: C @ x, Z),
    "vmap rule": (WithRule.apply, lambda x: M @ x, X),
    "several": (jointly(Several.apply), jointly(several), X),
}


def norm(y):
    return (jnp.abs(y) ** 2).sum()


def transpose(f, x):
    return lambda g: jax.linear_transpose(f, x)(g)[0]


def normal_equations(f, x):
    """Solve the least squares problem by the conjugate gradient method; f(x) ≈ x."""
    adjoint = lambda g: transpose(f, x)(g.conj()).conj()
    return cg(lambda v: adjoint(f(v)), adjoint(x), tol=1e-13)[0]


def power(f, x):
    return jax.lax.scan(lambda x, _: (f(x), None), x, None, length=3)[0]


def hessian(f):
    """Of a quadratic, in real directions."""
    return lambda x: jax.hessian(lambda t: norm(f(x * t)))(jnp.arange(1.0, 4.0))


TRANSFORMS = {
    "transpose": lambda f: lambda x: transpose(f, x)(x),
    "transpose of transpose": lambda f: lambda x: transpose(transpose(f, x), x)(x),
    "transpose of jit": lambda f: lambda x: transpose(jax.jit(f), x)(x),
    "transpose of vmap": lambda f: lambda x: transpose(jax.vmap(f), jnp.stack([x, x]))(jnp.stack([x, 2 * x])),
    "vmap of transpose": lambda f: lambda x: jax.vmap(transpose(f, x))(jnp.stack([x, 2 * x])),
    "transpose of scan": lambda f: lambda x: transpose(lambda x: power(f, x), x)(x),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (2 * x,)),
    "grad": lambda f: jax.grad(lambda x: norm(f(x))),
    "grad of remat": lambda f: jax.grad(jax.checkpoint(lambda x: norm(f(x)))),
    "Hessian": hessian,
    "reverse over reverse": lambda f: lambda x: jax.jacrev(jax.grad(lambda t: norm(f(t * x)) ** 2))(1.5),
    "forward over forward": lambda f: lambda x: jax.jacfwd(jax.jacfwd(lambda t: norm(f(t * x)) ** 2))(1.5),
    "Hessian of scan": lambda f: hessian(lambda x: power(f, x)),
    "Hessian under vmap": lambda f: lambda x: jax.vmap(hessian(f))(jnp.stack([x, 2 * x])),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transformations(transform, case):
    """Transposes and derivatives of every kind are those of the linear map, though forward is a callback."""
    fun, twin, x = case
    assert_equal(jax.jit(transform(fun))(x), jax.jit(transform(twin))(x))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "transform",
    # Outside jit each operation of a Hessian is a program: slow. Under jit all run, and here the other second orders.
    [pytest.param(t, id=name, marks=[pytest.mark.slow] * ("Hessian" in name)) for name, t in TRANSFORMS.items()],
)
def test_outside_jit(transform):
    """Outside jit the same."""
    fun, twin, x = CASES["several"]
    assert_equal(transform(fun)(x), jax.jit(transform(twin))(x))


def assert_equal(got, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9), got, expected)


SOLVERS = {
    "bicgstab": lambda f, x: bicgstab(f, x, tol=1e-12)[0],
    "gmres": lambda f, x: gmres(f, x, tol=1e-12)[0],
    "cg": normal_equations,
    "custom_linear_solve": lambda f, x: jax.lax.custom_linear_solve(
        f, x, lambda _, b: jnp.linalg.solve(M, b), lambda _, b: jnp.linalg.solve(M.T, b)
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS)
def test_solvers(solve):
    """Iterative solvers take a matvec by NumPy: the solution, its gradient and its Hessian."""
    loss = lambda x: norm(solve(MatVec.apply, x))
    inverse = np.linalg.inv(M)
    results = jax.jit(lambda x: (solve(MatVec.apply, x), jax.grad(loss)(x), jax.hessian(loss)(x)))(X)
    for got, expected in zip(results, (inverse @ X, 2 * inverse.T @ inverse @ X, 2 * inverse.T @ inverse), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8)


def test_the_transpose_in_some_of_the_arguments():
    """A transposition in one argument takes the others as zeros; batched parameters get a transpose each."""
    k, w = jnp.array([1, 3]), {"w": jnp.arange(1.0, 4.0)}

    def gradients(f):
        in_y = transpose(lambda y: f(k[1], jnp.zeros(3), y, w, "name")[::2], X)
        each = lambda k: jax.linear_transpose(lambda x, y: f(k, x, y, w, "name")[::2], X, X)((X, X[:2]))
        return in_y((X, X[:2])), jax.vmap(each)(k)

    assert_equal(gradients(Several.apply), gradients(several))


@pytest.mark.parametrize("has_rule", [False, True], ids=["plain", "vmap rule"])
def test_parameters_from_a_closure(has_rule):
    """A linear Function may close over arrays of an enclosing jit, as parameters."""

    def results(f, x):
        return transpose(f, x)(x), hessian(f)(x), transpose(jax.vmap(f), jnp.stack([x, x]))(jnp.stack([x, 2 * x]))

    def closing(x, w):
        members = {
            "linear": True,
            "forward": staticmethod(lambda ctx, x: x * jnp.sin(w)),
            "backward": staticmethod(lambda ctx, g: g * jnp.sin(w)),
        }
        if has_rule:
            members["vmap"] = staticmethod(lambda info, dims, x: (x * jnp.sin(w), dims[0]))
        return results(type("Closing", (fnjax.Function,), members).apply, x)

    assert_equal(jax.jit(closing)(X, X), results(lambda x: x * jnp.sin(X), X))


class Stored(fnjax.Function):
    linear = True

    @staticmethod
    def forward(ctx, x, matrix):
        (ctx.matrix,) = matrix
        return ctx.matrix @ x

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.matrix.T @ grad_output, None


@pytest.mark.parametrize("check_vma", [True, False], ids=["checked", "unchecked"])
def test_shard_map(check_vma):
    """Inside shard_map the gradient of a replicated argument is summed over the devices, at every order."""
    matrix = jnp.asarray(rng.normal(size=(8, 3)))

    def sharded(f):
        specs = {"in_specs": (P(), P("i")), "out_specs": P("i"), "check_vma": check_vma}
        split = jax.shard_map(lambda x, m: f(x, (m,)), mesh=four_devices(AxisType.Auto), **specs)
        return lambda x: split(x, matrix)

    def results(f):
        twice = transpose(transpose(f, X), jnp.ones(8))(X)
        return transpose(f, X)(jnp.arange(8.0)), twice, hessian(f)(X), jax.jacrev(jax.grad(lambda x: norm(f(x))))(X)

    assert_equal(jax.jit(lambda: results(sharded(Stored.apply)))(), results(lambda x: matrix @ x))


def test_explicit_axes():
    """A matrix that is split over an Explicit axis is a parameter like any other."""
    with jax.set_mesh(four_devices(AxisType.Explicit)):
        matrix = jax.device_put(rng.normal(size=(8, 3)), P("i"))
        f = lambda x: Stored.apply(x, (matrix,))
        results = jax.jit(lambda: (transpose(f, X)(f(X)), hessian(f)(X)))()
    A = np.asarray(matrix)
    scale = np.diag(X)
    assert_equal(results, (A.T @ A @ X, 2 * scale @ A.T @ A @ scale))


def sine(x):
    return jnp.sin(M @ x)


def test_in_the_rules_of_others():
    """A jvp rule applies one to tangents, and a backward to gradients; both are transposed by it."""

    class Jvp(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_forward(x)
            return jnp.sin(MatVec.apply(x))

        @staticmethod
        def jvp(ctx, tangent):
            (x,) = ctx.saved_tensors
            return jnp.cos(MatVec.apply(x)) * MatVec.apply(tangent)

    class Backward(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return jnp.sin(MatVec.apply(x))

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return transpose(MatVec.apply, x)(jnp.cos(MatVec.apply(x)) * grad_output)

    @jax.custom_jvp
    def rule(x):
        return jnp.sin(MatVec.apply(x))

    rule.defjvp(lambda x, t: (rule(*x), jnp.cos(MatVec.apply(*x)) * MatVec.apply(*t)))
    expected = jax.jit(jax.hessian(lambda x: norm(sine(x))))(X)
    for f in (Jvp.apply, Backward.apply, rule):
        loss = lambda x, f=f: norm(f(x))
        assert_equal(jax.jit(jax.hessian(loss))(X), expected)
        assert_equal(jax.jit(jax.jacrev(jax.grad(loss)))(X), expected)


def test_one_in_a_backward_must_get_the_gradient_only():
    """Parameters beside grad_output are constants; a constant in a linear argument makes backward affine: an error."""

    def with_backward(backward):
        class Outer(fnjax.Function):
            @staticmethod
            def forward(ctx, x, w):
                ctx.save_for_backward(x, w)
                return x * 1

        Outer.backward = staticmethod(lambda ctx, g: (backward(g, *ctx.saved_tensors), None))
        return lambda x: Outer.apply(x, X)

    right = with_backward(lambda g, x, w: Several.apply(jnp.array(2), g, g, {"w": w}, "name")[0])
    assert_equal(jax.jit(jax.jacfwd(right))(X), (M * jnp.sin(X)[:, None] + 2 * np.eye(3)).T)
    wrong = with_backward(lambda g, x, w: Several.apply(jnp.array(2), g, x, {"w": w}, "name")[0])
    with pytest.raises(fnjax.errors.MissingMethodError, match=r"Outer.backward is not linear in grad_output"):
        jax.jacfwd(wrong)(X)


class Weighted(fnjax.Function):
    linear = True

    @staticmethod
    def forward(ctx, x, parameters):
        ctx.weights = parameters[0]
        return ctx.weights * x

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.weights * grad_output, None


def transposed(m):
    """Return a transpose whose matrix has the parameter m."""
    return jax.linear_transpose(lambda v: Weighted.apply(v, (m,)), X)(X)[0]


PARAMETERS = {
    "gradient": jax.grad(lambda m: Weighted.apply(X, (m,)).sum()),
    "scan": jax.grad(lambda m: once_in_scan(lambda x: Weighted.apply(x, (m,)))(X).sum()),
    "of a transpose": jax.grad(lambda m: transposed(m).sum()),
    "of a solution": jax.grad(lambda m: cg(lambda v: Weighted.apply(v, (m,)), X)[0].sum()),
    "of a gradient": jax.jacfwd(lambda m: jax.grad(lambda x: (Weighted.apply(x, (m,)) ** 2).sum())(X)),
}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("differentiate", PARAMETERS.values(), ids=PARAMETERS)
def test_a_parameter_is_not_differentiated(differentiate, wrap):
    """Forward would count nothing of a parameter's derivative, and backward something: the sum was wrong."""
    with pytest.raises(fnjax.errors.ContextError, match=r"(?s)Weighted says linear.*weight \* Weighted.apply") as e:
        wrap(differentiate)(X + 2)
    assert "what backward reads of ctx is being differentiated" in str(e.value)
    assert_equal(wrap(jax.hessian(lambda x: (Weighted.apply(x, (X,)) ** 2).sum()))(X), 2 * jnp.diag(X**2))


def test_pytrees_keep_their_structure():
    """With `pytree = True` containers are arguments in which the Function is linear."""

    class Tree(fnjax.Function):
        linear = pytree = True

        @staticmethod
        def forward(ctx, tree):
            return {"z": on_host(lambda x: M @ x, tree["b"]) + tree["a"]}

        @staticmethod
        def backward(ctx, grad):
            return {"b": on_host(lambda g: M.T @ g, grad["z"]), "a": grad["z"]}

    (grads,) = jax.linear_transpose(Tree.apply, {"b": X, "a": X})({"z": X})
    assert_equal(grads, {"b": M.T @ X, "a": X})


def test_bfloat16_is_kept():
    """Gradients and their gradients have the dtypes of the arguments."""
    x = jnp.ones(3, jnp.bfloat16)
    g = transpose(lambda x: Stored.apply(x, (jnp.ones((2, 3)),)), x)
    assert g(jnp.ones(2)).dtype == jnp.bfloat16
    assert transpose(g, jnp.ones(2))(x).dtype == jnp.float64


WRONG = {
    "has no backward": {},
    "has a jvp": {"backward": lambda ctx, g: 2 * g, "jvp": lambda ctx, t: 2 * t},
    "marks backward with @once_differentiable": {"backward": fnjax.once_differentiable(lambda ctx, g: 2 * g)},
}


@pytest.mark.parametrize("fault", WRONG)
def test_definitions_that_contradict_it(fault):
    """A class says that it is linear, or something that contradicts it: an error where it is defined."""
    members = {name: staticmethod(method) for name, method in WRONG[fault].items()}
    with pytest.raises(fnjax.errors.DefinitionError) as caught:
        type("Doubled", (fnjax.Function,), members | {"linear": True, "forward": staticmethod(lambda ctx, x: 2 * x)})
    text = str(caught.value)
    for ingredient in (f"Doubled says linear = True and {fault}", "expected:", "fix:", "or remove linear = True"):
        assert ingredient in text


@pytest.mark.parametrize("transform", [jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: transpose(f, 1.0)])
def test_an_argument_on_ctx(transform):
    """Saving an argument in which a Function is linear is an error that names it: when transposed, it has no value."""

    class Saving(fnjax.Function):
        linear = True

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * 2

    with pytest.raises(fnjax.errors.ContextError, match="Saving says linear = True, and its ctx keeps argument 'x'"):
        transform(Saving.apply)(1.0)


def test_a_value_of_an_argument_on_ctx():
    """A saved value that depends on the argument is found where JAX transposes without that argument."""

    class Scaled(fnjax.Function):
        linear = True

        @staticmethod
        def forward(ctx, x):
            jax.debug.callback(lambda x: None, x)
            ctx.size, ctx.scale = len(x.shape), jnp.abs(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * 2

    with pytest.raises(fnjax.errors.ContextError, match="keeps a value that depends on an argument in which Scaled"):
        transpose(Scaled.apply, 1.0)(1.0)


CLAIMS = {
    "adds a constant": (lambda x: M @ x + 1, lambda g: M.T @ g, "forward is not linear"),
    "clips": (lambda x: M @ jnp.clip(x, -1, 1), lambda g: M.T @ g, "forward is not linear"),
    "nearly the transpose": (lambda x: M @ x, lambda g: 1.0001 * M.T @ g, "backward is not the transpose of forward"),
    "not conjugated": (lambda x: C @ x, lambda g: C.T @ g, "backward is not the transpose of forward"),
}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_gradcheck_tests_the_claim(claim):
    """A forward that is not linear, or a backward that is not its adjoint, fails in gradcheck, which says which."""
    forward, backward, phrase = claim
    members = {"forward": staticmethod(lambda ctx, x: forward(x)), "backward": staticmethod(lambda ctx, g: backward(g))}
    Claimed = type("Claimed", (fnjax.Function,), members | {"linear": True})
    with pytest.raises(fnjax.GradcheckError) as caught:
        fnjax.gradcheck(Claimed.apply, (Z if forward(X).dtype == complex else X / 3,))
    for ingredient in (phrase, "linear = True", "expected:", "got:", "fix:"):
        assert ingredient in str(caught.value)


def test_gradcheck_accepts_a_linear_function():
    """Right ones pass, with parameters, complex arrays and second derivatives."""
    assert fnjax.gradcheck(MatVec.apply, (X,), check_forward_ad=True)
    assert fnjax.gradcheck(Complex.apply, (Z,))
    assert fnjax.gradgradcheck(MatVec.apply, (X,))
    weights = {"w": np.arange(1.0, 4.0)}
    assert fnjax.gradcheck(lambda x, y: Several.apply(np.array(3), x, y, weights, "name")[::2], (X, X))
    assert fnjax.gradcheck(Stored.apply, (X, (np.eye(3),)), argnums=0)
