"""Loading is importing: what Python does with a module's file, it does with one that fnjax.torch loads."""

import importlib
import pickle
import subprocess
import sys
import textwrap
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import torch


def load(folder, files, main=None):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return torch.load(folder / (main or [*files][-1]), root=folder)


def test_a_package_runs_its_init_as_python_does(tmp_path):
    """Each package around a file runs once, before it: an operator has the kernel that a submodule registers."""
    files = {
        "pkg/__init__.py": "LOG = ['pkg']\nfrom . import operators\nfrom .backends import default\nLOG.append('end')\n",
        "pkg/operators.py": """
            import torch
            from pkg import LOG
            LOG.append(__name__.rpartition(".")[2])
            LIBRARY = torch.library.Library("test_imports", "DEF")
            LIBRARY.define("double(Tensor x) -> Tensor")
            """,
        "pkg/backends/__init__.py": "import no_such_library\n",
        "pkg/backends/default/__init__.py": "from . import ops\n",
        "pkg/backends/default/ops.py": """
            import torch
            @torch.library.impl("test_imports::double", "cpu")
            def double(x):
                return x * 2
            """,
        "pkg/layers.py": """
            import torch
            from . import LOG
            def f(x):
                return torch.ops.test_imports.double(x)
            """,
    }
    loaded = load(tmp_path, files)
    assert loaded.LOG == ["pkg", "operators", "end"]
    function = torch.jax_view(loaded.f)
    np.testing.assert_array_equal(function(jnp.ones(2)), [2, 2])
    np.testing.assert_array_equal(jax.jit(function)(jnp.ones(2)), [2, 2])


def test_a_module_knows_itself(tmp_path):
    """sys.modules, importlib, globals, inspect, typing, dataclasses, pickle and copy work on a loaded module."""
    files = {
        "pkg/__init__.py": "",
        "pkg/other.py": "VALUE = 1\n",
        "pkg/main.py": '''
            """The module's text."""
            from __future__ import annotations
            import copy, dataclasses, importlib, importlib.util, inspect, pickle, sys, typing
            import torch
            import pkg.other
            from . import other
            "No docstring."

            SELF = sys.modules[__name__]
            OTHER = importlib.import_module(__package__ + ".other")
            RELATIVE = importlib.import_module(".other", __package__)
            globals()["DYNAMIC"] = 5
            number: int = 3

            @dataclasses.dataclass
            class Data:
                size: int
                shared: typing.ClassVar[int] = 2
                tensor: torch.Tensor | None = None

            class Plain:
                def method(self, data: Data) -> torch.Tensor:
                    return data

            COPIES = pickle.loads(pickle.dumps(Data(1))), copy.deepcopy(Data(1)), copy.copy(Data(1))
            NAMES = [name in sys.modules for name in ("torch", "torch.nn", "pkg.other", "numpy", "no_such_module")]
            sys.modules["pkg.made"] = type(sys)("made")
            from pkg import made
            MADE = sys.modules.pop("pkg.made") is made

            def late():
                from .other import VALUE
                return VALUE

            def __getattr__(name):
                if name == "lazy":
                    return "found"
                raise AttributeError(name)
            ''',
        "pkg/replaced.py": "import sys, types\nsys.modules[__name__] = types.SimpleNamespace(VALUE=7)\n",
        "user.py": "from pkg.main import lazy\nimport pkg.replaced\nfrom pkg import replaced\n",
    }
    user = load(tmp_path, files)
    main = sys.modules[user.lazy and user.pkg.__name__ + ".main"]
    assert main.__doc__ == "The module's text."
    assert main.SELF is main
    assert main.OTHER is main.RELATIVE is main.other is main.pkg.other
    assert main.late() == 1
    assert main.MADE
    assert (user.lazy, main.DYNAMIC, user.replaced.VALUE) == ("found", 5, 7)
    assert main.NAMES == [True, True, True, True, False]
    assert set(map(repr, main.COPIES)) == {repr(main.Data(1))}
    assert pickle.loads(pickle.dumps(main.Plain)) is main.Plain
    assert [field.name for field in main.dataclasses.fields(main.Data)] == ["size", "tensor"]
    assert main.typing.get_type_hints(main.Plain.method) == {"data": main.Data, "return": torch.Tensor}
    assert main.inspect.getsource(main.Plain).startswith("class Plain:\n    def method")
    assert main.__file__ == main.__spec__.origin == str(tmp_path / "pkg" / "main.py")
    assert main.__package__ == user.pkg.__name__
    assert "pkg" not in sys.modules


