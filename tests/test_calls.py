"""The number of functions of fnjax that a traced call enters, by benchmarks/calls.py."""

from benchmarks.calls import crossings, entered, trace_gradient


def test_a_traced_gradient_enters_few_functions():
    """jit(grad(F.apply)) enters at most 80 functions in 12 files and crosses between packages at most 12 times."""
    trace_gradient()
    calls = entered(trace_gradient)
    assert {"_function/backward.py", "_primitives/linearization.py"} <= {call.file for call in calls}
    assert len(calls) <= 80
    assert len({call.file for call in calls}) <= 12
    assert len(crossings(calls)) <= 12
