"""Comparison of one class with its port on the calls that the search finds, until they differ or time is up."""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import jax

import fnjax.errors
import fnjax.torch
from fnjax._cli.call import UsageError, load
from fnjax._cli.target import is_pytorch_file
from fnjax._function.function import Function
from fnjax.port.compare.comparing import Comparing, find_key
from fnjax.port.compare.entries import compare_entries
from fnjax.port.compare.in_jax import is_as_is
from fnjax.port.compare.record import RANDOM, TOLERANCES, Comparison, Entry
from fnjax.port.compare.reference import FNJAX_TORCH, make_reference
from fnjax.port.compare.values import Inputs, Results, Values, make_values
from fnjax.port.verify import extraction
from fnjax.port.verify.calls import Array, Call, draw_call, make_recipe, read_arguments
from fnjax.port.verify.hints import Hints, list_numbers, list_sizes, read_hints
from fnjax.port.verify.lines import Lines
from fnjax.port.verify.operators import find_operator_of_reference, make_operator, make_ported_operator
from fnjax.port.verify.record import DIFFERS, ENOUGH, NOT_TRIED, REFUSED, REMEDY, VERIFIED, Job, Verdict
from fnjax.port.verify.sandboxed_calls import SandboxedCalls, TooLong, Tried, limit_time, measure_time
from fnjax.port.verify.searching import Search, count_repeats
from fnjax.port.verify.shrinking import shrink_call
from fnjax.port.verify.variants import VARIANTS, computes_in_float32

A_PORT = 120.0  # seconds that both modes of the port may take for a call
_CALLS_OF_A_VARIANT = 2
_RANDOM = ("random numbers need a key", "results are not determined")
Report = Callable[..., None]


def verify_class(job: Job, report: Report) -> Verdict:
    """Return the verdict on a class or an operator, found in this process.

    Args:
        job: the class.
        report: called with each step.
    """
    try:
        theirs = find_original(job)
    except (Exception, SystemExit) as e:  # noqa: BLE001 - the user's file may do anything
        return Verdict(job.name, NOT_TRIED, f"the original cannot be loaded: {type(e).__name__}: {e}")
    try:
        ours = find_port(job)
    except (Exception, SystemExit) as e:  # noqa: BLE001 - so may the port
        absent = isinstance(e, (ImportError, AttributeError))
        status = NOT_TRIED if absent else REFUSED if isinstance(e, fnjax.torch.NotSupported) else DIFFERS
        return Verdict(job.name, status, f"the port cannot be loaded: {type(e).__name__}: {e}")
    report("loaded")
    if different := find_different_default(theirs, ours):
        return Verdict(job.name, DIFFERS, different)
    comparing = make_comparing(job, theirs, ours)
    found = Verification(job, theirs, comparing, report).run_verification()
    if is_as_is(ours.apply) and comparing.reference.name == FNJAX_TORCH:
        found = replace(found, notes=(*found.notes, "it stays PyTorch source: fnjax.torch ran both sides"))
    if comparing.key or comparing.ported is not ours.apply or not any(m in found.reason for m in _RANDOM):
        return found
    keyed, draws = add_key(comparing)
    again = Verification(job, theirs, keyed, report).run_verification()
    return again if draws else found  # else it is uninitialised memory


def find_different_default(theirs: Any, ours: Any) -> str:
    """Return which parameter of forward has another default in the port, as calls may give all arguments; else ""."""
    try:
        given, made = (inspect.signature(side.forward).parameters for side in (theirs, ours))
    except (AttributeError, TypeError, ValueError):  # an operator
        return ""
    for name in given.keys() & made.keys():
        a, b = given[name].default, made[name].default
        if a != b and all(isinstance(x, (bool, int, float, str, type(None))) for x in (a, b)):
            return f"the default of '{name}' is {a!r}, in the port {b!r}"
    return ""