@pytest.mark.parametrize(
    ("files", "error", "text"),
    [
        ({"b.py": "from a import x\n", "a.py": "from b import y\nx = 1\n"}, ImportError, r"'x' from partially .* 'a' "),
        ({"b.py": "import a\ny = a.x\n", "a.py": "import b\nx = 1\n"}, AttributeError, "partially .* circular import"),
        ({"p/__init__.py": "from .a import f\nx = 1\n", "p/a.py": "from . import x\n"}, ImportError, "circular import"),
        ({"b.py": "def f(:\n", "a.py": "import b\n"}, SyntaxError, r"b\.py, line 1"),
        (
            {"b.py": "x = 1\n y = 2\n", "a.py": "try: from b import y\nexcept ImportError: pass\n"},
            SyntaxError,
            "line 2",
        ),
        ({"p/__init__.py": "", "p/a.py": 'def f(): pass\nx = "\n'}, SyntaxError, r"a\.py, line 2"),
        ({"a.py": "x = 1\nfrom __future__ import annotations\n"}, SyntaxError, r"beginning .* \(a\.py, line 2"),
        ({"b.py": "x = 1\nglobal x\n", "a.py": "import b\n"}, SyntaxError, r"before global .* \(b\.py, line 2"),
    ],
)
def test_files_that_python_cannot_import(tmp_path, files, error, text):
    """A file that is no Python, and circular imports, raise Python's errors; a second try, after a change, works."""
    with pytest.raises(error, match=text):
        load(tmp_path, files)
    names = [*files]
    repaired = {name: "x = y = 1\n" for name in names if name.endswith(("a.py", "b.py"))}
    assert load(tmp_path, repaired, names[-1]).x == 1


def test_extensions_that_are_not_there(tmp_path):
    """A compiled module is missing, not imported in a circle, also where the package that imports it is executed."""
    files = {
        "pkg/__init__.py": "from .ops import f\nfrom . import _C\nimport pkg._C\n",
        "pkg/ops.py": "import pkg\nfrom pkg import _C as ext\nKERNEL = pkg._C2.kernel\ndef f(x): return x + 1\n",
        "main.py": "from pkg import f, ops\n",
    }
    loaded = load(tmp_path, files)
    assert loaded.f(1) == 2
    for name in ("ext", "KERNEL"):
        with pytest.raises(torch.NotSupported, match="_C"):
            getattr(loaded.ops, name)()


def test_circular_imports_that_python_allows(tmp_path):
    """A module that is only being executed is imported; its names are read later."""
    files = {"b.py": "import a\ndef f(): return a.x\n", "a.py": "import b\nx = 1\n"}
    assert load(tmp_path, files).b.f() == 1


def test_imports_in_functions_fail_as_in_python(tmp_path):
    """A function that imports a missing module raises ImportError; a missing name of torch raises when it is used."""
    text = """
        def module(): import no_such_module.part
        def relative(): from . import no_such_part
        def name():
            from torch import no_such_name
            return no_such_name()
        def available():
            try:
                module()
            except ImportError:
                return False
            return True
    """
    loaded = load(tmp_path, {"pkg/__init__.py": "", "pkg/main.py": text})
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module'"):
        loaded.module()
    with pytest.raises(ImportError, match="cannot import name 'no_such_part' from 'pkg'"):
        loaded.relative()
    with pytest.raises(torch.NotSupported, match="no_such_name"):
        loaded.name()
    assert loaded.available() is False


