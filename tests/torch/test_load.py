"""Loading files and packages: private, lenient where a name is not used, and true to Python where it is."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.triton as own_triton
from fnjax import torch


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


PACKAGE = {
    "pkg/__init__.py": "__name__ = 'other'\nfrom .missing_part import nothing\n",
    "pkg/ops/__init__.py": "from .norm import Scale\nNAME = 'ops'\n",
    "pkg/ops/norm.py": (
        "import torch\nfrom ..util import helper\nimport pkg.util\n"
        "class Scale(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        return helper(x) + pkg.util.ONE\n"
        "    @staticmethod\n    def backward(ctx, g):\n"
        "        from pkg.util import helper as again\n        return again(g)\n"
    ),
    "pkg/util.py": "ONE = 1\ndef helper(x):\n    return x * 3\n",
}


def test_relative_and_absolute_imports(tmp_path):
    """A file of a package finds its neighbours, also by imports within functions; its __init__ may fail."""
    loaded = torch.load(write(tmp_path, PACKAGE) / "pkg" / "ops" / "norm.py")
    np.testing.assert_array_equal(loaded.Scale.apply(jnp.ones(2)), [4.0, 4.0])
    assert torch.load(tmp_path / "pkg" / "ops" / "norm.py") is loaded
    assert "pkg" not in sys.modules


def test_packages_run_their_init_for_names_that_are_no_modules(tmp_path):
    """A package gives its modules without its __init__, and other names with it."""
    loaded = torch.load(write(tmp_path, PACKAGE) / "pkg" / "ops" / "__init__.py", root=tmp_path)
    assert loaded.NAME == "ops"
    assert loaded.Scale is loaded.norm.Scale


def test_a_name_that_is_a_module_and_a_function(tmp_path):
    """`from pkg import send` is the function that `__init__` takes from the module of that name, as in Python."""
    files = {
        "pkg/__init__.py": "import no_such_module\nfrom .send import send\nfrom .send import OTHER as other\n",
        "pkg/send.py": "OTHER = 2\ndef send(x):\n    return x + 1\n",
        "pkg/other.py": "",
        "user.py": "import pkg.send\nfrom pkg import send, other\nRESULT = send(other)\nNESTED = pkg.send(1)\n",
    }
    loaded = torch.load(write(tmp_path, files) / "user.py")
    assert (loaded.RESULT, loaded.NESTED) == (3, 2)


def test_what_is_missing_raises_when_it_is_used(tmp_path):
    """Missing modules, unknown names of torch and statements that fail raise where they are used, with the reason."""
    text = (
        "import torch\nimport no_such_library\nfrom no_such_library.part import thing\n"
        "@no_such_library.register\ndef f(x):\n    return x + 1\n"
        "TABLE = thing.build(5)\nlimit: no_such_library.Type = 3\n"
        "BROKEN = 1 / 0\n"
        "def g(x):\n    return x + BROKEN\n"
        "def h(x):\n    return torch.no_such_function(x)\n"
        "class Sub(torch.nn.NoSuchLayer):\n    pass\n"
    )
    loaded = torch.load(write(tmp_path, {"file.py": text}) / "file.py")
    f, g, h = (torch.jax_view(getattr(loaded, n)) for n in "fgh")
    np.testing.assert_array_equal(f(jnp.ones(2)), [2.0, 2.0])
    assert loaded.limit == 3
    with pytest.raises(torch.NotSupported, match=r"BROKEN is not available \(ZeroDivisionError"):
        g(jnp.ones(2))
    with pytest.raises(torch.NotSupported, match="no_such_function"):
        h(jnp.ones(2))
    with pytest.raises(torch.NotSupported, match="no_such_library"):
        loaded.TABLE.look_up  # noqa: B018 - the access is the test


def test_imports_that_are_tried_fail_as_in_python(tmp_path):
    """An import within a try that catches its failure fails; hasattr of torch tells what is there."""
    text = (
        "import torch\ntry:\n    import no_such_library\n    FOUND = True\nexcept ImportError:\n    FOUND = False\n"
        "try:\n    from torch.cuda.amp import custom_fwd\nexcept ImportError:\n    custom_fwd = None\n"
        "NPU = hasattr(torch, 'npu')\nRELU = hasattr(torch, 'relu')\n"
    )
    loaded = torch.load(write(tmp_path, {"file.py": text}) / "file.py")
    assert (loaded.FOUND, loaded.NPU, loaded.RELU) == (False, False, True)
    assert callable(loaded.custom_fwd)


@pytest.mark.parametrize(
    ("path", "error", "text"),
    [
        ("nothing.py", FileNotFoundError, "there is no file 'nothing.py'$"),
        ("broken.py", SyntaxError, "invalid syntax|expected"),
        (".", FileNotFoundError, "it is a folder: load one of its files, such as broken.py"),
        ("os.path", FileNotFoundError, r"import_module\('os.path'\) loads a module"),
        ("torch.utils.data", FileNotFoundError, "files that are loaded import it themselves"),
    ],
)
def test_what_cannot_be_loaded(tmp_path, monkeypatch, path, error, text):
    """A file that is not there, and one that is no Python, are errors at once, which say what to load instead."""
    monkeypatch.chdir(write(tmp_path, {"broken.py": "def f(:\n"}))
    with pytest.raises(error, match=text):
        torch.load(path)


def test_roots(tmp_path):
    """A root that does not hold the file, and a package that is not installed, are errors."""
    write(tmp_path, {"a/file.py": "X = 1\n", "b/other.py": ""})
    with pytest.raises(ValueError, match="not under root"):
        torch.load(tmp_path / "a" / "file.py", root=tmp_path / "b")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        torch.import_module("no_such_package.part")


def test_import_needs_neither_torch_nor_libcst():
    """`import fnjax.torch` loads jax and numpy, and no library of another extra."""
    code = "import sys, fnjax.torch\nprint([m for m in ('torch', 'libcst', 'triton', 'einops') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_names_of_torch_that_are_not_there(tmp_path):
    """Layers and types that fnjax.torch does not have stand in annotations, base classes and module-level objects."""
    text = (
        "import torch\nfrom torch import nn\n"
        "def f(x, group: torch.distributed.ProcessGroup | None = None):\n"
        "    return x + 1 if not isinstance(x, nn.Mamba) else x\n"
        "class Layer(nn.Mamba):\n    def __init__(self, size):\n        super().__init__(size, bias=False)\n"
        "        self.size = size\n"
        "LAYER = Layer(3)\n"
        "if True:\n    def inner():\n        local = 1\n        return local\n    BROKEN = 1 / 0\n"
    )
    loaded = torch.load(write(tmp_path, {"file.py": text}) / "file.py")
    with pytest.raises(torch.NotSupported, match=r"torch\.nn\.Mamba"):
        torch.jax_view(loaded.f)(jnp.ones(2))
    assert loaded.LAYER.size == 3
    assert not hasattr(loaded, "local")
    with pytest.raises(torch.NotSupported, match=r"torch\.nn\.Mamba\S* "):
        loaded.LAYER.flatten_parameters()


def test_importlib_in_loaded_files(tmp_path):
    """An import by importlib finds torch, triton and the packages under root, privately; folders need no __init__."""
    files = {
        "space/deep/main.py": (
            "import importlib\nimport importlib.util\nfrom importlib.metadata import version\nimport torch\n"
            "OTHER = importlib.import_module('space.deep.other')\n"
            "RELATIVE = importlib.import_module('.other', package='space.deep')\n"
            "SAME = importlib.import_module('torch') is torch\n"
            "NAMES = ('torch', 'triton', 'space.deep.other', 'no_such')\n"
            "FOUND = [importlib.util.find_spec(n) is not None for n in NAMES]\n"
            "VERSIONS = version('torch'), version('triton')\n"
        ),
        "space/deep/other.py": "import torch\nONE = torch.ones(1)\n",
    }
    loaded = torch.load(write(tmp_path, files) / "space" / "deep" / "main.py", root=tmp_path)
    assert loaded.OTHER is loaded.RELATIVE
    assert isinstance(loaded.OTHER.ONE, torch.Tensor)
    assert loaded.SAME
    assert loaded.FOUND == [True, True, True, False]
    assert all(v[0].isdigit() for v in loaded.VERSIONS)
    assert "space" not in sys.modules


def test_triton_in_loaded_files(tmp_path):
    """Versions and drivers answer, a class derived from Triton's Autotuner tunes, what a file sets stays its own."""
    text = (
        "import torch\nimport triton\nimport triton.language as tl\n"
        "from triton.runtime.autotuner import Autotuner, OutOfResources\n"
        "NEW = tuple(map(int, triton.__version__.split('.')[:2])) >= (3, 4)\n"
        "WARP = triton.runtime.driver.active.get_current_target().warp_size\n"
        "class Tuner(Autotuner):\n"
        "    def __init__(self, fn, configs, key):\n"
        "        super().__init__(fn, fn.arg_names, configs, key, None, None, pre_hook=None)\n"
        "    def run(self, *args, **kwargs):\n"
        "        assert self.keys == ['n'] and not self.cache\n"
        "        return super().run(*args, **kwargs)\n"
        "def tune(configs, key):\n    return lambda fn: Tuner(fn, configs, key)\n"
        "triton.autotune = tune\n"
        "@triton.autotune([triton.Config({'BLOCK': 4}, num_warps=2)], ['n'])\n"
        "@triton.jit\ndef double(x, out, n, BLOCK: tl.constexpr):\n"
        "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    tl.store(out + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)\n"
        "def launch(x):\n    out = torch.empty_like(x)\n"
        "    double[lambda meta: (triton.cdiv(x.numel(), meta['BLOCK']),)](x, out, x.numel())\n    return out\n"
    )
    before = own_triton.autotune
    loaded = torch.load(write(tmp_path, {"file.py": text}) / "file.py")
    assert loaded.NEW
    assert loaded.WARP == 32
    assert own_triton.autotune is before
    np.testing.assert_array_equal(torch.jax_view(loaded.launch)(jnp.arange(6.0)), 2 * jnp.arange(6.0))


