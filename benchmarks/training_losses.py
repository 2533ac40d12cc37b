"""Losses of the models of `trained_models`: here with optax, and in PyTorch from the same state.

JAX_ENABLE_X64=1 python -m benchmarks.training_losses [--steps 30] [--only NAME ...]

Prints a line of JSON for each model: the losses of both in float64, by optimiser, and in float32 (AdamW); and how often
JAX traced the step.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np
import optax
import torch

import fnjax.torch
from benchmarks import trained_models

SOURCE = Path(__file__).with_name("trained_models.py")
RATES = {"SGD": 0.05, "AdamW": 3e-3}
BATCHES = 3  # they come again, so that losses fall
OPTIMISERS = {
    "SGD": (
        optax.sgd(RATES["SGD"], momentum=0.9),
        lambda parameters: torch.optim.SGD(parameters, RATES["SGD"], momentum=0.9),
    ),
    "AdamW": (
        optax.adamw(RATES["AdamW"], weight_decay=0.01),
        lambda parameters: torch.optim.AdamW(parameters, RATES["AdamW"], weight_decay=0.01),
    ),
}


def make_pair(name, source, dtype):
    """Return a model here and the same in PyTorch, with one state."""
    with fnjax.torch.seed(0):
        ours = source.MODELS[name]().to(getattr(fnjax.torch, dtype))
    theirs = trained_models.MODELS[name]().to(getattr(torch, dtype))
    state = fnjax.torch.jax_view(ours.state_dict())
    theirs.load_state_dict({key: torch.tensor(np.asarray(value)) for key, value in state.items()})
    return ours, theirs


def draw_batches(name, steps, dtype):
    """Return the arguments of forward for each step, as NumPy arrays."""
    rng = np.random.default_rng(0)
    batches = [trained_models.draw_batch(name, rng) for _ in range(BATCHES)]
    return [[x.astype(dtype) if x.dtype.kind == "f" else x for x in batches[i % BATCHES]] for i in range(steps)]


def read_state(model):
    """Return the parameters and the buffers of a model as arrays."""
    return fnjax.torch.jax_view((dict(model.named_parameters()), dict(model.named_buffers())))


def make_gradient(model, traces=None):
    """Return (parameters, buffers, *batch) → ((loss, new buffers), gradients); each call adds to `traces`."""

    def gradient(params, buffers, *batch):
        if traces is not None:
            traces.append(1)

        def loss(params):
            value, new = fnjax.torch.func.stateful_call(model, {**params, **buffers}, batch)
            return value, {name: new[name] for name in buffers}

        return jax.value_and_grad(loss, has_aux=True)(params)

    return gradient


def train_here(model, batches, optimiser, gradient):
    """Return the losses with optax."""
    params, buffers = read_state(model)
    state, losses = optimiser.init(params), []

    @jax.jit
    def apply(params, state, grads):
        updates, state = optimiser.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for batch in batches:
        (value, buffers), grads = gradient(params, buffers, *batch)
        params, state = apply(params, state, grads)
        losses.append(float(value))
    return losses


def train_in_pytorch(model, batches, make_optimiser):
    """Return the losses in PyTorch."""
    optimiser, losses = make_optimiser(model.parameters()), []
    for batch in batches:
        loss = model(*map(torch.tensor, batch))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def compare(name, source, steps, dtype, optimisers):
    """Return the losses of a model by optimiser and side, and the number of traces."""
    found, traces, compiled = {}, [], []
    for optimiser in optimisers:
        ours, theirs = OPTIMISERS[optimiser]
        here, there = make_pair(name, source, dtype)
        compiled = compiled or [jax.jit(make_gradient(here, traces))]
        batches = draw_batches(name, steps, dtype)
        in_jax = train_here(here, batches, ours, compiled[0])
        found[optimiser] = {"here": in_jax, "PyTorch": train_in_pytorch(there, batches, theirs)}
    return found, len(traces)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--only", nargs="+", default=list(trained_models.MODELS), metavar="NAME")
    options = parser.parse_args()
    torch.set_num_threads(1)
    source = fnjax.torch.load(SOURCE)
    for name in options.only:
        found, traces = compare(name, source, options.steps, "float64", OPTIMISERS)
        single, _ = compare(name, source, options.steps, "float32", ["AdamW"])
        print(json.dumps({"model": name, "traces": traces, **found, "float32": single["AdamW"]}), flush=True)


if __name__ == "__main__":
    main()
