"""PyTorch's own inputs for its layers (module_db), run by PyTorch and by fnjax.torch.

`python -m tests.parity.modules` runs all and prints what is equal, refused and different; names of layers may follow.
"""

import argparse
import collections
import json
import pathlib
import sys
import warnings
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax.torch as ours

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
_COMMON = pytest.importorskip("torch.testing._internal.common_modules")
FunctionInput, ModuleInput, module_db = _COMMON.FunctionInput, _COMMON.ModuleInput, _COMMON.module_db

TOLERANCE = {"float32": (1e-4, 1e-4), "bfloat16": (4e-2, 2e-2)}


def _number(*shape):
    return lambda dtype: torch.randn(*shape, dtype=dtype, requires_grad=True)


def _index(high, *shape):
    return lambda dtype: torch.randint(high, shape)


# Layers that module_db leaves out: the constructor's arguments, and those of forward; `eval` where training draws.
OTHERS = {
    "AdaptiveLogSoftmaxWithLoss": [((8, 10, [3, 6]), {}, _number(5, 8), _index(10, 5))],
    "AlphaDropout eval": [((0.3,), {}, _number(3, 4))],
    "ChannelShuffle": [((2,), {}, _number(1, 4, 3, 3))],
    "CosineSimilarity": [((), {"dim": 0}, _number(4, 3), _number(4, 3))],
    "CrossMapLRN2d": [((5, 0.5), {}, _number(2, 9, 2, 2)), ((4,), {"k": 2}, _number(2, 6, 2, 2))],
    "Dropout eval": [((0.3,), {}, _number(3, 4))],
    "Dropout1d eval": [((0.3,), {}, _number(2, 3, 4))],
    "Dropout2d eval": [((0.3,), {}, _number(2, 3, 4, 4))],
    "Dropout3d eval": [((0.3,), {}, _number(2, 3, 2, 2, 2))],
    "EmbeddingBag": [
        *(((6, 3), {"mode": mode, "padding_idx": 1}, _index(6, 2, 4)) for mode in ("sum", "mean", "max")),
        ((6, 3), {"mode": "sum", "include_last_offset": True}, _index(6, 7), lambda _: torch.tensor([0, 2, 2, 7])),
        ((6, 3), {"mode": "sum"}, _index(6, 4), lambda _: torch.tensor([0, 2]), _number(4)),
        ((6, 3), {"max_norm": 1.0}, _index(6, 2, 4)),
    ],
    "FeatureAlphaDropout eval": [((0.3,), {}, _number(2, 3, 4))],
    "Flatten": [((), {}, _number(2, 3, 4)), ((0, 1), {}, _number(2, 3, 4))],
    "Fold": [(((4, 5), (2, 2)), {}, _number(2, 12, 12)), (((4, 4), 2), {"stride": 2}, _number(2, 8, 4))],
    "Hardsigmoid": [((), {}, _number(3, 4))],
    "Identity": [((1, 2), {"any": 3}, _number(3, 4))],
    "LazyBatchNorm2d": [((), {}, _number(3, 2, 4, 4))],
    "LazyBatchNorm3d": [((), {}, _number(3, 2, 2, 2, 2))],
    "LazyInstanceNorm1d": [((), {"affine": True}, _number(3, 2, 4))],
    "LazyInstanceNorm2d": [((), {}, _number(3, 2, 4, 4))],
    "LazyInstanceNorm3d": [((), {}, _number(3, 2, 2, 2, 2))],
    "LazyLinear": [((3,), {}, _number(2, 4))],
    **{
        f"MaxUnpool{n}d": [
            ((2,), {}, _number(1, 1, *(2,) * n), lambda _, n=n: torch.arange(2**n).view(1, 1, *(2,) * n))
        ]
        for n in (1, 2, 3)
    },
    "NLLLoss2d": [((), {}, _number(2, 3, 4, 4), _index(3, 2, 4, 4))],
    "PairwiseDistance": [
        ((), {"p": 1.0}, _number(4, 3), _number(4, 3)),
        ((), {"keepdim": True}, _number(3), _number(3)),
    ],
    "PixelShuffle": [((2,), {}, _number(1, 8, 2, 3))],
    "PixelUnshuffle": [((2,), {}, _number(1, 2, 4, 6))],
    "RReLU eval": [((), {}, _number(3, 4))],
    "TransformerDecoder": [
        ((torch.nn.TransformerDecoderLayer(4, 2, 8, 0.0), 2), {}, _number(3, 2, 4), _number(5, 2, 4)),
    ],
    "TripletMarginLoss": [((), {"swap": True, "reduction": "sum"}, _number(4, 3), _number(4, 3), _number(4, 3))],
    "TripletMarginWithDistanceLoss": [((), {"margin": 0.5}, _number(4, 3), _number(4, 3), _number(4, 3))],
    "Unflatten": [((1, (2, 3)), {}, _number(2, 6))],
    "Unfold": [((2,), {"padding": 1}, _number(2, 3, 4, 4))],
    "Upsample": [((), {"scale_factor": 2, "mode": "bilinear"}, _number(1, 2, 3, 3)), (((5,),), {}, _number(1, 2, 3))],
    "UpsamplingBilinear2d": [((), {"scale_factor": 2}, _number(1, 2, 3, 3))],
    "UpsamplingNearest2d": [((), {"size": (5, 4)}, _number(1, 2, 3, 3))],
}