def test_checks_of_values(tmp_path):
    """`torch._assert_async` raises where the value is known, and passes where JAX traces it; bfloat16 is supported."""
    text = """
import torch

def halved(x):
    torch._assert_async((x > 0).all(), "positive numbers only")
    torch._check(x.ndim == 1, lambda: "one axis only")
    return x.to(torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16) / 2
"""
    halved = torch.jax_view(torch.load(write(tmp_path, {"file.py": text}) / "file.py").halved)
    assert jax.jit(halved)(-jnp.ones(2)).dtype == jnp.bfloat16
    with pytest.raises(AssertionError, match="positive numbers only"):
        halved(-jnp.ones(2))
    with pytest.raises(RuntimeError, match="one axis only"):
        jax.jit(halved)(jnp.ones((2, 1)))


def test_einops_returns_shapes_beside_tensors(tmp_path):
    """Values beside arrays that einops returns, as the shapes of pack, pass through; gradients too."""
    pytest.importorskip("einops")
    path = tmp_path / "packing.py"
    path.write_text("""
import einops

def function(x):
    packed, shapes = einops.pack([x, x * 2], "* d")
    first, second = einops.unpack(packed, shapes, "* d")
    return einops.rearrange(first * second, "a b -> (b a)").sum() * einops.parse_shape(x, "a b")["a"]
""")
    x = jnp.arange(6.0).reshape(2, 3)
    function = torch.jax_view(torch.load(path).function)
    np.testing.assert_array_equal(jax.jit(jax.grad(function))(x), 8 * x)  # 2 * sum(2 x^2)


def test_files_that_have_changed_are_loaded_again(tmp_path):
    """A file is executed once, and again when it or a file that it imports has changed, as notebooks write it."""
    (tmp_path / "helper.py").write_text("VALUE = 1\n")
    (tmp_path / "model.py").write_text("import torch\nfrom helper import VALUE\ndef f(): return VALUE\n")
    first = torch.load(tmp_path / "model.py")
    assert torch.load(tmp_path / "model.py") is first
    (tmp_path / "helper.py").write_text("VALUE = 22\n")
    second = torch.load(tmp_path / "model.py")
    (tmp_path / "model.py").write_text("import torch\nfrom helper import VALUE\ndef f(): return 10 * VALUE\n")
    assert [first.f(), second.f(), torch.load(tmp_path / "model.py").f()] == [1, 22, 220]
    assert torch.load(tmp_path / "model.py") is torch.load(tmp_path / "model.py")
