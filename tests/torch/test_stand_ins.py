"""Top-level statements that cannot run, and the stand-ins that they leave."""

import textwrap

import jax.numpy as jnp
import pytest

from fnjax import torch


def load(folder, text):
    path = folder / "file.py"
    path.write_text(textwrap.dedent(text))
    return torch.load(path)


FAILING = """
import logging
import os
import torch

def fail():
    raise ValueError("on purpose")

{before}
{statement}
AFTER = 5
"""


@pytest.mark.parametrize(
    ("before", "statement", "lost"),
    [
        ("S = 1.0", "S = fail()", "S"),
        ("S = 1.0", "S += fail()", "S"),
        ("S = T = 1.0", "S, T = fail(), 2.0", "S T"),
        ("for S in (): pass", "for S in range(3): fail()", "S"),
        ("S = 1", "with fail() as S: pass", "S"),
        ("S = 1", "def S(x=fail()): pass", "S"),
        ("class S: k = 1.0", "S.k = fail()", "S"),
        ("class S: k = 1.0", "del S.nothing", "S"),
        ("S = {'k': 1.0}", "S['k'] = fail()", "S"),
        ("S = {'k': 1.0}; T = S", "S.update(k=fail())", "S T"),
        ("class S:\n    @classmethod\n    def set(cls, x): cls.k = x", "S.set(fail())", "S"),
        ("S = torch.ones(2); T = S[:1]; U = [S]", "S.normal_()", "S T U[0]"),
        ("S = torch.ones(2)", "torch.nn.init.normal_(S)", "S"),
        ("S = torch.ones(2)", "T = S.normal_().sum()", "S T"),
        ("S = [1]", "T = S.pop(fail())", "S T"),
        ("S = [1]\ndef change(x):\n    S.append(x)\n    fail()", "change(2)", "S"),
        ("S = 1\ndef change():\n    global S\n    fail()\n    S = 2", "change()", "S"),
        ("import types; S = types.SimpleNamespace(a=1)", "if fail(): S.a = 2", "S"),
        ("S = 1", "if True:\n    S = 2\n    T = fail()\n    U = 3", "T"),
        ("S = 1", "try:\n    S = 2\n    fail()\nexcept KeyError:\n    pass", "S"),
        ("S = 1", "try:\n    S = torch.rand(2)\nexcept Exception:\n    S = 2", "S"),
        ("S = 1", "match [2, fail]:\n    case [S, f] if f(): pass", "S"),
        ("S = 1", "T = [(S := 2), fail()]; U = [(S := i, fail()) for i in [3]]", "S"),
    ],
)
def test_a_statement_that_fails_leaves_no_former_values(tmp_path, before, statement, lost):
    """Names that it would bind and objects that it would change raise with the reason; the rest is there."""
    loaded = load(tmp_path, FAILING.format(before=before, statement=statement))
    assert loaded.AFTER == 5
    for name in lost.split():
        with pytest.raises(torch.NotSupported, match=r"on purpose|need a key|nothing"):
            print(eval(name, vars(loaded)) + 1)


@pytest.mark.parametrize(
    ("before", "statement", "kept"),
    [
        ("S = [1]", "T = len(S) + fail()", "S == [1]"),
        ("S = logging.getLogger('a')", "S.info(fail())", "S.name == 'a'"),
        ("S = 3", "print(S, fail())", "S == 3"),
        ("S = 3", "if True:\n    S = 4\n    T = fail()", "S == 4"),
        ("S = T = 1\ndef change():\n    global T\n    fail()", "change()", "S == 1"),
        ("S = 3", "os.environ.update(fail())", "os.sep and S == 3"),
        ("S = 3\ndef change(S):\n    S.append(fail())", "change([])", "S == 3"),
    ],
)
def test_a_statement_that_fails_leaves_what_it_does_not_change(tmp_path, before, statement, kept):
    """Values that are read, loggers, modules and local variables stay."""
    loaded = load(tmp_path, FAILING.format(before=before, statement=statement))
    assert eval(kept, vars(loaded))