class Other:
    """A layer that module_db leaves out, in its form."""

    def __init__(self, key):
        name, _, self.mode = key.partition(" ")
        self.module_cls, self.is_lazy = getattr(torch.nn, name), name.startswith("Lazy")
        self.train_and_eval_differ = False
        self.samples = OTHERS[key]

    def module_inputs_func(self, _, *, dtype, **options):
        """Return the inputs, as functions of module_db do."""
        return [
            ModuleInput(FunctionInput(*args, **kwargs), FunctionInput(*(make(dtype) for make in inputs)))
            for args, kwargs, *inputs in self.samples
        ]


INFOS = {info.module_cls.__name__: info for info in (*module_db, *map(Other, OTHERS))}


def to_numpy(tensor):
    """Return a copy of a tensor's entries, those of bfloat16 in NumPy's extension."""
    tensor = tensor.detach().clone()
    return tensor.float().numpy().astype(jnp.bfloat16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def enter(value):
    """Return arguments for fnjax.torch: tensors, dtypes and modules among them."""
    if isinstance(value, torch.nn.Module):
        return copy_module(value)
    if isinstance(value, torch.Tensor):
        own = ours.torch_view(jnp.asarray(to_numpy(value)))
        own = own if str(own.dtype) == str(value.dtype) else own.to(getattr(ours, str(value.dtype)[6:]))
        return own.requires_grad_() if value.requires_grad else own
    if isinstance(value, torch.dtype):
        return getattr(ours, str(value)[6:])
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(enter, value))
    if isinstance(value, dict):
        return {k: enter(v) for k, v in value.items()}
    if callable(value) and getattr(value, "__module__", "").startswith("torch"):
        return getattr(ours.nn.functional, value.__name__, value)
    return value


def copy_module(module):
    """Return a layer that stands among the arguments of another's constructor."""
    name = type(module).__name__
    if name == "LayerNorm":
        made = ours.nn.LayerNorm(module.normalized_shape, module.eps)
    elif name in {"ReLU", "GELU"}:
        made = getattr(ours.nn, name)()
    else:
        attention = module.self_attn
        made = getattr(ours.nn, name)(
            attention.embed_dim,
            attention.num_heads,
            module.linear1.out_features,
            module.dropout.p,
            enter(module.activation),
            module.norm1.eps,
            attention.batch_first,
            module.norm_first,
            module.linear1.bias is not None,
        )
    made.load_state_dict({k: to_numpy(v) for k, v in module.state_dict().items()})
    return made


class Refused(Exception):
    """PyTorch itself raises."""


