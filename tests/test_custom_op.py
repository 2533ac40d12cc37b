"""Custom operators under JAX's transformations; tests/parity/test_custom_op.py holds them against PyTorch's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax

X = jnp.array([0.5, 1.0, 1.5])
XS = jnp.stack([X, 2 * X])


def op(fn, **options):
    """An operator of a name of its own."""
    op.count += 1
    return fnjax.custom_op(f"tests::{fn.__name__}_{op.count}", fn, **{"mutates_args": (), **options})


op.count = 0


def keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def by_numpy():
    """x³, by NumPy."""

    def cube(x: jax.Array) -> jax.Array:
        return np.asarray(x) ** 3

    made = op(cube)
    made.register_fake(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype))
    made.register_autograd(lambda ctx, g: 3 * g * ctx.saved_tensors[0] ** 2, setup_context=keep)
    return made


def by_jax():
    """x³, by JAX: the body cannot be differentiated, the operator can."""

    def cube(x: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(x) ** 3

    made = op(cube)
    made.register_autograd(lambda ctx, g: 3 * g * ctx.saved_tensors[0] ** 2, setup_context=keep)
    return made


def by_value():
    """x³ for what is positive, which `if` asks."""

    def cube(x: jax.Array) -> jax.Array:
        return x**3 if (x >= 0).all() else jnp.abs(x) ** 3

    made = op(cube)
    made.register_fake(jnp.empty_like)
    made.register_autograd(lambda ctx, g: 3 * g * ctx.saved_tensors[0] ** 2, setup_context=keep)
    return made


def by_kernel():
    """x³ on this platform, something else on others."""

    def cube(x: jax.Array) -> jax.Array:
        return x * 0

    made = op(cube)
    made.register_kernel(("cpu", "gpu", "tpu"), lambda x: x * x * x)
    made.register_autograd(lambda ctx, g: 3 * g * ctx.saved_tensors[0] ** 2, setup_context=keep)
    return made


def by_vmap():
    """x³, and with a batch of its own."""
    made = by_numpy()
    made.register_vmap(lambda info, in_dims, x: (x**3, in_dims[0]))
    return made


def composite():
    """x³, differentiated through."""
    library = fnjax.Library("tests", "FRAGMENT")
    library.define("composite_cube(Tensor x) -> Tensor")
    library.impl("composite_cube", lambda x: x**3, "CompositeImplicitAutograd")
    return fnjax.ops.tests.composite_cube


def scanned(f):
    return lambda x: jax.lax.scan(lambda c, x: (c, f(x)), 0, x)[1]


def sharded(f):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    P = jax.sharding.PartitionSpec
    return jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"))


KINDS = {f.__name__: f for f in (by_numpy, by_jax, by_value, by_kernel, by_vmap, composite)}
WRAPPERS = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "vmap": jax.vmap,
    "jit of vmap": lambda f: jax.jit(jax.vmap(f)),
    "vmap of jit": lambda f: jax.vmap(jax.jit(f)),
    "scan": scanned,
    "remat": jax.checkpoint,
    "shard_map": sharded,
}

SLOW = {"jit of vmap", "vmap of jit", "remat", "shard_map"}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("wrapper", [pytest.param(w, marks=pytest.mark.slow) if w in SLOW else w for w in WRAPPERS])
@pytest.mark.parametrize("kind", KINDS)
def test_transforms(kind, wrapper):
    """In every transform an operator has the values, gradients, second derivatives and Hessian of x³."""
    cube, wrap = KINDS[kind](), WRAPPERS[wrapper]

    def quantities(f, wrap):
        def total(x):
            return jnp.sum(wrap(f)(x))

        slope = jax.grad(total)
        second = jax.grad(lambda x: slope(x).sum())
        hessian = jax.hessian(lambda x: jnp.sum(jnp.sin(wrap(f)(x))))
        return wrap(f)(X), slope(X), second(X), jax.jit(slope)(X), hessian(X)

    # In one program, which is compiled sooner, but where it is tried without jit.
    got = (quantities if wrapper in ("eager", "jit") else jax.jit(quantities, static_argnums=(0, 1)))(cube, wrap)
    expected = X**3, 3 * X**2, 6 * X, 3 * X**2, np.diag(6 * X * np.cos(X**3) - 9 * X**4 * np.sin(X**3))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_inside_of_vmap(kind):
    """A batch of gradients is that of plain JAX."""
    cube = KINDS[kind]()
    np.testing.assert_allclose(jax.vmap(jax.grad(lambda x: cube(x).sum()))(XS), 3 * XS**2, rtol=1e-6)


def test_x64(x64):
    """With 64-bit numbers a NumPy body gives them, also under jit."""
    cube, x = by_numpy(), jnp.array([0.1, 0.2])
    for f in (cube, jax.jit(cube)):
        assert f(x).dtype == np.float64
        np.testing.assert_allclose(f(x), np.asarray(x) ** 3, rtol=1e-15)
    assert fnjax.gradcheck(cube, (np.array([0.1, 0.2]),))


def test_float64_of_a_body_is_that_of_the_run():
    """A float64 result of NumPy becomes float32 under jit as it does outside."""
    if jax.config.jax_enable_x64:
        pytest.skip("about 32-bit numbers")

    def wide(x: jax.Array) -> jax.Array:
        return np.asarray(x, np.float64) / 3

    made = op(wide)
    made.register_fake(jnp.empty_like)
    assert made(X).dtype == jax.jit(made)(X).dtype == np.float32


def test_body_of_jax_operations_is_no_callback():
    """Only a body that asks for numbers becomes a callback."""
    assert "callback" in str(jax.make_jaxpr(by_numpy())(X))
    assert "callback" not in str(jax.make_jaxpr(by_jax())(X))
    assert "callback" not in str(jax.make_jaxpr(jax.grad(lambda x: by_numpy()(x).sum()))(X)).partition("pull")[2]


@pytest.mark.parametrize("index", [lambda x: x[x > 0.7], lambda x: jnp.arange(float(x[1]) * 2), lambda x: x.tolist()])
def test_every_way_to_ask_for_numbers(index):
    """Boolean masks, float() and tolist() make a body a callback."""

    def body(x: jax.Array) -> jax.Array:
        return jnp.asarray(index(x))[:2] * 1.0

    made = op(body)
    made.register_fake(lambda x: x[:2])
    np.testing.assert_array_equal(jax.jit(made)(X), made(X))


@pytest.mark.parametrize("error", [ValueError("mine"), TypeError("mine"), AttributeError("mine")])
def test_an_error_of_the_body_is_the_users_own(error):
    """A body that fails is not taken for one that asks for numbers."""

    def body(x: jax.Array) -> jax.Array:
        raise error

    made = op(body)
    made.register_fake(jnp.empty_like)
    with pytest.raises(type(error), match="mine"):
        jax.jit(made)(X)


@pytest.mark.parametrize("wrong", [lambda x: x[:1], lambda x: x.astype(jnp.int32)], ids=["shape", "dtype"])
@pytest.mark.parametrize("kind", ["by_numpy", "by_jax"])
def test_fake_and_body_that_disagree(kind, wrong):
    """The error names what register_fake said and what the body gave."""
    cube = KINDS[kind]()
    cube.register_fake(wrong)
    with pytest.raises(RuntimeError) as caught:
        jax.block_until_ready(jax.jit(cube)(X))
    text, promised = str(caught.value), wrong(X)
    assert f"the fake says {promised.dtype}{list(promised.shape)}" in text
    assert f"the body gave {X.dtype}[3]" in text


def test_fake_that_returns_nothing():
    """No callback would ever be made, and its result would be None: a `return` that was forgotten is an error."""
    cube = KINDS["by_numpy"]()
    cube.register_fake(lambda x: None)
    with pytest.raises(
        fnjax.errors.OperatorError, match=r"(?s)register_fake of tests::\w+ returned no array.*like the results"
    ):
        jax.jit(cube)(X)


def test_fake_that_needs_a_traced_number():
    """The error names the number that must be static."""

    def ones(x: jax.Array, n: int) -> jax.Array:
        return np.ones(int(n), np.float32)

    made = op(ones)
    made.register_fake(lambda x, n: jnp.empty(n, np.float32))
    assert jax.jit(made, static_argnums=1)(X, 4).shape == (4,)
    with pytest.raises(fnjax.errors.OperatorError, match=r"(?s)register_fake of tests::ones.*traced: n"):
        jax.jit(made)(X, 4)


def test_numbers_that_are_traced():
    """They go through a traced body, are numbers again in a callback, and have no gradient."""

    def scale(x: jax.Array, k: float, *, n: int) -> jax.Array:
        return x * k * n

    def scale_by_numpy(x: jax.Array, k: float, *, n: int) -> jax.Array:
        numbers = np.asarray(x)  # in a trial trace, this is where it ends
        assert (type(k), type(n)) == (float, int)
        return numbers * np.float32(k * n)

    for body in (scale, scale_by_numpy):
        made = op(body)
        made.register_fake(lambda x, k, *, n: jnp.empty_like(x))
        made.register_autograd(
            lambda ctx, g: (g * ctx.factor, None),
            setup_context=lambda ctx, inputs, keyword_only_inputs, output: setattr(
                ctx, "factor", inputs[1] * keyword_only_inputs["n"]
            ),
        )
        np.testing.assert_allclose(jax.jit(made)(X, 2.0, n=3), 6 * X, rtol=1e-6)
        np.testing.assert_allclose(jax.jit(jax.grad(lambda x, k: made(x, k, n=3).sum()))(X, 2.0), [6, 6, 6])  # noqa: B023
        with pytest.raises(fnjax.errors.GradientError, match=r"argument 'k' .* is a float, which has no gradient"):
            jax.grad(lambda k: made(X, k, n=3).sum())(2.0)  # noqa: B023


def test_numbers_that_a_callback_reads_are_arrays():
    """An int among the results is an array without axes where the body is a callback."""

    def above(x: jax.Array, bound: float) -> tuple[jax.Array, int]:
        return x * 2, int((np.asarray(x) > bound).sum())

    made = op(above)
    made.register_fake(lambda x, bound: (jnp.empty_like(x), 0))
    made.register_autograd(lambda ctx, g, _: (g * 2, None))
    assert made(X, 0.7)[1] == 2
    doubled, count = jax.jit(lambda x: made(x, 0.7))(X)
    assert (count.shape, int(count)) == ((), 2)
    np.testing.assert_allclose(doubled, 2 * X)
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: made(x, 0.7)[0].sum()))(X), [2, 2, 2])


def test_kernels_are_chosen_when_lowering():
    """The program for a platform has the operations of its kernel, and of no other."""

    def body(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    made = op(body)
    made.register_kernel("gpu", jnp.cos)
    made.register_kernel("tpu")(jnp.tanh)
    traced = jax.jit(made).trace(X)
    for platform, wanted in {"cpu": "sine", "cuda": "cosine", "rocm": "cosine", "tpu": "tanh"}.items():
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert [w for w in ("sine", "cosine", "tanh") if f"stablehlo.{w}" in text] == [wanted]
    np.testing.assert_allclose(made(X), jnp.sin(X), rtol=1e-6)


def test_no_kernel_for_the_platform():
    """Under jit the error says so when the program runs; for its own platform the program is lowered anywhere."""

    def body(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    made = fnjax.custom_op("tests::cuda_only", body, mutates_args=(), device_types="cuda")
    words = "Could not run 'tests::cuda_only' with arguments from the 'CPU' backend"
    for call in (made, jax.jit(made), jax.jit(jax.vmap(made))):
        with pytest.raises(Exception, match=words):
            jax.block_until_ready(call(X))
    assert "stablehlo.sine" in jax.jit(made).trace(X).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("kind", KINDS)
def test_forward_mode(kind):
    """Forward mode of an operator is the transpose of the registered backward."""
    value, tangent = jax.jvp(KINDS[kind](), (X,), (X,))
    np.testing.assert_allclose([value, tangent], [X**3, 3 * X**3], rtol=1e-6)


def test_forward_mode_of_a_backward_without_a_transpose():
    """The error names reverse mode: no static method can be added to an operator."""
    cube = KINDS["by_jax"]()
    cube.register_autograd(lambda ctx, g: jnp.clip(g, -1, 1))
    with pytest.raises(NotImplementedError, match="in reverse mode") as caught:
        jax.jvp(cube, (X,), (X,))
    assert "static method" not in str(caught.value)


def test_kernels_that_disagree():
    """Kernels that give other shapes are refused by name."""

    def body(x: jax.Array) -> jax.Array:
        return x + 1

    made = op(body)
    made.register_kernel("gpu", lambda x: x[:1])
    with pytest.raises(
        fnjax.errors.OperatorError, match=r"disagree: float\d+\[3\] for all others, float\d+\[1\] for cuda"
    ):
        jax.jit(made)(X)


@pytest.mark.parametrize("order", ["vmap", "vmap of grad", "grad of vmap", "jit of grad of vmap", "vmap of vmap"])
def test_vmap_rule_is_honoured(order):
    """The registered rule is what computes a batch, before and after grad."""

    def body(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.asarray(np.asarray(x) * np.asarray(y))

    made, seen = op(body), []
    made.register_fake(lambda x, y: jnp.empty_like(x))
    made.register_autograd(lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]), setup_context=keep)

    @made.register_vmap
    def rule(info, in_dims, x, y):
        seen.append((info.batch_size, info.randomness, in_dims))
        return x * y, 0

    batched = jax.vmap(made, (0, None))

    def total(xs):
        return batched(xs, X).sum()

    runs = {
        "vmap": (lambda: batched(XS, X), XS * X),
        "vmap of grad": (lambda: jax.vmap(jax.grad(lambda x: made(x, X).sum()))(XS), jnp.stack([X, X])),
        "grad of vmap": (lambda: jax.grad(total)(XS), jnp.stack([X, X])),
        "jit of grad of vmap": (lambda: jax.jit(jax.grad(total))(XS), jnp.stack([X, X])),
        "vmap of vmap": (lambda: jax.vmap(batched, (0, None))(XS[None], X)[0], XS * X),
    }
    run, expected = runs[order]
    np.testing.assert_allclose(run(), expected, rtol=1e-6)
    assert (2, "error", (0, None)) in seen


def test_the_last_registration_counts_in_compiled_programs():
    """A program that was compiled before gives what the operator is now."""

    def body(x: jax.Array) -> jax.Array:
        return x * 2

    made = op(body)
    compiled = jax.jit(made)
    np.testing.assert_allclose(compiled(X), 2 * X)
    made.register_kernel("cpu", lambda x: x * 7)
    np.testing.assert_allclose(compiled(X), 7 * X)
    again = fnjax.custom_op(made.__qualname__, lambda x: x * 9, mutates_args=(), schema="(Tensor x) -> Tensor")
    np.testing.assert_allclose(compiled(X), 9 * X)
    np.testing.assert_allclose(again(X), made(X))
    with pytest.raises(AssertionError, match="defined again"):
        made.register_fake(jnp.empty_like)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_mutation_returns_new_values(wrap):
    """The new values come behind the results, in the order of the arguments."""

    def body(x: jax.Array, out: jax.Array, more: list[jax.Array]) -> jax.Array:
        return np.asarray(x) * 2, np.asarray(out) + 1, [np.asarray(m) + 2 for m in more]

    made = op(body, mutates_args=("out", "more"))
    made.register_fake(lambda x, out, more: (x, out, more))
    assert made.schema == "(Tensor x, Tensor(a1!) out, Tensor(a2!)[] more) -> Tensor"
    own, out, more = wrap(made)(X, X, [X, X])
    for got, expected in zip((own, out, *more), (2 * X, X + 1, X + 2, X + 2), strict=True):
        np.testing.assert_allclose(got, expected)


@pytest.mark.parametrize("returned", [None, X, (X, X, X), (X * 2, X[:1])], ids=["none", "own", "more", "other shape"])
def test_mutation_without_new_values(returned):
    """A body that does not return them, or others, is told so."""

    def body(x: jax.Array, out: jax.Array) -> jax.Array:
        return returned

    with pytest.raises(fnjax.errors.OperatorError, match=r"new value(s|) of .*out|Unable to cast"):
        op(body, mutates_args=("out",))(X, X)


def test_fake_of_mutation_without_new_values():
    """So is register_fake."""

    def body(x: jax.Array, out: jax.Array) -> jax.Array:
        return np.asarray(x) * 2, np.asarray(out)

    made = op(body, mutates_args=("out",))
    made.register_fake(lambda x, out: jnp.empty_like(x))
    with pytest.raises(fnjax.errors.OperatorError, match=r"register_fake of .* did not return the new values .*out"):
        jax.jit(made)(X, X)


def test_arrays_from_outside():
    """A body may use traced arrays of the function around it."""

    def gradient(y):
        def body(x: jax.Array) -> jax.Array:
            return x * y

        made = op(body)
        made.register_autograd(lambda ctx, g: g * y)
        return jax.grad(lambda x: made(x).sum())(X)

    np.testing.assert_allclose(jax.jit(gradient)(X), X)
    np.testing.assert_allclose(jax.vmap(gradient)(XS), XS)


def test_nothing_is_left_behind():
    """No tracer stays in an operator."""
    cube = by_numpy()
    with jax.checking_leaks():
        jax.jit(jax.grad(lambda x: cube(x).sum()))(X)
        jax.vmap(jax.grad(cube))(X)


def test_opcheck_finds_faults():
    """A fake of another shape fails two tests, a backward of too few gradients the other two."""
    cube = by_numpy()
    assert list(fnjax.opcheck(cube, (X,)).values()) == ["SUCCESS"] * 4
    cube.register_fake(lambda x: x[:1])
    failures = fnjax.opcheck(cube, (X,), raise_exception=False).failures
    assert set(failures) == {"test_faketensor", "test_aot_dispatch_dynamic"}

    def product(x: jax.Array, y: jax.Array) -> jax.Array:
        return x * y

    made = op(product)
    made.register_autograd(lambda ctx, g: g)
    with pytest.raises(fnjax.OpcheckError, match="incorrect number of gradients") as caught:
        fnjax.opcheck(made, (X, X))
    assert set(caught.value.results.failures) == {"test_autograd_registration", "test_aot_dispatch_dynamic"}


def test_opcheck_finds_a_body_that_knows_whether_it_is_traced():
    """A body that gives something else under jit fails."""

    def body(x: jax.Array) -> jax.Array:
        return x * (2 if isinstance(x, jax.core.Tracer) else 3)

    assert set(fnjax.opcheck(op(body), (X,), raise_exception=False).failures) == {"test_aot_dispatch_dynamic"}


def test_opcheck_finds_a_gradient_of_which_the_sum_is_zero():
    """A softmax whose backward is another one under jit fails, though the gradient of its sum is always zero."""

    def body(x: jax.Array) -> jax.Array:
        return jax.nn.softmax(x)

    def backward(ctx, g):
        p = ctx.p
        return (1 + isinstance(g, jax.core.Tracer)) * p * (g - (g * p).sum())

    softmax = op(body)
    softmax.register_autograd(backward, setup_context=lambda ctx, inputs, output: setattr(ctx, "p", output))
    assert set(fnjax.opcheck(softmax, (X,), raise_exception=False).failures) == {"test_aot_dispatch_dynamic"}


def test_schema_reading():
    """A schema that is given says what one that is inferred says."""

    def body(
        x: jax.Array, ys: list[jax.Array], n: int = 2, *, k: float | None = None
    ) -> tuple[jax.Array, list[jax.Array]]:
        return x * n, [y + (k or 0) for y in ys]

    inferred = op(body)
    given = op(body, schema=inferred.schema)
    assert given.schema == inferred.schema
    for made in (inferred, given):
        first, (second,) = made(X, [X], k=1)
        np.testing.assert_allclose(first, 2 * X)
        np.testing.assert_allclose(second, X + 1)


@pytest.mark.parametrize(
    "text", ["x", "(Tensor) -> Tensor", "(Tensor x) ->", "(Tensor x, int n=a b) -> Tensor", "(x) -> ()"]
)
def test_schema_that_cannot_be_read(text):
    """A text that is no schema is a RuntimeError that shows it."""
    with pytest.raises(fnjax.errors.OperatorError, match=r"got: ") as caught:
        fnjax.custom_op("tests::bad", lambda x: x, mutates_args=(), schema=text)
    assert text in str(caught.value)
    assert not hasattr(fnjax.ops.tests, "bad")


def test_a_refused_definition_leaves_the_one_before():
    """An operator stays where another of its name could not be defined."""
    cube = by_numpy()
    with pytest.raises(fnjax.errors.OperatorError, match="Expected one of"):
        fnjax.custom_op(
            cube.__qualname__, lambda x: x, mutates_args=(), schema="(Tensor x) -> Tensor", device_types="moon"
        )
    np.testing.assert_allclose(cube(X), X**3, rtol=1e-6)


def test_overloads_are_found():
    """An overload has a name of its own behind the operator's."""
    library = fnjax.Library("tests", "FRAGMENT")
    library.define("over(Tensor x) -> Tensor")
    library.define("over.twice(Tensor x) -> Tensor")
    library.impl("over", lambda x: x + 1)
    library.impl("over.twice", lambda x: x * 2)
    np.testing.assert_allclose(fnjax.ops.tests.over.twice(X), 2 * X)
    np.testing.assert_allclose(fnjax.ops.tests.over.default(X), X + 1)


