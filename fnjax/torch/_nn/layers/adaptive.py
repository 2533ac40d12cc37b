"""AdaptiveLogSoftmaxWithLoss."""

from __future__ import annotations

from typing import Any, NamedTuple

from fnjax.torch._nn.layers.linear import Linear
from fnjax.torch._nn.layers.lines import FACTORY, F, Layer, constructor, enter_layer, torch
from fnjax.torch.names.registry import find


class _ASMoutput(NamedTuple):
    output: Any
    loss: Any


@enter_layer("adaptive")
@constructor(
    "in_features: int, n_classes: int, cutoffs: Any, div_value: float = 4.0, head_bias: bool = False, " + FACTORY,
)
class AdaptiveLogSoftmaxWithLoss(Layer):
    """torch.nn.AdaptiveLogSoftmaxWithLoss; each row computes all clusters, where PyTorch chooses by the target."""

    def _prepare(self, values: dict[str, Any]) -> None:
        cutoffs, n_classes = list(values["cutoffs"]), values["n_classes"]
        if not cutoffs:
            raise ValueError("cutoffs should be a sequence of length larger than 0")
        integers = all(int(c) == c for c in cutoffs)
        if not integers or cutoffs != sorted({*cutoffs}) or cutoffs[0] <= 0 or cutoffs[-1] > n_classes - 1:
            raise ValueError(
                "cutoffs should be a sequence of unique, positive integers sorted in an increasing order, where each "
                "value is between 1 and n_classes-1"
            )
        values |= {"cutoffs": [*cutoffs, n_classes], "shortlist_size": cutoffs[0], "n_clusters": len(cutoffs)}
        values["head_size"] = cutoffs[0] + len(cutoffs)

    def _start(self, given: dict[str, Any]) -> None:
        options = {"device": given["device"], "dtype": given["dtype"]}
        self.head = Linear(self.in_features, self.head_size, bias=self.head_bias, **options)
        self.tail = find("torch.nn.ModuleList")()
        for i in range(self.n_clusters):
            inner = int(self.in_features // self.div_value ** (i + 1))
            outer = self.cutoffs[i + 1] - self.cutoffs[i]
            sizes = ((self.in_features, inner), (inner, outer))
            self.tail.append(find("torch.nn.Sequential")(*(Linear(*size, bias=False, **options) for size in sizes)))

    def reset_parameters(self) -> None:
        """Draw the initial values."""
        for layer in (self.head, *(layer for pair in self.tail for layer in pair)):
            layer.reset_parameters()

    def log_prob(self, input: Any) -> Any:
        """Return the logarithms of the probabilities of all classes."""
        head = F.log_softmax(self.head(input), 1)
        parts = [head[:, : self.shortlist_size]]
        for i, pair in enumerate(self.tail):
            at = self.shortlist_size + i
            parts.append(F.log_softmax(pair(input), 1) + head[:, at : at + 1])
        return torch.cat(parts, 1)

    def predict(self, input: Any) -> Any:
        """Return the likeliest class of each row."""
        return self.log_prob(input).argmax(1)

    def forward(self, input: Any, target: Any) -> _ASMoutput:
        """Return the logarithms of the targets' probabilities, and their mean with the other sign."""
        single = target.ndim == 0
        if target.ndim not in (0, 1):
            raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
        if input.ndim != target.ndim + 1:
            kind = ("0D", "1D") if single else ("1D", "2D")
            raise RuntimeError(
                f"{kind[0]} target tensor expects {kind[1]} input tensors, but found inputs with size {input.shape}"
            )
        rows = input.unsqueeze(0) if single else input
        output = self.log_prob(rows).gather(1, target.reshape(-1, 1)).squeeze(1)
        loss = (-output).mean()
        return _ASMoutput(output.squeeze(0) if single else output, loss)