def test_files_whose_name_no_import_can_have(tmp_path):
    """A file's name may hold dots, dashes and spaces; its encoding is what it declares."""
    path = tmp_path / "my-layers v2.1.py"
    path.write_bytes(
        "# -*- coding: latin-1 -*-\nimport sys\nTEXT = 'é'\nSELF = sys.modules[__name__]\n".encode("latin-1")
    )
    loaded = torch.load(path)
    assert loaded.TEXT == "é"
    assert loaded.SELF is loaded is torch.load(path)


def test_two_threads_get_whole_modules(tmp_path):
    """Of two threads that load a file, or files that import each other, each gets them after they were executed."""
    slow = "import time\n{}\ntime.sleep(0.2)\nVALUE = 1\ndef total(): return VALUE + {}\n"
    files = {"a.py": slow.format("import b", "b.VALUE"), "b.py": slow.format("import a", "a.VALUE")}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = []
    threads = [
        threading.Thread(target=lambda name=name: found.append(torch.load(tmp_path / name).total()))
        for name in [*files] * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2] * 4


def test_what_a_file_sets_in_torch_stays_its_roots(tmp_path):
    """Functions that a file puts into torch are seen by the files of its root, not by others and not by fnjax.torch."""
    files = {
        "other.py": "import torch.nn.functional as F\ndef g(x): return F.relu(x)\n",
        "main.py": """
            import torch
            import torch.nn.functional as F
            from torch import nn
            import other
            def mine(x): return 100 * x
            F.relu = mine
            torch.sigmoid = mine
            def f(x):
                from torch.nn.functional import relu
                return F.relu(x) + relu(x) + torch.nn.functional.relu(x) + nn.functional.relu(x) + torch.sigmoid(x)
            """,
    }
    x = torch.ones(1)
    loaded = load(tmp_path / "first", files)
    assert (loaded.f(x).item(), loaded.other.g(x).item()) == (500, 100)
    second = load(tmp_path / "second", {"other.py": files["other.py"]})
    assert second.g(x).item() == torch.nn.functional.relu(x).item() == 1
    assert torch.sigmoid(x).item() < 1


EINOPS = """
import einops
import torch
from einops import rearrange, reduce
from einops.layers.torch import EinMix, Rearrange, Reduce

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            Rearrange("b (h k) -> b h k", k=2), Reduce("b h k -> b h", "max"), Rearrange("b h -> (h b)")
        )
        self.mix = EinMix("n -> m", weight_shape="n m", n=4, m=3)

    def forward(self, x):
        return self.mix(self.layers(x))

def f(x):
    y = rearrange(x, "a (b c) -> (c a) b", c=2)
    return reduce(y * y, "a b -> b", "mean") + einops.einsum(x, x, "a b, a c -> b")[:1]
"""


@pytest.mark.slow
def test_einops_and_its_layers(tmp_path):
    """A package in pure Python that imports torch is loaded privately: it works on tensors, its layers are modules."""
    pytest.importorskip("einops")
    loaded = load(tmp_path, {"net.py": EINOPS})
    x = jnp.arange(8.0).reshape(2, 4)
    function = torch.jax_view(loaded.f)

    def expected(x):
        y = x.reshape(2, 2, 2).transpose(2, 0, 1).reshape(4, 2)
        return (y * y).mean(0) + jnp.einsum("ab,ac->b", x, x)[:1]

    for compiled in (lambda f: f, jax.jit):
        np.testing.assert_allclose(compiled(function)(x), expected(x), rtol=1e-6)
        gradient = compiled(jax.grad(lambda x: function(x).sum()))
        np.testing.assert_allclose(gradient(x), jax.grad(lambda x: expected(x).sum())(x), rtol=1e-6)
    with torch.seed(0):
        net = loaded.Net()
    assert isinstance(net.layers[0], torch.nn.Module)
    weight = torch.jax_view(net.mix.weight)
    rows = x.reshape(2, 2, 2).max(2).T.reshape(4)
    np.testing.assert_allclose(torch.jax_view(net)(x), rows @ weight, rtol=1e-6)