def find_original(job: Job) -> Any:
    """Return the class: loaded by fnjax.torch, or in PyTorch extracted from its file, or imported.

    Raises:
        Exception: the file cannot be executed, or does not define it.
    """
    reference, path = make_reference(job.against), Path(job.path)
    if "::" in job.name and reference.name == FNJAX_TORCH:
        operator = find_operator_of_reference(reference, path, job.name)
        return make_operator(operator, path, job.text, job.name)
    if "::" in job.name:
        from fnjax.port.verify.pytorch_operators import find_pytorch_operator

        operator = find_pytorch_operator(path, job.text, job.name)
        return make_operator(operator, path, job.text, job.name)
    first, *rest = job.name.split(".")
    if reference.name == FNJAX_TORCH:
        found: Any = getattr(reference.load(job.path), first)
    else:
        found = extraction.extract_name(path, job.text, first)
    for name in rest:
        if isinstance(found, FunctionType):
            raise TypeError(f"{job.name} is defined inside a function, which makes it when it is called")
        found = getattr(found, name)
    if isinstance(found, extraction.Missing):
        found()  # raises, with the reason
    base = reference.torch.autograd.Function
    if not (isinstance(found, type) and issubclass(found, base)):
        raise TypeError(f"{job.name} is not a torch.autograd.Function")
    if getattr(found, "forward", None) is base.forward:
        raise TypeError(f"{job.name} has no forward: a class that is derived from it may be verified")
    return found


def find_port(job: Job) -> Any:
    """Return the class or operator of the port.

    Raises:
        Exception: its module cannot be executed, or does not define it.
    """
    as_is = job.place == job.path or job.port == job.text or is_pytorch_file(job.place)
    found: Any = fnjax.torch.load(job.place) if as_is else load(job.place)
    if "::" in job.name:
        return make_ported_operator(job.name)
    for name in job.name.split("."):
        found = getattr(found, name)
    found.apply  # noqa: B018 - of a class that fnjax.torch could not make it raises
    if not (isinstance(found, type) and issubclass(found, (Function, fnjax.torch.autograd.Function))):
        raise TypeError(f"{job.name} is not a Function there")
    return found


def make_comparing(job: Job, theirs: Any, ours: Any) -> Comparing:
    """Return the comparison of a class or operator with its port."""
    options = {"key": find_key(theirs, ours), "second": job.second, "against": job.against, **job.options}
    apply = make_values(theirs.apply, make_reference(job.against).torch, theirs)
    return Comparing(apply, ours.apply, **options)


def add_key(comparing: Comparing) -> tuple[Comparing, list[int]]:
    """Return the comparison with a class that fnjax.torch has loaded, and that draws its random numbers from a key.

    Returns:
        The comparison, and a list that gets the number of draws of each call that draws.
    """
    apply, draws = comparing.ported, list[int]()

    def ported(*args: Any, key: Any, **kwargs: Any) -> Any:
        with fnjax.torch.seed(key):
            found = apply(*args, **kwargs)
            draws.extend([count] if (count := fnjax.torch.get_rng_state().count) else [])
        return found

    ported.__self__ = apply.__self__  # type: ignore[attr-defined] # the class
    return replace(comparing, ported=ported, key="key"), draws