@dataclass
class Case:
    """One input of a layer.

    Attributes:
        info: of module_db.
        sample: constructor and forward arguments.
        dtype: torch's.
        training: the mode.
        number: which of the layer's inputs it is.
    """

    info: object
    sample: object
    dtype: object
    training: bool
    number: int

    @property
    def name(self):
        """The layer's name."""
        return self.info.module_cls.__name__

    def __str__(self):
        mode = "train" if self.training else "eval"
        return f"{self.name} {self.number} {str(self.dtype)[6:]} {mode}"


def list_cases(name, dtypes=("float32", "bfloat16"), each=None):
    """Return the cases of a layer; `each` takes so many of its inputs, evenly spaced."""
    found = []
    info = INFOS[name]
    modes = (True, False) if info.train_and_eval_differ else (getattr(info, "mode", "") != "eval",)
    for dtype in dtypes:
        for training in modes:
            torch.manual_seed(0)
            options = {"device": "cpu", "dtype": getattr(torch, dtype), "requires_grad": True}
            samples = list(info.module_inputs_func(info, training=training, **options))
            step = 1 if each is None else max(1, len(samples) // each)
            chosen = [Case(info, s, getattr(torch, dtype), training, i) for i, s in enumerate(samples) if i % step == 0]
            found += chosen if each is None else chosen[:each]
    return found


def list_tensors(value):
    """Return the tensors of nested arguments or results, in order."""
    if isinstance(value, (torch.Tensor, ours.Tensor)):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in list_tensors(v)]
    return [t for v in value for t in list_tensors(v)] if isinstance(value, (list, tuple)) else []


def describe_difference(want, got, dtype, what):
    """Return how an array differs from PyTorch's, or an empty text."""
    if want.shape != got.shape:
        return f"{what}: shape {got.shape} for {want.shape}"
    if jax.dtypes.canonicalize_dtype(want.dtype) != got.dtype:
        return f"{what}: dtype {got.dtype} for {want.dtype}"
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    a, b = want.astype(wide), np.asarray(got).astype(wide)
    relative, absolute = TOLERANCE[str(dtype)[6:]]
    finite = np.abs(a[np.isfinite(a)])
    size = max(1.0, float(finite.max())) if finite.size else 1.0
    if np.allclose(a, b, rtol=relative, atol=absolute * size, equal_nan=True):
        return ""
    return f"{what}: {b.ravel()[:4]} for {a.ravel()[:4]}"


def run_case(case):
    """Return how fnjax.torch's layer differs from PyTorch's in values, gradients and state dict, or an empty text."""
    built, given = case.sample.constructor_input, case.sample.forward_input
    torch.manual_seed(0)
    try:
        theirs = case.info.module_cls(*built.args, **built.kwargs)
        if case.info.is_lazy:
            theirs(*given.args, **given.kwargs)
        theirs = theirs.to(case.dtype).train(case.training)
        before = {k: to_numpy(v) for k, v in theirs.state_dict().items()}
        want = theirs(*given.args, **given.kwargs)
    except Exception as e:  # noqa: BLE001 - whatever PyTorch refuses
        raise Refused(f"{type(e).__name__}: {e}") from None
    with ours.seed(0):
        own = getattr(ours.nn, case.name)(*enter(built.args), **enter(built.kwargs))
        if case.info.is_lazy:
            own(*enter(given.args), **enter(given.kwargs))
        own = own.to(getattr(ours, str(case.dtype)[6:])).train(case.training)
    own.load_state_dict(before)
    mine = own.state_dict()
    wrong = [] if list(before) == list(mine) else [f"state dict: {list(mine)} for {list(before)}"]
    wrong += [describe_difference(v, mine[k].array, case.dtype, k) for k, v in before.items() if k in mine]
    wrong += [] if repr(theirs) == repr(own) else [f"repr: {own!r} for {theirs!r}"]
    wrong += compare_results(case, own, theirs, (given.args, given.kwargs), list_tensors(want))
    return "; ".join(filter(None, wrong))