@pytest.mark.slow
def test_a_package_that_imports_torch_when_it_is_called(tmp_path):
    """opt_einsum, which JAX depends on, finds torch by the module of its arguments, and imports it in a function."""
    source = "import opt_einsum\ndef f(x):\n    return opt_einsum.contract('ab,cb,cd->ad', x, x, x)"
    x = jnp.arange(4.0).reshape(2, 2)
    assert (jax.jit(torch.jax_view(load(tmp_path, {"net.py": source}).f))(x) == x @ x.T @ x).all()


def test_import_module_in_a_file_that_is_being_executed(tmp_path):
    """It returns the module as it is so far, as Python's does, and looks for none of the names in its `__all__`."""
    source = """
        import importlib, typing, torch
        __all__ = ["later"]
        def __getattr__(name): raise ModuleNotFoundError(name)
        own = importlib.import_module(__name__)
        class Base(torch.nn.Module):
            names: typing.ClassVar = "text"
            def __init_subclass__(cls):
                cls.hints = typing.get_type_hints(cls)
        class Sub(Base): pass
        def later(): return own.later is later, isinstance(1, torch.nn.attention.flex_attention.BlockMask)
    """
    loaded = load(tmp_path, {"net.py": source})
    assert loaded.later() == (True, False)
    assert loaded.Sub.hints["training"] is bool


@pytest.mark.slow
def test_import_module_of_a_package_that_needs_torch():
    """A module of an installed package is loaded with what it imports beside it; the interpreter's own is another."""
    pytest.importorskip("einops")
    code = """if True:
        import sys, einops, jax, jax.numpy as jnp
        from fnjax import torch
        layer = torch.import_module("einops.layers.torch").Rearrange("a b -> b a")
        assert isinstance(layer, torch.nn.Module)
        assert torch.import_module("einops") is not einops
        assert not {"torch", "einops.layers"} & {*sys.modules}
        x = jnp.arange(6.0).reshape(2, 3)
        assert (jax.jit(torch.jax_view(layer))(x) == x.T).all()
        assert (torch.import_module("einops").rearrange(torch.torch_view(x), "a b -> b a").array == x.T).all()
        """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_star_imports_of_torch(tmp_path):
    """`from torch import *` binds the names of functions, classes and dtypes."""
    source = """
        from torch import *
        from torch.nn import *
        from torch.nn.functional import *
        def f(x): return relu(sin(x)) + abs(x), float32, Linear(2, 3).weight.shape
        """
    with torch.seed(0):
        value, dtype, shape = load(tmp_path, {"star.py": source}).f(torch.tensor([-2.0, 1.0]))
    np.testing.assert_allclose(value.numpy(), [2, np.sin(1.0) + 1], rtol=1e-6)
    assert (dtype, shape) == (torch.float32, (3, 2))


def test_attributes_that_a_file_gives_tensors(tmp_path):
    """A new method of torch.Tensor is one in the files of the root; replacing one of PyTorch's ends loading."""
    text = """
        import torch
        torch.Tensor.twice = lambda self: self * 2
        torch.Tensor.halved = property(lambda self: self / 2)
        torch.Tensor.LIMIT = 3
        def f(x): return x.twice() + x.halved + x.LIMIT
        def has(x): return hasattr(x, "twice"), hasattr(torch.Tensor, "twice")
        class Sub(torch.Tensor): pass
        Sub.twice = 1
        torch.Tensor.thrice = torch.Tensor.twice
        """
    loaded = load(tmp_path / "first", {"main.py": text})
    x = torch.ones(2)
    function = torch.jax_view(loaded.f)
    for compiled in (function, jax.jit(function)):
        np.testing.assert_array_equal(compiled(jnp.ones(2)), [5.5, 5.5])
    assert loaded.has(x) == (True, True)
    other = load(tmp_path / "second", {"main.py": "import torch\n" + "def has(x): return hasattr(x, 'twice')\n"})
    assert not other.has(x)
    assert not hasattr(x, "twice")
    assert not hasattr(torch.Tensor, "thrice")
    with pytest.raises(torch.NotSupported, match=r"another torch\.Tensor\.relu"):
        load(tmp_path / "third", {"main.py": "import torch\ntorch.Tensor.relu = lambda self: self * 100\n"})
    np.testing.assert_array_equal(x.relu().numpy(), [1, 1])