def test_a_module_of_the_root_loses_the_attribute_that_a_statement_changes(tmp_path):
    """An item of a table in another file is lost under all names of the table; the other file is there."""
    (tmp_path / "tables.py").write_text("TABLE = {'k': 1}\nOTHER = 2\n")
    loaded = load(tmp_path, "import tables\nfrom tables import TABLE\ntables.TABLE['k'] = 1 / 0\n")
    assert loaded.tables.OTHER == 2
    for table in (loaded.TABLE, loaded.tables.TABLE):
        with pytest.raises(torch.NotSupported, match="ZeroDivisionError"):
            table["k"]


USES = """
M == 1; M != 1; 1 == M; M < 1; M in [1]; 1 in M; hash(M); {M: 1}; {1: 2}[M]; str(M); f"{M}"; f"{M:>3}"; "%s" % M
isinstance(1, M); isinstance(1, (str, M)); issubclass(int, M); isinstance(M, str); len(M); [*M]; list(M); next(M)
bool(M); not M; M and 1; 1 if M else 2; M.name; M(); M[0]; M | None; None | M; -M; M + 1; 1 + M
int(M); float(M); complex(M)
round(M); divmod(M, 1); M @ M; [1, 2][M]; {**M}; set([M]); max(M, 1); sum(M); torch.ones(2) + M; M * torch.ones(2)
torch.zeros(M); torch.tensor(M); torch.tensor([M]); torch.where(torch.ones(2) > 0, M, 1); torch.nn.Linear(M, 2)
setattr(M, "a", 1); delattr(M, "a"); M.__enter__(); abs(M); format(M); print(M); torch.ones(3)[M]; torch.ones(3)[:M]
"""


@pytest.mark.parametrize("use", [use.strip() for line in USES.splitlines() for use in line.split(";") if use.strip()])
def test_stand_ins_raise_whatever_is_done_with_them(tmp_path, use):
    """Each use in a function raises the reason, where Python would have an answer for any object, too."""
    loaded = load(tmp_path, f"import torch\nimport no_such_library\nM = no_such_library.part\ndef use():\n    {use}\n")
    with pytest.raises(torch.NotSupported, match=r"no_such_library.part is not available \(ModuleNotFoundError"):
        loaded.use()
    assert repr(loaded.M) == "<no_such_library.part, which is not available>"


def test_stand_ins_at_the_top_level(tmp_path):
    """There they are called, subscripted and annotate; what asks for a value of theirs fails, and so its names."""
    loaded = load(
        tmp_path,
        """
        from typing import Optional, Union
        import no_such_library as lib
        from no_such_library import decorate

        @decorate
        @lib.register("name")
        def plain(x: Optional[lib.Type], y: Union[int, lib.Other[3]] = lib.DEFAULT) -> "lib.Type | None":
            return x + 1

        class Sub(lib.Base, metaclass=type):
            field: lib.Type | None = None

            @lib.method
            def double(self, x):
                return 2 * x

        def keep(x):
            return x

        WRAPPED = lib.wrap(keep)
        CHOSEN = 1 if lib.flag else 2
        SAME = lib.VERSION == "1"
        HAS = hasattr(lib, "flag")
        if lib.flag:
            TAKEN = 1
        else:
            TAKEN = 2
        """,
    )
    assert loaded.plain(1) == 2
    assert loaded.Sub().double(2) == 4
    for name in ("WRAPPED", "CHOSEN", "SAME", "HAS", "TAKEN"):
        with pytest.raises(torch.NotSupported, match="no_such_library"):
            getattr(loaded, name)(jnp.ones(2))


def test_feature_tests_at_the_top_level(tmp_path):
    """A `try` gets Python's errors for what is not there; a refusal is none, and leaves a stand-in."""
    loaded = load(
        tmp_path,
        """
        import contextlib
        import torch
        try:
            import no_such_library
        except ImportError:
            LIBRARY = None
        try:
            from torch import no_such_name
        except ImportError:
            NAME = None
        try:
            FUNCTION = torch.no_such_name
        except AttributeError:
            FUNCTION = None
        with contextlib.suppress(ImportError):
            import no_such_library
        try:
            VALUE = torch.randn(2)
        except Exception:
            VALUE = torch.ones(2)
        """,
    )
    assert (loaded.LIBRARY, loaded.NAME, loaded.FUNCTION) == (None, None, None)
    assert not hasattr(loaded, "no_such_library")
    with pytest.raises(torch.NotSupported, match="need a key"):
        loaded.VALUE + 1
