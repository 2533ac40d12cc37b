"""Random straight-line Functions, ported and run against PyTorch."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fnjax.port import port_source
from tests.port.test_classes import HEAD, module

UNARY = [
    "{a}.tanh()",
    "torch.sigmoid({a})",
    "F.softplus({a})",
    "{a}.abs().add(1).log()",
    "{a}.clamp(-1, 1)",
    "F.gelu({a})",
    "{a}.flip(0)",
    "torch.roll({a}, 1, dims=1)",
    "{a}.clone()",
    "{a}.softmax(-1)",
    "{a} - {a}.mean(1, keepdim=True)",
    "{a}.cumsum(0)",
    "{a}.sort(dim=1)[0]",
    "{a}.t().reshape(3, 4) * 1",
    "{a} / {a}.norm()",
    "{a}.masked_fill({a} < 0, 0.25)",
    "{a}.unsqueeze(0).squeeze(0) * 0.5",
]
BINARY = [
    "{a} + {b}",
    "{a} * torch.sin({b})",
    "torch.maximum({a}, {b})",
    "torch.where({a} > 0, {a}, 0.1 * {b})",
    "torch.lerp({a}, {b}, 0.3)",
    "{a}.gather(1, {b}.argsort(1))",
    "{a} @ {b}.t() @ {b} / 4",
    "torch.addcmul({a}, {b}, {b}, value=0.5)",
    "torch.cat([{a}[:1], {b}[1:]])",
]
WRITES = [
    "{a}.mul_(0.5).add_(1)",
    "{a} += 0.5 * {b}",
    "{a}[0] = {b}[1]",
    "{a}[:, 1] -= {b}[:, 0]",
    "{a}[{b} > 0] = 0.5",
    "{a}[{b} > 0] *= 0.5",
    "{a}[{b} > 0] = {b}[{b} > 0].tanh()",
    "{a}[1].copy_({b}[0])",
    "{a}.narrow(1, 1, 2).zero_()",
    "{a}.view(-1)[:3].fill_(0.2)",
    "{a}.diagonal().mul_(2)",
    "{a}.tril_().relu_()",
    "{c} = {a}[1:]\n{c}.mul_({b}[1:])",
    "{c} = {a}\n{c}.sub_({b})",
    "torch.mul({a}, {b}, out={a})",
    "{a}.scatter_(1, {b}.argmax(1, keepdim=True), 0.7)",
    "{a}.index_add_(0, torch.tensor([2, 0]), {b}[:2].clone())",
    "{c} = {b} > 0\n{a}[{c}] = {b}[{c}].exp() - {a}[{c}]",
    "{c}, {c}_b = {a}.chunk(2, dim=1)\n{c}.add_({c}_b)",
    "for {c} in range(2):\n    {a}[{c}] += {b}[{c} + 1]",
    "{a}[torch.tensor([0, 2])] = {b}[:2].clone()",
    "{a}.t()[1].neg_()",
    "{c} = {a}.max()\n{a}.div_({c}.abs() + 1)",
    "{a}.unbind(0)[1].mul_(3)",
    "{a}, {b} = {b}, {a}",
    "{c} = [{a} * 2, {b} + 1]\n{a} = {c}[0] * {c}[1]",
    "{a}[{a} > {b}] += 0.5",
]


@st.composite
def block(draw, names, length):
    """Statements over arrays of shape (3, 4), and the names that then are such arrays."""
    names, lines = list(names), []
    for i in range(length):
        kind = draw(st.sampled_from(["unary", "binary", "write", "write"]))
        a, b = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        if kind == "write":
            lines += draw(st.sampled_from(WRITES)).format(a=a, b=b, c=f"view_{i}").split("\n")
        else:
            text = draw(st.sampled_from(UNARY if kind == "unary" else BINARY)).format(a=a, b=b)
            target = draw(st.sampled_from([*names, f"new_{len(names)}"]))
            lines.append(f"{target} = {text}")
            names += [target] * (target not in names)
    return lines, names


@st.composite
def function(draw):
    """The source of a Function of two arrays."""
    before, names = draw(block(["a", "b"], draw(st.integers(1, 6))))
    saved = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    others = [n for n in names if n not in saved]  # a write to what was saved before is refused
    after, _ = draw(block(others, draw(st.integers(0, 2 if others else 0))))
    result = draw(st.sampled_from(names))
    kept = [f"s{i}" for i in range(len(saved))]
    back, known = draw(block(["g", *kept], draw(st.integers(1, 4))))
    gradients = [draw(st.sampled_from(known)) for _ in range(2)]
    forward = [
        "a, b = x.clone(), y * 0.5",
        *before,
        f"ctx.save_for_backward({', '.join(saved)})",
        *after,
        f"return {result} * 1",
    ]
    backward = [
        "g = g.clone()",
        f"{', '.join(kept)}, = [t.clone() for t in ctx.saved_tensors]",
        *back,
        f"return {', '.join(gradients)}",
    ]
    methods = (("forward", "ctx, x, y", forward), ("backward", "ctx, g", backward))
    text = "class Generated(Function):\n"
    for name, parameters, lines in methods:
        text += f"    @staticmethod\n    def {name}({parameters}):\n"
        text += "".join(f"        {line}\n" for line in lines)
    return HEAD + text


@pytest.mark.parity
@hypothesis.settings(max_examples=40, deadline=None, derandomize=True, database=None)
@hypothesis.given(function(), st.integers(0, 99))
def test_numbers(tmp_path_factory, text, seed):
    """A generated Function is ported whole, and gives PyTorch's outputs and gradients, eager and under jit."""
    pytest.importorskip("torch")
    from fnjax.port.compare import compare

    folder = tmp_path_factory.mktemp("generated")
    ported = port_source(text)
    assert [c.status for c in ported.classes] == ["ported"], ported.findings
    original, port = module(folder, "original_generated", text), module(folder, "ported_generated", ported.code)
    rng = np.random.default_rng(seed)
    args = [rng.normal(size=(3, 4)), rng.normal(size=(3, 4))]
    result = compare(original.Generated.apply, port.Generated.apply, args, dtype="float64", second=False)
    assert not [str(e) for e in result.entries if not e.equal], ported.code
    assert {e.mode for e in result.entries} == {"eager", "jit"}