def compare_results(case, own, theirs, given, want):
    """Return how outputs, new buffers and the gradients of a weighted sum differ; ours are computed under jit."""
    leaves, tree = jax.tree.flatten(enter(given), is_leaf=lambda x: isinstance(x, ours.Tensor))
    differentiated = [t for t in list_tensors(given) if t.requires_grad]
    inputs = {i: x.array for i, x in enumerate(leaves) if isinstance(x, ours.Tensor)}
    kinds = [x.requires_grad for x in leaves if isinstance(x, ours.Tensor)]
    floats = {i: x for (i, x), flag in zip(inputs.items(), kinds, strict=True) if flag}
    parameters = {k: p.array for k, p in own.named_parameters()}
    buffers = {k: b.array for k, b in own.named_buffers()}
    random = np.random.default_rng(0)
    weights = [random.normal(size=tuple(w.shape)).astype(np.float32) if w.requires_grad else None for w in want]

    def total(parameters, floats, buffers, inputs):
        filled = {**inputs, **floats}
        args, kwargs = tree.unflatten([filled.get(i, x) for i, x in enumerate(leaves)])
        with ours.seed(0):
            out, new = ours.func.stateful_call(own, {**parameters, **buffers}, tuple(args), kwargs)
        out = jax.tree.leaves(out)
        parts = [(o.astype(jnp.float32) * w).sum() for o, w in zip(out, weights, strict=True) if w is not None]
        return sum(parts, jnp.zeros(())), (out, new)

    found, (out, new) = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))(parameters, floats, buffers, inputs)
    pairs = enumerate(zip(want, out, strict=True))
    wrong = [describe_difference(to_numpy(w), o, case.dtype, f"output {i}") for i, (w, o) in pairs]
    state = {k: v for k, v in theirs.state_dict().items() if k in new}
    wrong += [describe_difference(to_numpy(v), new[k], case.dtype, f"new {k}") for k, v in state.items()]
    if all(w is None for w in weights):
        return wrong
    weighted = sum((o * torch.tensor(w)).sum() for o, w in zip(want, weights, strict=True) if w is not None)
    trained = {name: p for name, p in theirs.named_parameters() if p.requires_grad}
    sources = [*differentiated, *trained.values()]
    given = torch.autograd.grad(weighted, sources, allow_unused=True) if sources else []
    same = [
        [b for b, other in zip(found[1].values(), differentiated, strict=True) if other is t] for t in differentiated
    ]
    mine = [*map(sum, same), *(found[0][name] for name in trained)]  # a tensor may be given twice
    names = [*(f"input {i}" for i in range(len(differentiated))), *trained]
    for name, a, b in zip(names, given, mine, strict=True):
        gradient = np.zeros(b.shape, b.dtype) if a is None else to_numpy(a)
        wrong.append(describe_difference(gradient, b, case.dtype, f"gradient of {name}"))
    return wrong


def judge(case):
    """Return `equal`, `refused`, `raised`, `wrong`, or `not in PyTorch` where that raises, and why."""
    try:
        text = run_case(case)
    except Refused as e:
        return "not in PyTorch", str(e)
    except ours.NotSupported as e:
        return "refused", str(e)
    except Exception as e:  # noqa: BLE001 - what is raised is the result
        return "raised", f"{type(e).__name__}: {str(e)[:300]}"
    return ("wrong", text) if text else ("equal", "")


def main():
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--each", type=int, help="so many of each layer's inputs")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--out", help="write the results to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found = collections.defaultdict(collections.Counter)
    notes = {}
    for name in options.names or INFOS:
        for case in list_cases(name, options.dtypes.split(","), options.each):
            verdict, text = judge(case)
            found[name][verdict] += 1
            if text and (name, verdict) not in notes:
                notes[name, verdict] = f"{case}: {text}"
        shown = (f"\n    {v}: {t[:600]}" for (n, v), t in notes.items() if n == name and v != "not in PyTorch")
        print(name, dict(found[name]), *shown, flush=True)
        jax.clear_caches()
    total = sum(found.values(), collections.Counter())
    print(len(found), "layers,", sum(total.values()), "inputs:", dict(total))
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(found, indent=1))
    return int(any(counts["wrong"] for counts in found.values()))


if __name__ == "__main__":
    sys.exit(main())
