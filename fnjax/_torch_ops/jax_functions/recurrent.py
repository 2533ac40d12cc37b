# Ported code has no types.
# mypy: ignore-errors
"""Functions that expressions of the table call, and that ports copy: recurrent layers."""

import jax
import jax.numpy as jnp


def _gates(x, h, w_ih, w_hh, b_ih=None, b_hh=None):
    """Return what the gates take from the input, and from the state."""
    x, h = x @ w_ih.T, h @ w_hh.T
    return (x if b_ih is None else x + b_ih), (h if b_hh is None else h + b_hh)


def _rnn_tanh_cell(x, h, *weights):
    """Return the next state of a network with tanh."""
    return jnp.tanh(sum(_gates(x, h, *weights)))


def _rnn_relu_cell(x, h, *weights):
    """Return the next state of a network with relu."""
    return jax.nn.relu(sum(_gates(x, h, *weights)))


def _gru_cell(x, h, *weights):
    """Return the next state of gated recurrent units: reset, update, and new state."""
    given, kept = _gates(x, h, *weights)
    (r, z, n), (hr, hz, hn) = jnp.split(given, 3, -1), jnp.split(kept, 3, -1)
    reset, update = jax.nn.sigmoid(r + hr), jax.nn.sigmoid(z + hz)
    new = jnp.tanh(n + reset * hn)
    return new + update * (h - new)


def _lstm_cell(x, state, w_ih, w_hh, b_ih=None, b_hh=None, w_hr=None):
    """Return output and state of long short-term memory after one step; w_hr projects the output."""
    h, c = state
    i, f, g, o = jnp.split(sum(_gates(x, h, w_ih, w_hh, b_ih, b_hh)), 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h if w_hr is None else h @ w_hr.T), c


def _scan_cell(cell, x, state, weights, inside, reverse):
    """Return the outputs of a cell over time, and its last state; `inside` is false after a sequence's end."""

    def step(state, at):
        new = cell(at[0], state, *weights)
        if inside is not None:
            new = jax.tree.map(lambda a, b: jnp.where(at[1][:, None], a, b), new, state)
        return new, jax.tree.leaves(new)[0]

    state, out = jax.lax.scan(step, state, (x, inside), reverse=reverse)
    return (out if inside is None else jnp.where(inside[..., None], out, 0)), state


def _recurrent(cell, x, state, weights, biases, layers, both, batch_first, dropout=0.0, key=None, inside=None):
    """Return the outputs of layers of a cell over time, in one or both directions, then the last states."""
    x = jnp.swapaxes(x, 0, 1) if batch_first else x
    directions, last = 1 + both, []
    size = len(weights) // (layers * directions)
    for layer in range(layers):
        if dropout and layer:
            keep = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - dropout, x.shape)
            x = jnp.where(keep, x / (1 - dropout), 0)
        outs = []
        for direction in range(directions):
            at = layer * directions + direction
            own = list(weights[at * size : (at + 1) * size])
            if not biases and len(own) == 3:  # a projection follows the biases
                own[2:2] = [None, None]
            start = jax.tree.map(lambda s, at=at: s[at], state)
            out, end = _scan_cell(cell, x, start, own, inside, direction == 1)
            outs.append(out)
            last.append(end)
        x = jnp.concatenate(outs, axis=-1) if both else outs[0]
    ends = [jnp.stack(parts) for parts in zip(*map(jax.tree.leaves, last), strict=True)]
    return [jnp.swapaxes(x, 0, 1) if batch_first else x, *ends]


def _recurrent_packed(cell, data, sizes, state, weights, biases, layers, both, dropout=0.0, key=None):
    """Return as _recurrent, of sequences packed one time after the other; `sizes` says how many are at each time."""
    batch = jax.tree.leaves(state)[0].shape[1]
    inside = jnp.arange(batch) < sizes[:, None]
    ends = jnp.cumsum(sizes)
    starts = ends - sizes
    places = jnp.where(inside, starts[:, None] + jnp.arange(batch), 0)
    x = jnp.where(inside[..., None], data[places], 0)
    out, *last = _recurrent(cell, x, state, weights, biases, layers, both, False, dropout, key, inside)
    time = jnp.searchsorted(ends, jnp.arange(data.shape[0]), side="right")
    return [out[time, jnp.arange(data.shape[0]) - starts[time]], *last]
