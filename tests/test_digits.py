"""The demo, `examples/digits.py`: its Functions next to their plain twins, its training, its check, its options."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.image import imread

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "digits.py"
MODES = {"eager": lambda f: f, "jit": jax.jit}


def load_script():
    """The demo as a module, made anew at each call."""
    spec = importlib.util.spec_from_file_location("digits", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


digits = load_script()

rng = np.random.default_rng(0)
X, G = rng.standard_normal((2, 4, 6))
WEIGHT, BIAS = rng.standard_normal((2, 6))
SMOOTH = {"swish": (X,), "layer_norm": (X, WEIGHT, BIAS)}
ALL = {**SMOOTH, "fake_quantize": (X,)}
STATIC = {"fake_quantize": (4, 1.2)}

mode = pytest.mark.parametrize("mode", MODES)


def both(name):
    """The Function and its twin, static arguments filled in."""
    static = STATIC.get(name, ())
    layers = getattr(digits.FUNCTIONS, name), getattr(digits.PLAIN, name)
    return [lambda *args, f=f: f(*args, *static) for f in layers]


def close(got, expected):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@mode
@pytest.mark.parametrize("name", ALL)
def test_function_and_twin_have_the_same_value_and_gradients(name, mode, x64):
    """A Function has the value of its twin and, for each array argument, its gradient."""
    args = ALL[name]
    with jax.checking_leaks():
        (value, pull), (plain_value, plain_pull) = (jax.vjp(MODES[mode](f), *args) for f in both(name))
        close(value, plain_value)
        close(pull(jnp.asarray(G)), plain_pull(jnp.asarray(G)))


@mode
@pytest.mark.parametrize("name", SMOOTH)
def test_function_and_twin_have_the_same_second_derivatives(name, mode, x64):
    """Swish and LayerNorm, which saves intermediates, have the twin's second derivatives in all arguments at once."""
    args = SMOOTH[name]

    def second(f):
        def slope(*args):
            grads = jax.grad(lambda *args: jnp.vdot(f(*args), G), argnums=tuple(range(len(args))))(*args)
            return sum(jnp.vdot(grad, grad) for grad in grads)

        return MODES[mode](jax.grad(slope, argnums=tuple(range(len(args)))))(*args)

    close(*map(second, both(name)))


@mode
def test_fake_quantize_by_hand(mode):
    """With 3 bits and limit 3 the values are the integers from -3 to 3; outside, the gradient is zero."""
    x = np.array([-4.0, -3.0, -0.4, 0.6, 1.5, 2.5, 3.0, 3.5], np.float32)

    def quantize(x):
        return digits.FakeQuantize.apply(x, 3, 3.0)

    grads = np.arange(1, 9, dtype=np.float32)
    value, pull = jax.vjp(MODES[mode](quantize), x)
    np.testing.assert_array_equal(value, [-3, -3, 0, 1, 2, 2, 3, 3])
    np.testing.assert_array_equal(pull(jnp.asarray(grads))[0], [0, 2, 3, 4, 5, 6, 7, 0])


def test_fake_quantize_straight_through_twice():
    """The second derivative of a square behind the rounding is 2, straight through, and 0 outside of the range."""

    def slope(x):
        return jax.grad(lambda x: digits.FakeQuantize.apply(x, 3, 3.0) ** 2)(x)

    assert [float(slope(x)) for x in (0.6, 2.2, 3.5)] == [2.0, 4.0, 0.0]
    assert [float(jax.grad(slope)(x)) for x in (0.6, 2.2, 3.5)] == [2.0, 2.0, 0.0]


@pytest.mark.parametrize(("bits", "values"), [(2, 3), (3, 7), (4, 15)])
def test_fake_quantize_uses_its_bits(bits, values):
    """A static int of `bits` leaves 2 ** bits - 1 values, symmetric about zero."""
    grid = np.unique(jax.jit(lambda x: digits.FakeQuantize.apply(x, bits, 1.0))(np.linspace(-2, 2, 999, dtype="f")))
    assert len(grid) == values
    np.testing.assert_array_equal(grid, -grid[::-1])
    assert grid[-1] == pytest.approx(1)


