"""Recurrent layers and their cells."""

from fnjax._torch_ops.record import Call, Template
from fnjax._torch_ops.registry import add_operation

_WEIGHTS = "w_ih, w_hh, b_ih=None, b_hh=None"
_OPTIONS = "has_biases, num_layers, dropout, train, bidirectional"
_LAYERS = "params, has_biases, num_layers, bidirectional"


def _make_layers(call_text: str) -> Template:
    def build(call: Call) -> str:
        if call.read_literal("dropout") == 0 or call.read_literal("train") is False:
            return call_text + ")"
        return f"{call_text}, dropout=dropout if train else 0.0, key=key)"

    return build


for _name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    _state, _kind = ("tuple(hx)", "static") if _name == "lstm" else ("hx", "tensor")  # a pair, or one tensor
    add_operation(
        f"torch.{_name}_cell",
        f"input, hx, {_WEIGHTS}",
        f"_{_name}_cell(input, {_state}, w_ih, w_hh, b_ih, b_hh)",
        "list" if _name == "lstm" else "float",
    )
    add_operation(
        f"torch.{_name}",
        f"input, hx: {_kind}, params: static, {_OPTIONS}, batch_first",
        _make_layers(f"_recurrent(_{_name}_cell, input, {_state}, {_LAYERS}, batch_first"),
        "list",
        random=True,
    )
    add_operation(
        f"torch.{_name}",
        f"data, batch_sizes: tensor, hx: {_kind}, params: static, {_OPTIONS}",
        _make_layers(f"_recurrent_packed(_{_name}_cell, data, batch_sizes, {_state}, {_LAYERS}"),
        "list",
        random=True,
    )
