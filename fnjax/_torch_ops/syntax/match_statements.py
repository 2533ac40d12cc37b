"""Match statements that only compare with values, rewritten as `if` statements, which a traced test may decide."""

from __future__ import annotations

import ast

from fnjax._torch_ops.syntax.trees import Names, assign, bind, load


def write_as_if(node: ast.Match, names: Names) -> list[ast.stmt] | None:
    """Return a match statement as assignments and an `if`.

    Args:
        node: the statement.
        names: the generator of new names.

    Returns:
        None if a pattern looks into what it matches: a sequence, a mapping or a class.
    """
    subject = names.new("subject")
    tests = [_write_test(case.pattern, subject) for case in node.cases]
    if None in tests:
        return None
    rest: list[ast.stmt] = []
    for case, test in reversed([*zip(node.cases, tests, strict=True)]):
        assert test is not None
        whole = test if case.guard is None else ast.BoolOp(ast.And(), [test, case.guard])
        rest = [ast.copy_location(ast.If(whole, case.body, rest), case.pattern)]
    return [ast.fix_missing_locations(s) for s in (ast.copy_location(assign(subject, node.subject), node), *rest)]


def _write_test(pattern: ast.pattern, subject: str) -> ast.expr | None:
    if isinstance(pattern, ast.MatchValue):
        return ast.Compare(load(subject), [ast.Eq()], [pattern.value])
    if isinstance(pattern, ast.MatchSingleton):
        return ast.Compare(load(subject), [ast.Is()], [ast.Constant(pattern.value)])
    if isinstance(pattern, ast.MatchOr):
        tests = [_write_test(p, subject) for p in pattern.patterns]
        return None if None in tests else ast.BoolOp(ast.Or(), [t for t in tests if t is not None])
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
        return ast.List([bind(pattern.name, load(subject))], ast.Load()) if pattern.name else ast.Constant(True)
    return None
