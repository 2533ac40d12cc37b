"""Loops of JAX that end on a traced value, with gradients where it is known how many iterations there are at most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

Arrays = Sequence[Any]
_MOST = 1000  # iterations of which a gradient may keep what they compute


def while_loop(
    test: Callable[[Arrays], Any],
    body: Callable[[Arrays], list[Any]],
    start: list[Any],
    most: int | None,
    end: Callable[[list[Any]], Any],
) -> Any:
    """Return `end(jax.lax.while_loop(test, body, start))`; its derivative is that of a scan, where that is possible.

    Args:
        test: whether there is another iteration.
        body: an iteration.
        start: the arrays that it begins with.
        most: how many iterations there are at most; None if that is not known.
        end: makes reverse mode raise.
    """
    if most is None or most > _MOST:
        return end(jax.lax.while_loop(test, body, start))
    # A function with a derivative of its own must not close over what is differentiated.
    ask, asked = jax.closure_convert(test, start)
    step, given = jax.closure_convert(body, start)

    def scan(start: Any, asked: Arrays, given: Arrays) -> Any:
        def run(arrays: Any, _: None) -> tuple[Any, None]:
            return jax.lax.cond(ask(arrays, *asked), lambda a: step(a, *given), list, arrays), None

        return jax.lax.scan(run, start, length=most)[0]

    @jax.custom_jvp
    def loop(start: Any, asked: Arrays, given: Arrays) -> Any:
        return end(jax.lax.while_loop(lambda a: ask(a, *asked), lambda a: step(a, *given), start))

    loop.defjvp(lambda primals, tangents: jax.jvp(scan, primals, tangents))
    return loop(start, asked, given)
