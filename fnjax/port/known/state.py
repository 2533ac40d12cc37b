"""The variables at one point of a function, and what holds of them where branches join."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field, replace

from fnjax.port.known.facts import Value, join_values, rename_storages


class Bindings(dict[str, Value]):
    """Variables and their values, which are set one by one.

    Attributes:
        holders: for each memory, the variables that were in it in any state of the function.
    """

    def __init__(self, values: Bindings | None = None) -> None:
        super().__init__(values or {})
        self.holders: defaultdict[str, set[str]] = defaultdict(set) if values is None else values.holders

    def __setitem__(self, name: str, value: Value) -> None:
        for storage in value.storages:
            self.holders[storage].add(name)
        super().__setitem__(name, value)

    def copy(self) -> Bindings:
        """Return a copy."""
        return Bindings(self)

    @property
    def storages(self) -> frozenset[str]:
        """All memory that a variable may be in."""
        return frozenset().union(*(value.storages for value in self.values()))

    def rename_memory(self, old: str, new: str) -> None:
        """Give memory another name, in all variables that may be in it."""
        for name in tuple(self.holders[old]):
            if name in self:
                self[name] = rename_storages(self[name], {old: new})


@dataclass(slots=True)
class State:
    """The variables at one point: their values, and how often each has been written."""

    variables: Bindings = field(default_factory=Bindings)
    versions: dict[str, int] = field(default_factory=dict)

    def copy(self) -> State:
        """Return a copy."""
        return State(self.variables.copy(), dict(self.versions))

    def copy_joined(self, other: State) -> State:
        """Return a copy joined with another state."""
        made = self.copy()
        made.join_state(other)
        return made

    def find_version(self, name: str) -> int:
        """Return how often the variable has been written."""
        return self.versions.get(name, 0)

    def decide_anew(self, branch: str) -> None:
        """Rename the choices of a branch in earlier iterations of a loop, so that they differ from its present one."""
        for name, value in self.variables.items():
            if value.memref and value.memref.choice.startswith(f"{branch} "):
                older = replace(value.memref, choice=value.memref.choice + "'")
                self.variables[name] = replace(value, memref=older)

    def join_state(self, other: State) -> None:
        """Join another state into this one, as after an `if`."""
        for name, value in other.variables.items():
            mine = self.variables.get(name)
            self.variables[name] = value if mine is None else join_values(mine, value)
        for name, version in other.versions.items():
            if self.versions.get(name, 0) != version:
                self.versions[name] = max(version, self.versions.get(name, 0))


def join_states(states: list[State], branch: str) -> State:
    """Return the state after several branches, of which one is taken."""
    for state in states:
        state.decide_anew(branch)
    result = states[0].copy()
    for state in states[1:]:
        result.join_state(state)
    for name, value in result.variables.items():
        branches = [s.variables[name] for s in states if name in s.variables]
        if len(branches) == len(states) > 1:
            result.variables[name] = mark_choice(value, branches, branch)
    return result


def mark_choice(value: Value, branches: list[Value], branch: str) -> Value:
    """Return a joined value with the branch that chooses among the values, for its memory."""
    memref = value.memref
    if memref is None or memref.certain or memref.choice:
        return value
    known = [w.memref for w in branches if w.memref and (w.memref.certain or w.memref.choice)]
    if len(known) < len(branches):
        return value
    texts = [f"{sorted(p.storage)}{[s.text for s in p.steps]}{p.choice}" for p in known]
    digest = hashlib.sha256("|".join(texts).encode()).hexdigest()  # choices inside choices would double its length
    return replace(value, memref=replace(memref, choice=f"{branch} {digest}"))