def test_default_dtype_of_a_root(tmp_path):
    """torch.set_default_dtype at the top level holds for what the root's files make, and for no other file."""
    text = """
        import torch
        {}
        WEIGHT = torch.ones(2)
        def dtypes():
            i = torch.tensor([1, 2])
            made = torch.zeros(2), torch.tensor(0.5), torch.tensor([1.0]), torch.arange(0.0, 2.0)
            computed = i * 0.5, i / 2, i.sqrt(), torch.where(i > 1, 1.0, 0.0), WEIGHT.exp()
            layers = torch.nn.Linear(1, 1).weight, torch.nn.BatchNorm1d(1).running_mean
            kept = torch.ones(2, dtype=torch.float32) * 0.5, torch.ones(2, dtype=torch.float16) * 2.0
            return {{t.dtype for t in (*made, *computed, *layers)}}, [t.dtype for t in kept], (i * 1j).dtype
        def scaled(x): return x * 0.5
        def late():
            torch.set_default_dtype(torch.float32)
        """
    for i, setting in enumerate(
        ["torch.set_default_dtype(torch.float64)", "torch.set_default_tensor_type(torch.DoubleTensor)"]
    ):
        loaded = load(
            tmp_path / str(i), {"other.py": "import torch\n" + setting, "main.py": text.format("import other")}
        )
        with torch.seed(0):
            assert loaded.dtypes() == ({torch.float64}, [torch.float32, torch.float16], torch.complex128)
            assert jax.jit(torch.jax_view(loaded.scaled))(jnp.arange(2)).dtype == jnp.zeros(1, float).dtype
        with pytest.raises(torch.NotSupported, match="set_default_dtype outside of the top level"):
            loaded.late()
    plain = load(tmp_path / "plain", {"main.py": text.format("")})
    with torch.seed(0):
        assert plain.dtypes() == ({torch.float32}, [torch.float32, torch.float16], torch.complex64)
    assert torch.get_default_dtype() is torch.ones(1).dtype is torch.float32


def test_sys_modules_are_restored(tmp_path):
    """A file that takes modules out of sys.modules and puts them back leaves all as they were, as mock does."""
    text = """
        import sys
        from unittest import mock
        import other
        with mock.patch.dict(sys.modules, {"made": sys}):
            import made
        import other as again, another
        FRESH = []
        for _ in range(2):
            saved = {name: sys.modules.pop(name) for name in list(sys.modules) if name == "another"}
            import another as fresh
            FRESH.append(fresh)
            sys.modules.update(saved)
        import another as last
    """
    before = dict(sys.modules)
    loaded = load(tmp_path, {"user.py": text, "other.py": "", "another.py": "", "main.py": "import user"}).user
    assert loaded.again is loaded.other
    assert loaded.last is loaded.another
    assert len({id(m) for m in (loaded.another, *loaded.FRESH)}) == 3
    assert before.items() <= sys.modules.items()


def test_modules_of_torch_are_imported_by_name():
    """`import fnjax.torch.nn.functional as F` gives what attributes give; what is absent says why."""
    found: dict[str, object] = {}
    exec("import fnjax.torch.nn.functional as F\nfrom fnjax.torch.autograd import Function", found)
    assert found["F"] is torch.nn.functional
    assert found["Function"] is torch.autograd.Function
    for name, text in (
        ("optim", "fix: use optax"),
        ("utils.data", "fix: iterate over NumPy"),
        ("nothing", "No module"),
    ):
        with pytest.raises(ModuleNotFoundError, match=text) as caught:
            importlib.import_module(f"fnjax.torch.{name}")
        assert caught.value.name == f"fnjax.torch.{name}"


def test_the_remedy_of_a_statement_that_failed(tmp_path):
    """A name that a failed statement would have bound says how the statement can run."""
    (tmp_path / "net.py").write_text("import torch\nnet = torch.nn.Linear(2, 3)\n")
    with pytest.raises(
        torch.NotSupported, match=r"net is not available.*\n  fix: call it within `with fnjax.torch.seed"
    ):
        torch.load(tmp_path / "net.py").net.weight  # noqa: B018 - it raises