def test_a_name_of_overloads_alone():
    """A name that only an overload has finds it, and calls it."""
    library = fnjax.Library("tests", "FRAGMENT")
    library.define("alone.twice(Tensor x) -> Tensor")
    library.impl("alone.twice", lambda x: x * 2)
    np.testing.assert_allclose(fnjax.ops.tests.alone.twice(X), 2 * X)
    np.testing.assert_allclose(fnjax.ops.tests.alone(X), 2 * X)
    with pytest.raises(AttributeError, match="no overload name 'thrice'"):
        fnjax.ops.tests.alone.thrice  # noqa: B018 - looked up


def test_wrap_triton():
    """wrap_triton returns a kernel unchanged, and refuses anything else as PyTorch does."""
    kernel = {"grid": lambda *args: args}
    assert fnjax.wrap_triton(kernel) is kernel
    with pytest.raises(RuntimeError, match="only works on functions annotated with triton"):
        fnjax.wrap_triton(lambda x: x)


@pytest.mark.parametrize(("kind", "given", "wanted"), [("SymInt", 2.5, 2), ("float", 2, 2.0), ("bool", 2, True)])
def test_a_number_that_is_an_array_is_cast(kind, given, wanted):
    """A number's type in the schema is enforced under jit, too, where it is an array."""
    op = fnjax.custom_op("casts::f", lambda x, n: x * n, mutates_args=(), schema=f"(Tensor x, {kind} n) -> (Tensor)")
    x = jnp.ones(2, jnp.float16)
    for found in (op(x, jnp.asarray(given)), jax.jit(lambda n: op(x, n))(given)):
        np.testing.assert_array_equal(found, np.full(2, wanted))
        assert found.dtype == x.dtype


def test_a_dispatch_key_that_is_none():
    """The error lists those that are."""
    with pytest.raises(fnjax.errors.OperatorError, match="one of CPU, CUDA"):
        fnjax.Library("casts", "FRAGMENT").impl("f", lambda x: x, "Foo")
