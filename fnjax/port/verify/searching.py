"""Search for arguments that a class accepts, and then for others, from calls that run more lines."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from fnjax.port.verify.calls import REAL, Array, draw_call
from fnjax.port.verify.candidates import Options
from fnjax.port.verify.hints import Hints
from fnjax.port.verify.sandboxed_calls import SandboxedCalls, Tried, measure_time

WEIGHTS = {"mask", "marks", "unit"}  # whoever takes a mask mostly takes weights as well
Recipe = tuple[Any, ...]


class Search:
    """Search by trial, from arguments that get further on to better ones.

    Args:
        calls: makes the calls.
        hints: those on the parameters.
        seed: for all choices.
        sizes: integers of the source, which may be sizes of axes.
    """

    def __init__(self, calls: SandboxedCalls, hints: Sequence[Hints], seed: int, sizes: Sequence[int] = ()) -> None:
        self.sizes = sizes
        self.calls, self.draw, self.seed = calls, random.Random(seed), seed
        self.fixed = [Options(h, calls.comparing.reference.torch) for h in hints if not h.star]
        star = [dataclasses.replace(h, star=False) for h in hints if h.star]
        self.star = Options(star[0], calls.comparing.reference.torch) if star else None
        self.graded = tuple(i for i, h in enumerate(hints) if "ungraded" not in h.facts and not h.star)

    def _list_options(self, count: int) -> list[Options]:
        return self.fixed + [self.star] * count if self.star else self.fixed

    def find_first(self, until: float) -> Tried | None:
        """Return a call that runs; one without gradients if there is no other."""
        fallback: Tried | None = None
        iterations = 0
        while measure_time() < until:
            options = self._list_options((2, 1, 3, 0)[iterations % 4])
            best: Tried | None = None
            recipe = tuple(o.choose_value(self.draw, 1 if iterations < 4 else 2 + iterations) for o in options)
            if iterations < 4:
                recipe = tuple((o.likely or o.other)[0] for o in options)
            argnums = self.graded if iterations % 2 else None  # backward may refuse to be asked for the others
            for step in range(40 + 30 * len(options)):
                tried = self.calls(draw_call(recipe, self.seed + step, argnums))
                if not tried.problem and not tried.weak:
                    return self._prefer_real(tried)
                if not tried.problem:
                    fallback = fallback or tried
                if best is None or tried.score >= best.score:
                    best = tried
                if measure_time() > until:
                    break
                recipe = self.change_recipe(best.call.recipe, options, 3 + iterations + step // 20, best.problem)
            iterations += 1
            if (fallback and iterations > 20) or (iterations > 2 and self.calls.is_unavailable()):
                break
        return fallback

    def _prefer_real(self, found: Tried) -> Tried:
        """Return a call with real numbers, which have gradients, for integers and masks where it runs with these."""
        for i in self.graded:
            recipe = list(found.call.recipe)
            if i >= len(recipe) or not isinstance(recipe[i], Array) or recipe[i].kind not in {"index", "mask", "order"}:
                continue
            shapes = [r.shape for r in [recipe[i], *recipe] if isinstance(r, Array)]
            for shape in dict.fromkeys([*shapes, *itertools.chain.from_iterable(map(_derive_shapes, shapes))]):
                made = [*recipe[:i], Array(shape), *recipe[i + 1 :]]
                tried = self.calls(draw_call(made, found.call.seed, found.call.argnums))
                if not (tried.problem or tried.weak):
                    found = tried
                    break
        return found

    def change_recipe(self, recipe: Recipe, options: Sequence[Options], width: int, problem: str = "") -> Recipe:
        """Return another recipe: one argument replaced, shapes made to fit those in a message, or several of these."""
        named = [int(n) for n in re.findall(r"(?<![\d.])\d{1,2}(?![\d.])", problem) if 0 < int(n) < 33]
        made = list(recipe)
        if not made:
            return recipe
        for _ in range(self.draw.choice((1, 1, 1, 2, 2, 3))):
            arrays = [i for i, a in enumerate(made) if isinstance(a, Array)]
            how = self.draw.random()
            if how < 0.15 and arrays:
                place = self.draw.choice(arrays)
                sizes = list(made[place].shape) or [1]
                sizes[self.draw.choice((-1, -1, 0))] = self.draw.choice([*named, *self.sizes, self.draw.randint(1, 9)])
                made[place] = dataclasses.replace(made[place], shape=tuple(sizes))
            elif how < 0.5 or not arrays:
                place = self.draw.randrange(len(made))
                made[place] = options[place].choose_value(self.draw, width)
            elif how < 0.85 and len(arrays) > 1:
                to, model = self.draw.sample(arrays, 2)
                shape = self.draw.choice(list(_derive_shapes(made[model].shape)))
                made[to] = dataclasses.replace(made[to], shape=shape)
            elif how < 0.93:
                shape = self.draw.choice([made[i].shape for i in arrays])
                for i in arrays:
                    made[i] = dataclasses.replace(made[i], shape=shape)
            else:
                place = self.draw.choice(arrays)
                kind = self.draw.choice(("normal", "positive", "unit", "index", "mask", "definite", "whole", "complex"))
                made[place] = _change_kind(made[place], kind, self.draw.choice((2, 3, 4)))
        return tuple(made)

    def find_others(self, found: Tried, until: float) -> Iterator[Tried]:
        """Yield calls next to one that runs, each of which runs too: every static choice, sizes, ranks, values."""
        seen = {repr(found.call.recipe)}
        pool = [found]
        options = self._list_options(len(found.call.recipe) - len(self.fixed))
        planned: Iterator[Recipe] = _vary_recipe(found.call.recipe, options)
        lines = set(found.ran)
        for step in range(400):
            if measure_time() > until:
                return
            recipe = next(planned, None)
            if recipe is None:
                recipe = self.change_recipe(self.draw.choice(pool).call.recipe, options, 6 + step // 20)
            alike = all(_is_of_same_sort(*three) for three in zip(recipe, found.call.recipe, options, strict=True))
            if repr(recipe) in seen or not alike:
                continue
            seen.add(repr(recipe))
            tried = self.calls(draw_call(recipe, self.seed + 1000 + step, found.call.argnums))
            if tried.problem:
                continue
            if not tried.weak or tried.ran - lines:
                yield tried
            if tried.ran - lines:  # a new branch: calls like this one may reach others
                lines |= tried.ran
                pool.append(tried)
                planned = itertools.chain(_vary_recipe(recipe, options), planned)


def _is_of_same_sort(value: Any, found: Any, option: Options) -> bool:
    """Return whether an argument is of the sort of one that runs: PyTorch takes many that nobody would pass."""
    if isinstance(value, Array) and isinstance(found, Array):
        ranked = bool(value.shape) or not found.shape
        weights = value.kind in WEIGHTS and found.kind in WEIGHTS
        return ranked and (weights or (value.kind in REAL) == (found.kind in REAL)) and value.kind != "definite"
    if type(value) is type(found):
        return True
    return any(repr(value) == repr(v) for v in option.likely)


def _vary_recipe(recipe: Recipe, options: Sequence[Options]) -> Iterator[Recipe]:
    """Yield recipes with one argument, size, rank or kind changed."""
    others = []
    for i, (given, option) in enumerate(zip(recipe, options, strict=False)):
        if isinstance(given, Array):
            values = [None] if any(v is None for v in option.likely) else []
        else:
            values = [v for v in [*option.likely[:8], *option.other[:4]] if repr(v) != repr(given)]
        others.append([(*recipe[:i], value, *recipe[i + 1 :]) for value in values])
    rank = max((len(r.shape) for r in recipe if isinstance(r, Array)), default=0)
    ranks = [tuple(_change_rank(r, rank, more) for r in recipe) for more in ((2,), (2, 3), None)]
    sizes = ({2: 3, 3: 5, 4: 6, 5: 7, 6: 8}, {2: 4, 3: 2, 4: 3, 5: 4}, {3: 1}, {2: 1}, {4: 1})
    shapes = [made for changed in ranks for made in (changed, _resize(changed, {3: 1}))]  # of size 1 between others
    # Another value of each first, then a third, as a flag has only two.
    for row in itertools.zip_longest(*others, [*shapes, *(_resize(recipe, s) for s in sizes)]):
        yield from (made for made in row if made is not None)
    for i, given in enumerate(recipe):
        if isinstance(given, Array) and given.kind == "mask":
            yield (*recipe[:i], _change_kind(given, "unit", 0), *recipe[i + 1 :])
    arrays = [i for i, r in enumerate(recipe) if isinstance(r, Array) and r.kind in REAL]
    for kind in ("positive", "unit", "negative", "wide", "whole", "marks"):
        yield tuple(_change_kind(r, kind, 0) if i in arrays else r for i, r in enumerate(recipe))
    for i in arrays if len(arrays) > 1 else ():
        for kind in ("positive", "negative", "unit"):
            yield (*recipe[:i], _change_kind(recipe[i], kind, 0), *recipe[i + 1 :])
        for shape in _derive_shapes(recipe[i].shape):
            yield (*recipe[:i], dataclasses.replace(recipe[i], shape=shape), *recipe[i + 1 :])


def _resize(recipe: Recipe, sizes: dict[int, int]) -> Recipe:
    return tuple(_resize_part(r, sizes) for r in recipe)


def _resize_part(part: Any, sizes: dict[int, int]) -> Any:
    if isinstance(part, Array):
        high = sizes.get(part.high, part.high)
        return dataclasses.replace(part, shape=tuple(sizes.get(n, n) for n in part.shape), high=high)
    if type(part) in {list, tuple} and any(isinstance(p, Array) for p in part):
        return type(part)(_resize_part(p, sizes) for p in part)
    return part


def count_repeats(recipe: Recipe) -> int:
    """Return how often an array has an axis as long as another of its own: such axes may be confused."""
    return sum(len(r.shape) - len(set(r.shape)) for r in recipe if isinstance(r, Array))


def _change_rank(part: Any, rank: int, more: tuple[int, ...] | None) -> Any:
    """Return an array with more axes in front, or one less, where it has as many as any."""
    if isinstance(part, Array) and len(part.shape) == rank and rank:
        return dataclasses.replace(part, shape=part.shape[1:] if more is None else more + part.shape)
    return part


def _change_kind(array: Array, kind: str, high: int) -> Array:
    square = len(array.shape) > 1 and array.shape[-1] == array.shape[-2]
    return array if kind == "definite" and not square else dataclasses.replace(array, kind=kind, high=high)


def _derive_shapes(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield shapes that fit a shape."""
    yield from (shape, shape[-1:], shape[:1], shape[:-1], shape[1:], shape[::-1], (*shape[:-1], 1), (1, *shape[1:]), ())
    if shape:
        yield from ((5, shape[-1]), (shape[-1], 5), (*shape[:-1], 5), (shape[-1], shape[-1]), (shape[0], 1))
        yield from ((*shape, 2), (2, *shape), (*shape[:-1], shape[-1] + 1), (*shape[:-1], 2 * shape[-1]))
    if shape and shape[-1] % 2 == 0:
        yield (*shape[:-1], shape[-1] // 2)
    if len(shape) > 1:
        yield from ((*shape[:-2], shape[-1], shape[-2]), (*shape[:-2], 5, shape[-1]), (shape[1],))