class Verification:
    """One class, its search and its comparisons."""

    def __init__(self, job: Job, theirs: Any, comparing: Comparing, report: Report) -> None:
        self.job, self.report, self.comparing = job, report, comparing
        files = {*map(str, extraction.list_files()), *self.comparing.reference.list_files()}
        self.lines = Lines(theirs, files | {str(Path(job.path).absolute())})
        self.calls = SandboxedCalls(self.comparing, self.lines, job.skipped, report)
        self.tree = ast.parse(job.text)
        self.calls.argnums = getattr(theirs, "argnums", None)  # of an operator
        methods = getattr(theirs, "methods", None)
        self.hints: list[Hints] = read_hints(self.tree, job.name, methods)
        numbers = list_numbers(self.tree, job.name, methods) | list_numbers(ast.parse(job.read_port()), job.name)
        self.around = tuple(sorted(numbers))
        self.planned = False  # whether all calls that have to be made have been made
        self.agreed = self.rounded = 0
        self.known = False  # whether second derivatives differ as they do of what forward saves
        self.varied: dict[str, None] = {}  # the variants that were compared
        self.random: dict[str, None] = {}  # the arrays whose values were not compared
        self.ran: set[tuple[str, int]] = set()
        self.starts: list[Call] = []  # calls that agree, from which others are drawn

    def run_verification(self) -> Verdict:
        """Search, compare, and return the verdict."""
        begin = measure_time()
        end = begin + self.job.seconds
        search = Search(self.calls, self.hints, self.job.seed, list_sizes(self.tree))
        found = self._try_given(search.graded) if self.job.cases else search.find_first(begin + 0.6 * self.job.seconds)
        if isinstance(found, Verdict):
            return found
        if found is None or (isinstance(found, Tried) and self.calls.is_silent(found.ran)):
            return self._report_nothing()
        starts = [found] if isinstance(found, Tried) else found
        latest = end + 0.5 * self.job.seconds + 5  # sooner than `longest`
        for tried in itertools.chain(starts, self._plan_calls(starts, search, end)):
            time_is_up = measure_time() > (end if self.planned else latest)
            if self.agreed and (time_is_up or self.agreed >= self.job.enough):
                break
            comparison = self.compare_call(tried)
            if comparison is None:
                continue
            if not comparison.equal:
                return self._report_difference(tried, comparison, max(end, measure_time() + 0.5 * self.job.seconds))
            self.agreed += 1
            self.known = self.known or any(e.known for e in comparison.entries)
            self.random |= {e.what: None for e in comparison.entries if e.message == RANDOM}
            self.ran |= tried.ran
            if self.agreed <= ENOUGH and tried.call.recipe and tried.call.argnums == starts[0].call.argnums:
                self.starts.append(tried.call)
            self.report("agreed", count=self.agreed, verdict=self._report_verified().make_json())
        return self._compare_variants(end) or self._report_verified()

    def _compare_variants(self, end: float) -> Verdict | None:
        """Compare the first calls that agree in the job's variants, as far as the original has them.

        Args:
            end: after that time one call has to do.
        """
        for name in self.job.variants:
            made = VARIANTS[name].change(replace(self.comparing, second=not self.known))
            for start in self.starts[: 1 if measure_time() > end else _CALLS_OF_A_VARIANT]:
                call = draw_call(start.recipe, self.job.seed + 3, start.argnums)
                inputs = call.make_inputs(made.dtype)
                self.report("comparing", call=f"{name}: {call.write_arguments()}", count=self.agreed)
                try:
                    with limit_time(made.reference.patience):
                        theirs, cotangents = made.run_original(inputs)
                except (Exception, TooLong):  # noqa: BLE001 - the original is not for these
                    continue
                found = self._judge(made, theirs, cotangents, inputs, VARIANTS[name].modes)
                if not found.equal and made.dtype == "float64" and computes_in_float32(made, inputs):
                    rtol, atol = TOLERANCES["float32"]
                    single = replace(made, rtol=rtol, atol=atol)
                    found = self._judge(single, theirs, cotangents, inputs, VARIANTS[name].modes)
                self.varied |= {name: None}
                if found.equal:
                    continue
                if refusal := self._find_refusal(found):
                    return Verdict(self.job.name, REFUSED, f"{name}: {refusal}", self.agreed)
                shown = (*map(str, _list_wrong(found)[:4]), f"{self.job.name}.apply({call.write_arguments()})")
                return Verdict(self.job.name, DIFFERS, f"{name}: {_name_wrong(found)}", self.agreed, shown=shown)
        return None

    def _report_verified(self) -> Verdict:
        notes: tuple[str, ...] = ()
        if self.rounded:
            notes = (f"{self.rounded} of them in float64 only, as float32 rounds differently there",)
        if self.random:
            notes = (*notes, f"{', '.join(self.random)}: random, so only shapes and dtypes are compared")
        if self.varied:
            notes = (*notes, f"also {', '.join(self.varied)}")
        unseen, count = tuple(self.lines.list_unseen(self.ran)), len(self.lines.all_own)
        partial = not self.planned and self.agreed < self.job.enough
        return Verdict(self.job.name, VERIFIED, "", self.agreed, count, unseen, notes=notes, partial=partial)

    def _report_nothing(self) -> Verdict:
        name = self.comparing.reference.name
        if self.calls.undetermined:
            reason = f"{name}'s results are not determined: uninitialised memory, or random numbers without a key"
        else:
            furthest = self.calls.furthest
            problem = (furthest.problem or "backward did not run")[:200] if furthest else ""
            last = f" (the furthest: {problem})" if furthest else ""
            reason = f"no arguments were found in {self.calls.count} calls{last}; {REMEDY}"
            if self.calls.is_unavailable():
                reason = f"what it needs is not installed: {problem}"
            elif "_OpNamespace" in problem:
                reason = f"it calls an operator that its file does not define: {problem}"
        return Verdict(self.job.name, NOT_TRIED, reason)

    def _try_given(self, graded: tuple[int, ...]) -> list[Tried] | Verdict:
        """Return the user's own calls; with gradients for some arguments only, where others are refused."""
        found, reference = [], self.comparing.reference
        for text in self.job.cases:
            try:
                args, kwargs = read_arguments(text, "", self.job.seed, {"torch": reference.torch})
                if kwargs:
                    raise UsageError("apply takes no keyword arguments")
            except UsageError as e:
                return Verdict(self.job.name, NOT_TRIED, str(e))
            call = Call(args, None, self.job.seed, make_recipe(args))
            tried = self.calls(call)
            if tried.problem and not (fewer := self.calls(replace(call, argnums=graded))).problem:
                tried = fewer
            if tried.problem:
                reason = f"{reference.name}'s class does not take {text}: {tried.problem}"
                return Verdict(self.job.name, NOT_TRIED, reason)
            found.append(tried)
        return found

    def _plan_calls(self, starts: Sequence[Tried], search: Search, end: float) -> Iterator[Tried]:
        """Yield the calls of the minimum, with numbers of the source first; then those unlike all before."""
        small = [self._prefer_small(start) for start in starts]
        yield from (s for s in small if s not in starts)
        for start in small:
            recipe, selected = start.call.recipe, Inputs(start.call.args).selected
            if any(_is_equal_often(r) for r in recipe):  # so that second derivatives are compared
                made = [replace(r, kind="unit") if _is_equal_often(r) else r for r in recipe]
                yield self.calls(draw_call(made, start.call.seed + 5, start.call.argnums))
            for kind in ("near", "at") if self.around else ():
                made = [replace(r, kind=kind, around=self.around) if _is_real(r) else r for r in recipe]
                yield self.calls(draw_call(made, start.call.seed + 6, start.call.argnums))
            singles = [(i,) for i in selected] if len(selected) > 1 else []
            others = [tuple(c for c in selected if c != i) for i in selected] if len(selected) > 2 else []
            for argnums in [*singles, *others, ()][:12]:
                yield self.calls(replace(start.call, argnums=argnums))
            for kind in ("normal", "unit", "negative", "wide", "whole", "halves", "marks"):
                made = [replace(r, kind=kind) if _is_real(r) else r for r in recipe]
                yield self.calls(draw_call(made, start.call.seed + 7, start.call.argnums))
        self.planned = True
        half = measure_time() + 0.3 * (end - measure_time())
        rest = [t for start in small for t in search.find_others(start, half)]
        seen, static = set(self.ran), {s.call.static for s in small}
        while rest:
            best = max(
                rest, key=lambda t: (len(t.ran - seen), t.call.static not in static, -count_repeats(t.call.recipe))
            )
            rest.remove(best)
            seen |= best.ran
            static.add(best.call.static)
            yield best
            if best.call.recipe:
                yield self.calls(draw_call(best.call.recipe, best.call.seed + 5000, best.call.argnums))
        for seed in itertools.count(10_000):  # the programs are compiled by now
            for call in list(self.starts):
                yield self.calls(draw_call(call.recipe, seed, call.argnums))
            if not self.starts or measure_time() > end:
                return

    def _prefer_small(self, tried: Tried) -> Tried:
        """Return a call with 3 for each large integer, often a count of iterations, if the same lines run."""
        made = [3 if type(r) is int and r > 8 else r for r in tried.call.recipe]
        for seed in range(3 if made != list(tried.call.recipe) else 0):
            small = self.calls(draw_call(made, tried.call.seed + seed, tried.call.argnums))
            if not (small.problem or small.weak or tried.ran - small.ran):
                return small
        return tried

    def compare_call(self, tried: Tried, modes: Sequence[str] | None = None) -> Comparison | None:
        """Compare original and port on a call; return None where it is of no use."""
        theirs = tried.theirs
        if tried.problem or theirs is None or (tried.weak and self.agreed and not tried.ran - self.ran):
            return None
        # Where entries are equal or zero, PyTorch's second derivatives are not the slopes of its gradients.
        if not self.job.second or any(map(_is_equal_often, tried.call.recipe)):
            theirs = replace(theirs, seconds=[])
        call = tried.call
        self.report("comparing", call=call.write_arguments(), count=self.agreed)
        inputs = call.make_inputs(self.comparing.dtype)
        found = self._judge(self.comparing, theirs, tried.cotangents, inputs, modes or self.job.modes)
        if not found.equal and self.comparing.dtype != "float64" and self._is_rounding(call, theirs, found):
            self.rounded += 1
            return Comparison(())
        return found

    def _judge(
        self, comparing: Comparing, theirs: Results, cotangents: Sequence[Values], inputs: Inputs, modes: Sequence[str]
    ) -> Comparison:
        """Compare the port's results with the original's, in one mode after the other until one differs."""
        entries: list[Entry] = []
        try:
            with limit_time(A_PORT), jax.enable_x64(comparing.dtype == "float64"):
                for mode in modes:  # what differs eagerly need not be compiled
                    found = comparing.judge(theirs, cotangents, inputs, [mode])
                    entries += found.entries
                    if not found.equal:
                        break
        except TooLong:
            text = f"the port takes longer than {A_PORT:.0f} seconds"
            return Comparison((Entry("outputs", "eager", False, message=text),))
        return Comparison(tuple(entries))

    def _is_rounding(self, call: Call, theirs: Results, found: Comparison) -> bool:
        """Return whether the sides agree in float64, and float32 explains that they differ here.

        It does where they differ a little, or where the original differs as much from its own results in float64.
        """
        wide = replace(self.comparing, dtype="float64", rtol=None, atol=None)
        inputs = call.make_inputs("float64")
        try:
            with limit_time(A_PORT):
                if not wide(inputs, ("eager",)).equal:
                    return False
                with jax.enable_x64(True):
                    exact, _ = wide.run_original(inputs.cast("float64"))
        except (Exception, TooLong):  # noqa: BLE001 - then float32 decides
            return False
        own = compare_entries(exact, theirs, "eager", inputs.selected, self.comparing.tolerances, set())
        errors = {e.what: e.distance for e in own}
        return all(
            e.distance <= max(0.02, 0.02 * abs(e.original or 0), 10 * errors.get(e.what, 0)) for e in _list_wrong(found)
        )

    def _report_difference(self, tried: Tried, comparison: Comparison, until: float) -> Verdict:
        first = _list_wrong(comparison)[0]
        if refusal := self._find_refusal(comparison):
            return Verdict(self.job.name, REFUSED, refusal, self.agreed)
        found = [self._show_difference(tried.call, comparison)]

        def differs(call: Call) -> bool:
            again = self.calls(replace(call, recipe=()))
            compared = None if again.problem or again.weak else self.compare_call(again, [first.mode])
            if compared is None or first.what not in {e.what for e in _list_wrong(compared)}:
                return False
            found.append(self._show_difference(call, compared))
            return True

        if self.job.shrinks:  # at integers, where entries are equal, second derivatives are not to be compared
            shrink_call(tried.call, differs, until, digits=(1, 2) if first.what.startswith("second") else (0, 1, 2))
        return found[-1]

    def _find_refusal(self, comparison: Comparison) -> str:
        """Return the message of what comes first, where it is an error of fnjax with a remedy; else an empty text."""
        kind, _, message = _list_wrong(comparison)[0].message.partition(": ")
        is_own = issubclass(getattr(fnjax.errors, kind, object), fnjax.errors.FnjaxError) and "\n  fix: " in message
        return message if kind == "NotSupported" or (is_own and is_as_is(self.comparing.ported)) else ""

    def _show_difference(self, call: Call, comparison: Comparison) -> Verdict:
        shown = tuple(map(str, _list_wrong(comparison)[:4]))
        verdict = Verdict(self.job.name, DIFFERS, _name_wrong(comparison), self.agreed, shown=shown)
        verdict = replace(verdict, call=call.write_arguments(), argnums=call.argnums, seed=call.seed)
        self.report("differs", verdict=verdict.make_json())
        return verdict


def _list_wrong(comparison: Comparison) -> list[Entry]:
    return [e for e in comparison.entries if not (e.equal or e.known)]


def _name_wrong(comparison: Comparison) -> str:
    first, *more = _list_wrong(comparison)
    return f"{first.mode} {first.what}" + (f", and {len(more)} more" if more else "")


def _is_real(part: Any) -> bool:
    return isinstance(part, Array) and part.kind in {"normal", "positive", "negative", "unit", "wide"}


def _is_equal_often(part: Any) -> bool:
    return isinstance(part, Array) and part.kind in {"whole", "halves", "marks", "at"}
