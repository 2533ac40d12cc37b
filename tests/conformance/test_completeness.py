"""Each recorded case of PyTorch's behaviour has a twin, or a reason why it has none."""

import ast
import json
import re
from pathlib import Path

FOLDER = Path(__file__).parent

# The sections of the survey of PyTorch's behaviour that are in scope, and how many cases each has.
SECTIONS = {"A": 24, "B": 21, "C": 42, "D": 10, "E": 29, "F": 31, "I": 13, "K": 12, "L": 10, "P": 33}

NOT_IN_JAX = {
    "C11": "an attribute set in backward is gone after that call: a pullback is a pure function",
    "C17": "no array is a leaf that could be changed in place",
    "C21": "no array is a view of another",
    "C22": "no array can change after it was saved",
    "E21": "arrays have no strides",
    "E22": "the incoming gradient cannot be changed in place",
    "E24": "gradients are returned, not accumulated in `.grad` (decision 14)",
    "E25": "jax.grad checks by itself that the loss is a scalar",
    "E26": "JAX's gradients are dense",
    "F16": "there is no `backward(create_graph=True)`, and no reference cycle that it could warn of",
    "I09": "JAX has no autocast region",
    "K04": "an instance has no graph attributes",
    "K05": "InplaceFunction is not provided: arrays cannot change in place",
    "K06": "NestedIOFunction is not provided: it does not work in PyTorch either",
    "K11": "attributes that PyTorch itself has taken away",
    "K12": "ctx cannot be reached after forward: there is no grad_fn",
    "L09": "is_traceable is a flag of PyTorch's compiler",
    "P08": "`retain_grad` writes to `.grad` (decision 14)",
    "P11": "jax.vjp checks the shape of a cotangent by itself",
    "P12": "jax.vjp checks the dtype of a cotangent by itself",
    "P17": "torch.compile; jax.jit is part of the other tests",
    "P18": "what torch.compile refuses",
    "P19": "torch.fx",
    "P21": "whether two gradients share memory cannot be seen in JAX",
    "P24": "hooks on a node: there is no node",
    "P26": "JAX has no autocast region, and fnjax no custom_op",
}


def twins():
    """The cases that the tests of this folder name, in their own names (`test_A02_…`) or in the ids of a table."""
    found = set()
    for file in FOLDER.glob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found |= set(re.findall(r"(?<=_)[A-Z]\d\d(?=_|$)", node.name))
            elif isinstance(node, ast.keyword) and node.arg == "id" and isinstance(node.value, ast.Constant):
                found |= set(re.findall(r"^[A-Z]\d\d", str(node.value.value)))
    return found


def test_each_case_has_a_twin_or_a_reason():
    """Each case of the sections in scope is a test, or stands in the table with the reason why it cannot be."""
    cases = {f"{section}{i:02}" for section, n in SECTIONS.items() for i in range(1, n + 1)}
    here = {case for case in twins() if case[0] in SECTIONS}
    assert here | set(NOT_IN_JAX) == cases
    assert not here & set(NOT_IN_JAX)


def test_outcomes_are_those_of_the_twins():
    """The recorded outcomes are those of the cases that have a twin, no more and no fewer."""
    recorded = json.loads((FOLDER / "data" / "pytorch-2.13.json").read_text())
    assert set(recorded) == twins()
    assert list(recorded) == sorted(recorded)
