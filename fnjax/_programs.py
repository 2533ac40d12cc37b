"""What is remembered between the traced calls of one class.

Calls with the same facts share one trace: forward and backward are traced once for each choice of types and of inputs
that are differentiated, and JAX itself remembers what comes of them, as for any function under `jax.jit`. The first
call does not wait for that: alone it is traced straight through.

Where methods read variables, nothing is remembered from one program that JAX traces to the next: a new `jax.jit` sees
the world as it then is, as with any JAX function. What lasts longer dies with its class, so it must not lead back to
it, since JAX would then keep both: hence no class has facts.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from fnjax._facts import NoFactsError, lasts
from fnjax._frozen import record_use, trace_run
from fnjax._jax.rule import Arrays, Rule, Traces
from fnjax._jax.trees import is_tracer
from fnjax._primitive import staged_run

MAX_PROGRAMS = 128  # for a class: as many choices of static arguments
MAX_RUNS = 256  # for a program: as many choices of types


class CapturedTracerError(Exception):
    """Forward uses a tracer from outside, so that nothing can be remembered of it."""


class Programs:
    """The programs of a class, those used last first to stay."""

    def __init__(self, class_facts: Callable[[], Hashable]) -> None:
        self._class_facts = class_facts
        self._lasting: OrderedDict[Hashable, Program] = OrderedDict()
        self._passing: OrderedDict[Hashable, Program] = OrderedDict()  # in what JAX is tracing now
        self._outermost: Callable[[], Any] = lambda: None

    def find(
        self, outermost: Any, call_facts: Callable[[], Hashable], make_rule: Callable[[Traces | None], Rule]
    ) -> Program | None:
        """The program of a call; None where some of its facts can change, or those of a call inside it.

        Args:
            outermost: the trace of the whole that JAX is making.
            call_facts: gives the facts of the call.
            make_rule: makes a rule that has these facts.
        """
        try:
            key = self._class_facts(), call_facts()
            programs, program = self._lasting, self._lasting.get(key)
            if program is None and not lasts(key):
                programs = self._of(outermost)
                program = programs.get(key)
        except (NoFactsError, RecursionError):
            program = None
        else:
            if program is None or len(program.traces.runs) > MAX_RUNS or program.is_stale(set()):
                programs[key] = program = Program(make_rule, functools.partial(self._still, key[0]))
                if len(programs) > MAX_PROGRAMS:
                    programs.popitem(last=False)
            elif len(programs) > 1:
                programs.move_to_end(key)
            program.traces.calls += 1
            if None in program.traces.uses:
                program = None
        record_use(program)
        return program

    def _of(self, outermost: Any) -> OrderedDict[Hashable, Program]:
        """The programs in one trace, which they do not outlive."""
        if self._outermost() is not outermost:
            passing: OrderedDict[Hashable, Program] = OrderedDict()
            self._passing, self._outermost = passing, weakref.ref(outermost, lambda _: passing.clear())
        return self._passing

    def _still(self, class_facts: Hashable) -> bool:
        try:
            return self._class_facts() == class_facts
        except NoFactsError:
            return False


class Program:
    """A rule that calls with the same facts share.

    Attributes:
        traces: what is remembered of the rule.
    """

    def __init__(self, make_rule: Callable[[Traces | None], Rule], is_current: Callable[[], bool]) -> None:
        self.traces = Traces()
        self._is_current = is_current
        self._rule = make_rule(self.traces)
        self._jitted: dict[bool, Callable[..., Any]] = {}

    def is_stale(self, seen: set[int]) -> bool:
        """Whether a class that was called inside has changed since."""
        if not self.traces.uses:
            return False
        seen.add(id(self))
        used = [p for p in self.traces.uses if p is not None and id(p) not in seen]
        return any(not p._is_current() or p.is_stale(seen) for p in used)

    def call(self, operands: Sequence[Any], *, inner: bool) -> tuple[Arrays, Any]:
        """Call the rule; return its outputs and their form.

        Raises:
            CapturedTracerError: if forward uses a tracer from outside, so that nothing can be remembered.
        """
        if inner not in self._jitted:
            self._jitted[inner] = _jitted(self._rule, inner)
        outputs = self._jitted[inner](*operands)
        return outputs.arrays, outputs.form.value


class _Form:
    """What a rule has to say of its outputs, as static data: equal to itself only."""

    def __init__(self, value: Any) -> None:
        self.value = value


@functools.partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["form"])
@dataclasses.dataclass(frozen=True)
class _Outputs:
    arrays: Arrays
    form: _Form


def _jitted(rule: Rule, inner: bool) -> Callable[..., Any]:
    def call(*operands: Any) -> _Outputs:
        needs = (False,) * len(operands)
        if any(map(is_tracer, trace_run(rule, needs, operands).captured)):
            raise CapturedTracerError
        run = staged_run(rule, needs, operands, inner=inner)
        return _Outputs(run.outputs, _Form(run.form))

    call.__name__ = call.__qualname__ = rule.name
    return jax.jit(call)
