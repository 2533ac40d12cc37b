"""Selection of the rules that are called for a node, and their independence of order."""

import dataclasses
import random

import pytest

from fnjax.port import port_source
from fnjax.port.analysis import registry
from tests.port import classes_control, classes_layers, classes_memory
from tests.port.collectives.cases import HERE
from tests.port.test_classes import CASES, HEAD, source
from tests.port.triton_sources import CLASSES, KERNELS

QUESTIONS = 4  # for each answer; it was 36 when all rules were asked one after the other


@pytest.fixture
def answers(monkeypatch):
    """Return the list of results of every rule for calls, as they come."""
    found = []

    def listening(rule):
        def asked(*args):
            found.append(rule(*args))
            return found[-1]

        asked.__module__ = rule.__module__
        return asked

    rules = [dataclasses.replace(r, rule=listening(r.rule)) for r in registry.CALLS]
    monkeypatch.setattr(registry, "CALLS", rules)
    registry.find_rules.cache_clear()
    yield found
    registry.find_rules.cache_clear()


@pytest.mark.slow
def test_few_rules_are_asked_for_a_call(answers):
    """A call is resolved once, and only the rules that handle its callee are asked."""
    for cases in (classes_control, classes_layers, classes_memory):
        for _, text in list(cases.CASES.values())[:6]:
            assert port_source(HEAD + text).classes
    assert 50 < sum(a is not None for a in answers) <= len(answers)
    assert len(answers) < QUESTIONS * sum(a is not None for a in answers)


@pytest.mark.parametrize(
    ("callee", "wanted"),
    {
        "builtins.int": ["calls.python_calls", "calls.unknown_calls"],  # by name, by module, any
        "typing.cast": ["calls.python_calls", "calls.unknown_calls"],
        "torch.nonzero": ["calls.torch_names", "calls.unknown_calls"],
        "*.item": ["values.numbers"],  # by its name; then those of any method
        "ctx.save_for_backward": ["values.context", "calls.unknown_calls"],
        registry.ENTRY: ["calls.triton_launches", "calls.unknown_calls"],
        "other.thing": ["calls.unknown_calls"],
    }.items(),
)
def test_the_rule_that_says_most_is_asked_first(callee, wanted):
    """The order of the rules for a call follows from what they say that they handle."""
    rules = registry.find_rules(callee, frozenset())
    assert [r.__module__.removeprefix("fnjax.port.rewrite.") for r in rules][: len(wanted)] == wanted
    assert rules[-1].__module__.endswith("calls.unknown_calls")


def test_a_rule_for_kernels_is_asked_in_files_with_kernels():
    """`x.stride(0)` has a rule of its own only where there are kernels."""
    with_kernels, without = (registry.find_rules("*.stride", f) for f in (frozenset({"kernels"}), frozenset()))
    assert set(with_kernels) - set(without) == {with_kernels[0]}
    assert with_kernels[0].__module__.endswith("triton_launches")


@pytest.fixture
def shuffled(monkeypatch):
    """Enter the rules in another order."""
    caches = registry.find_rules, registry.find_node_rules

    def shuffle(seed):
        draw = random.Random(seed)
        nodes = {kind: draw.sample(rules, len(rules)) for kind, rules in registry.NODES.items()}
        monkeypatch.setattr(registry, "NODES", nodes)
        monkeypatch.setattr(registry, "CALLS", draw.sample(registry.CALLS, len(registry.CALLS)))
        for cache in caches:
            cache.cache_clear()

    yield shuffle
    for cache in caches:
        cache.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_rules_have_no_order_but_what_they_say(first, shuffled):
    """In whichever order the rules are entered, a text becomes the same port, with the same findings."""
    texts = [source(name) for name in list(CASES)[first::30]]
    texts += [HERE.joinpath("functions.py").read_text("utf-8"), KERNELS + "\n\n".join(list(CLASSES.values())[first::3])]
    plain = [port_source(text) for text in texts]
    shuffled(first)
    assert [port_source(text) for text in texts] == plain


def test_one_rule_has_the_last_word():
    """Of the rules for nodes of one type, one at most takes what the others leave."""
    assert len(registry.NODES) > 20
    assert [kind for kind, rules in registry.NODES.items() if sum(r.general for r in rules) > 1] == []
