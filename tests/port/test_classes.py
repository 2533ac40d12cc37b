"""Whole classes, ported and run against PyTorch."""

import ast
import importlib.util
import os
import sys

import numpy as np
import pytest

from fnjax.port import port_source
from tests.port import (
    classes_conditions,
    classes_control,
    classes_dtypes,
    classes_endings,
    classes_files,
    classes_layers,
    classes_masks,
    classes_memory,
    classes_numpy,
    classes_older,
    classes_passing,
    classes_real,
    classes_recomputing,
    classes_selections,
    classes_staying,
    classes_structure,
    classes_values,
    classes_views,
)

_FILES = (
    classes_conditions,
    classes_control,
    classes_dtypes,
    classes_endings,
    classes_files,
    classes_layers,
    classes_masks,
    classes_memory,
    classes_numpy,
    classes_older,
    classes_passing,
    classes_real,
    classes_recomputing,
    classes_selections,
    classes_structure,
    classes_values,
    classes_views,
)
CASES = {name: case for file in _FILES for name, case in file.CASES.items()}
LOADED = CASES | classes_staying.CASES  # what fnjax.torch runs
# What computes in float32 by itself has no 64-bit numbers to compare, and what `.item()` gives stays in its dtype.
ROUNDED = {
    *(("BesselI", "float64"), ("SwiGLU", "float64"), ("NumpySmoothing", "float64"), ("Item", "float64")),
    *(("EntriesCopied", "float64"), ("SeveralEntriesAtOnce", "float64")),
}
# The porter leaves these to fnjax.torch: layers, distributions, rows that loops write to; trees, functions of SciPy
# that JAX has not, types and functions of torch as values that take more than tensors; `match`; numbers that are saved
# as tensors; gradients that a method takes itself; loops that end on a value; variables that only a traced branch of a
# loop binds, branches of numbers next to arrays; conditions of several tensors; buffers that forward writes to.
AS_THEY_ARE = {
    *("LayersWithoutState", "Likelihood", "Membrane", "ListOfPowers", "BesselI"),
    *("BesselOfTensor", "MatrixRoot", "DistanceMap", "NumpyMixed", "TypesOfTensors", "TypeAsked"),
    *("Partials", "Chosen", "RowLoop", "PieceWrites", "NumbersApart"),
    *("Settings", "RowsSaved", "DimSaved", "BestScale", "Kernel"),
    *("Matched", "RunningStatistics", "CheckedOption", "TakingTurns", "LargeNumbers"),
    *("Recompute", "Saturated", "RowsOfTheWeight", "PowerIter", "ForBreak", *classes_recomputing.CASES),
}


def dtypes(i, name):
    """Every second class runs in 64 bits, those of dtypes in both; FNJAX_ALL_DTYPES=1: all, and in both modes."""
    both = name in classes_dtypes.CASES or (name, "float64") in ROUNDED or os.environ.get("FNJAX_ALL_DTYPES")
    return ("float32", "float64") if both else (("float32", "float64")[i % 2],)


HEAD = """\
import math
from typing import Any, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


"""


def source(name):
    """The text of a file with the class of that name."""
    return HEAD + LOADED[name][1].strip() + "\n"


def calls(name):
    """Its inputs, those of each line."""
    rng = np.random.default_rng(0)
    names = {
        "randn": lambda *shape: rng.normal(size=shape),
        "rand": lambda *shape: rng.uniform(size=shape),
        "randint": rng.integers,
        "linspace": np.linspace,
        "array": np.array,  # of integers, or 0s and 1s
    }
    return [eval(f"[{line}]", names) for line in LOADED[name][0].split("\n")]


def arguments(name):
    """Its inputs, those of the first line."""
    return calls(name)[0]


def module(folder, name, text):
    """The module of a text."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


def test_sources():
    """Each text of the lists is the class of its name."""
    for name in LOADED:
        classes = [statement for statement in ast.parse(source(name)).body if isinstance(statement, ast.ClassDef)]
        assert name in {found.name for found in classes}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_ported_whole(name, tmp_path):
    """Every class is ported without an error, can be imported, and stays as it is when it is ported again."""
    ported = port_source(source(name), f"{name}.py")
    status = "as_is" if name in AS_THEY_ARE else "ported"
    assert {c.name: c.status for c in ported.classes}[name] == status, ported.findings
    assert hasattr(module(tmp_path, f"imported_{name}", ported.code), name)
    if name in AS_THEY_ARE:
        return
    again = port_source(ported.code, f"{name}.py")
    assert again.code == ported.code
    assert {c.status for c in again.classes} == {"ported"}


@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for i, n in enumerate(CASES) for d in dtypes(i, n) if (n, d) not in ROUNDED]
)
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.cuda.amp.custom_fwd
@pytest.mark.filterwarnings("ignore:To copy construct:UserWarning")  # torch.tensor(t)
@pytest.mark.filterwarnings("ignore:This overload of:UserWarning")  # scales by position
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit.script, saved_variables
def test_numbers(name, dtype, tmp_path):
    """The port has PyTorch's outputs and gradients under jit; and eagerly, where that may differ and for a third."""
    pytest.importorskip("torch")
    from fnjax.port.compare.comparing import Comparing
    from fnjax.port.compare.values import Inputs

    original = module(tmp_path, f"original_{name}", source(name))
    port = port_source(source(name))
    key = "key" * any(f.code == "random-key" for c in port.classes if c.name == name for f in c.findings)
    ported = module(tmp_path, f"ported_{name}", port.code)
    theirs, ours = getattr(original, name), getattr(ported, name)
    both = theirs.apply, ours.apply
    # Outside jit each operation is compiled by itself, which takes seven times as long.
    concrete = {"untraced", "check", "callback", "numpy"} & {f.code for f in port.findings} or "Tracer" in port.code
    eager = concrete or list(CASES).index(name) % 3 == 0 or os.environ.get("FNJAX_ALL_DTYPES")
    modes = ("eager", "jit") if eager else ("jit",)
    comparing = Comparing(*both, dtype=dtype, key=key, second=False)
    for args in calls(name):
        result = comparing(Inputs(args), modes)
        assert not [str(e) for e in result.entries if not e.equal]
        assert {e.mode for e in result.entries} == {*modes}