def test_swish_keeps_its_input_only():
    """The pullback of Swish holds one array, the input; that of the twin holds more."""
    x = jnp.asarray(X, jnp.float32)
    kept, plain = ([a for a in jax.tree.leaves(jax.vjp(f, x)[1]) if a.size] for f in both("swish"))
    assert len(kept) == 1
    np.testing.assert_array_equal(kept[0], x)
    assert len(plain) > 1


def test_data_are_split_as_announced():
    """A quarter of the digits is held out, each digit in proportion, with pixels between 0 and 1."""
    images, held_out_images, labels, held_out_labels = digits.load()
    assert (images.shape, held_out_images.shape) == ((1347, 64), (450, 64))
    assert (images.min(), images.max()) == (0, 1)
    shares = [np.bincount(y, minlength=10) / len(y) for y in (labels, held_out_labels)]
    np.testing.assert_allclose(*shares, atol=0.003)


def test_short_training():
    """After five epochs 95 % of the held-out digits are read correctly, in float32 whatever the configuration."""
    run = digits.train(digits.FUNCTIONS, digits.load(), epochs=5, seed=0)
    assert run.losses.shape == (105,)
    assert run.losses.dtype == np.float32
    assert run.losses[-21:].mean() < 0.1 * run.losses[:5].mean()
    assert run.accuracies.shape == (5, 2)
    assert run.accuracies[-1, 1] > 0.95


def test_what_goes_wrong_is_said(capsys, tmp_path):
    """A training too short and a gradient wrong by a thousandth give exit status 1 and a line each, though quiet."""
    module = load_script()
    right = module.LayerNorm.backward
    module.LayerNorm.backward = staticmethod(lambda *args: jax.tree.map(lambda grad: 1.001 * grad, right(*args)))
    assert module.main(["--check", "--epochs=1", "--quiet", f"--plot={tmp_path / 'plot.png'}"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    accuracy, derivatives = printed.err.removeprefix("FAILED: ").split("\nFAILED: ")
    assert accuracy.startswith("the accuracy on held-out digits, ")
    assert accuracy.endswith(" is not above 95%")
    assert derivatives.startswith("the Functions differ from JAX's own derivatives")


def test_help(capsys):
    """--help explains each option."""
    with pytest.raises(SystemExit) as exit_:
        digits.main(["--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert text.isascii()  # for terminals of all kinds
    for option in ("--help", "--epochs N", "--seed N", "--plot PATH", "--check", "--quiet"):
        assert f"\n  {option} " in text or f", {option} " in text
    assert "default: 30" in text


@pytest.mark.parametrize(
    "option", ["--epochs=0", "--epochs=many", "--seed=-1", f"--plot={ROOT}", "--plot=no/such/folder/plot.png", "--fast"]
)
def test_bad_options(option, capsys):
    """An option that makes no sense ends the demo before it trains, with one line that names the option."""
    with pytest.raises(SystemExit) as exit_:
        digits.main([option])
    assert exit_.value.code == 2
    assert option.partition("=")[0] in capsys.readouterr().err.splitlines()[-1]


def start(*options, cwd):
    """The demo as its users start it."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(SCRIPT), *options],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_script_with_check(tmp_path):
    """Away from a terminal the script prints plain lines, agrees with JAX's own derivatives, and leaves a PNG."""
    with start("--check", "--epochs=5", cwd=tmp_path) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert all(c.isprintable() or c == "\n" for c in out)
    for words in (
        "1347 digits to train on, 450 held out",
        "on the held-out digits\n",
        "loss and accuracy are drawn in digits.png\n",
        "largest differences over 105 steps with JAX's own derivatives instead:\n",
        "float64: loss ",
        "float32: loss ",
    ):
        assert words in out
    assert [path.name for path in tmp_path.iterdir()] == ["digits.png"]
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = imread(tmp_path / "digits.png")
    assert pixels.shape == (600, 1500, 4)
    assert 0.01 < (pixels[..., :3] < 0.9).any(-1).mean() < 0.3  # lines and letters on white


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN, reason="SIGINT is ignored here, as in background jobs of a shell"
)
def test_ctrl_c_ends_the_script_politely(tmp_path):
    """Ctrl-C during the training ends the script with one word and the status that shells expect."""
    with start("--epochs=100000", cwd=tmp_path) as process:
        assert "held out" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, "\nstopped\n")
    assert list(tmp_path.iterdir()) == []
