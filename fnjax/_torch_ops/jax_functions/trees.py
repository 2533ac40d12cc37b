# Ported code has no types.
# mypy: ignore-errors
"""Functions that expressions of the table call, and that ports copy: trees of tensors in PyTorch's order."""

import collections


def _tree_map(f, tree):
    """Apply f to the leaves of a tree; as in PyTorch, None is a leaf and dictionaries keep their order."""
    if type(tree) in (dict, collections.OrderedDict, collections.defaultdict):
        made = tree.copy()
        for key, value in tree.items():
            made[key] = _tree_map(f, value)
        return made
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_tree_map(f, value) for value in tree))
    return type(tree)(_tree_map(f, value) for value in tree) if type(tree) in (list, tuple) else f(tree)


def _tree_flatten(tree):
    """Return the leaves of a tree, and the tree with None in place of each leaf."""
    leaves = []
    return leaves, _tree_map(leaves.append, tree)


def _tree_unflatten(leaves, tree):
    """Return the tree with these leaves."""
    rest = iter(leaves)
    return _tree_map(lambda _: next(rest), tree)
