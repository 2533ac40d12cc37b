"""Train a PyTorch file's module with its custom Functions on JAX, and in PyTorch from the same initial state.

python examples/modules/train.py picture.png
"""

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import jax
import numpy as np
import optax
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from tqdm import trange

import fnjax.torch

SOURCE = Path(__file__).with_name("quantised_torch.py")
RATE, MOMENTUM = 0.05, 0.9


def read_digits(steps, batch=64):
    """Return training batches, and held-out digits with their labels."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(images))
    fit, held_out = order[:1300], order[1300:]
    chosen = [rng.choice(fit, batch) for _ in range(steps)]
    return [(images[at], labels[at]) for at in chosen], (images[held_out], labels[held_out])


def make_model():
    """Return the module, on JAX."""
    with fnjax.torch.seed(0):
        return fnjax.torch.load(SOURCE).Net()


def train_on_jax(model, batches, held_out, show=False):
    """Return losses and accuracy with optax."""
    torch = fnjax.torch
    params = torch.jax_view(dict(model.named_parameters()))
    buffers = torch.jax_view(dict(model.named_buffers()))
    optimiser = optax.sgd(RATE, momentum=MOMENTUM)

    @jax.jit
    def step(params, buffers, state, images, labels):
        def loss(params):
            logits, new = torch.func.stateful_call(model, {**params, **buffers}, (images,))
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), new

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = optimiser.update(grads, state)
        new = {name: value for name, value in new.items() if name in buffers}
        return optax.apply_updates(params, updates), new, state, value

    state, losses = optimiser.init(params), []
    for at in trange(len(batches), desc="JAX", disable=None if show else True):
        params, buffers, state, value = step(params, buffers, state, *batches[at])
        losses.append(float(value))
    model.eval()
    logits = torch.func.functional_call(model, {**params, **buffers}, (held_out[0],))
    model.train()
    return {"losses": losses, "accuracy": float(np.mean(logits.argmax(1) == held_out[1]))}


def train_in_pytorch(start, batches, held_out):
    """Return losses and accuracy in PyTorch, from a state dict of NumPy arrays."""
    import torch

    model = runpy.run_path(str(SOURCE))["Net"]()
    model.load_state_dict({name: torch.tensor(value) for name, value in start.items()})
    optimiser, losses = torch.optim.SGD(model.parameters(), RATE, MOMENTUM), []
    for images, labels in batches:
        loss = torch.nn.functional.cross_entropy(model(torch.tensor(images)), torch.tensor(labels))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    logits = model.eval()(torch.tensor(held_out[0])).detach().numpy()
    return {"losses": losses, "accuracy": float(np.mean(logits.argmax(1) == held_out[1]))}


def train(steps=200, show=False):
    """Return what both reach; "PyTorch" is left out where it is not installed."""
    batches, held_out = read_digits(steps)
    model = make_model()
    start = {name: np.asarray(value.array) for name, value in model.state_dict().items()}
    found = {"JAX": train_on_jax(model, batches, held_out, show)}
    if find_spec("torch"):
        found["PyTorch"] = train_in_pytorch(start, batches, held_out)
    return found


def main(path="modules.png"):
    found = train(show=True)
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    for (name, result), style in zip(found.items(), ("-", "--"), strict=False):
        axes.plot(result["losses"], style, label=f"{name}: {result['accuracy']:.1%} of held-out digits", linewidth=1)
        print(f"{name}: loss {np.mean(result['losses'][-50:]):.3f}, accuracy {result['accuracy']:.1%}")
    axes.set(xlabel="step", ylabel="loss", yscale="log")
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:2])
