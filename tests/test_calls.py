"""The number of functions of fnjax that a traced call enters, by benchmarks/calls.py."""

import jax
import jax.numpy as jnp

import fnjax
from benchmarks.calls import call_torch, crossings, entered, trace_gradient, trace_torch_gradient
from fnjax.torch.memory.root_settings import RootSettings


def test_a_traced_gradient_enters_few_functions():
    """jit(grad(F.apply)) enters at most 80 functions in 12 files and crosses between packages at most 12 times."""
    trace_gradient()
    calls = entered(trace_gradient)
    assert {"_function/backward.py", "_primitives/linearization.py"} <= {call.file for call in calls}
    assert len(calls) <= 80
    assert len({call.file for call in calls}) <= 12
    assert len(crossings(calls)) <= 12


def test_a_class_of_pytorch_enters_not_many_more(monkeypatch):
    """The same class in a file of PyTorch enters at most 250 functions traced, and 90 called outside of transforms."""
    monkeypatch.setattr(RootSettings, "any_is_set", False)  # by files that other tests have loaded
    for run, most, files in ((trace_torch_gradient, 250, 33), (call_torch, 90, 26)):
        run()
        calls = entered(run)
        assert len(calls) <= most
        assert len({call.file for call in calls}) <= files


def test_an_operation_runs_by_the_plan_for_its_signature():
    """A second call with tensors of the same dtypes and shapes binds, promotes and checks nothing."""
    square = fnjax.torch.torch_view(jnp.ones((2, 3)))
    other = fnjax.torch.torch_view(jnp.zeros((2, 3)))
    _ = square * 2.5 + other
    calls = entered(lambda: other * 2.5 + square)
    assert not {call.file for call in calls} & {f"torch/dispatch/{n}.py" for n in ("binding", "promotion", "templates")}
    assert len(calls) <= 60


def test_a_traced_operation_is_no_call_of_its_own():
    """JAX keeps the traces of operations, whose equations are those of the program around them."""

    def loss(x):
        return ((x - x.mean()) * x.softmax(0)).sum() / 3

    program = jax.jit(jax.grad(fnjax.torch.jax_view(loss))).trace(jnp.arange(5.0)).jaxpr
    assert "_call" not in str(program)
