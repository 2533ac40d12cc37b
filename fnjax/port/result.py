"""The result of porting a file: its code, its classes, and the findings in them."""

from __future__ import annotations

from dataclasses import dataclass, field

KEYS = ("key", "rng_key", "random_key", "_key")  # the first that the file does not use takes the new argument


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One message about a class.

    Attributes:
        line: its line in the source, from 1.
        col: the column, from 1.
        code: the kind of finding, one of those in the porting guide: `untraced`, `unknown`, `alias` …
        message: what it is and what to do.
        severity: "error" (the class stays PyTorch source; with `strict` something in it needs manual porting, or it
            runs outside jit only) or "note".
    """

    line: int
    col: int
    code: str
    message: str
    severity: str = "error"


@dataclass(frozen=True, slots=True)
class PortedClass:
    """A Function class of the source.

    Attributes:
        name: its qualified name.
        status: "ported"; "as_is" (an error is among its findings: it stays PyTorch source, which fnjax.torch runs);
            with `strict` "partial" (there is a `raise` in the place of what is not translated); "failed" (no code could
            be made of it).
        findings: what was found in it and in what it needs of the file.
    """

    name: str
    status: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Ported:
    """The result of `port_source`.

    Attributes:
        code: the JAX source; empty where the input could not be used.
        classes: the Function classes found, in the order of the file.
        problem: why the input could not be used: a syntax error, no Function class. Empty otherwise.
        readable: False where the problem is that the text is no Python that the porter can read.
        axes: the constants of the code that name mesh axes, and that its caller sets.
        as_is: the functions and classes that stay PyTorch source.
        in_jax: the classes, operators and wrappers that are JAX source, where others are not.
        left_out: the functions and classes of the source that are not in the code.
    """

    code: str = ""
    classes: tuple[PortedClass, ...] = field(default=())
    problem: str = ""
    readable: bool = True
    axes: tuple[str, ...] = ()
    as_is: tuple[str, ...] = ()
    in_jax: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all classes, each once, in the order of the file."""
        return tuple(sorted({f for c in self.classes for f in c.findings}))
