"""Cross entropy whose forward puts the gradient over the logits, so that no second array of their size is kept."""

import jax
import jax.numpy as jnp

import fnjax
import fnjax.triton as triton
import fnjax.triton.language as tl


@triton.jit
def kernel(logits_ptr, target_ptr, loss_ptr, n_classes, n_rows, ignore_index, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + row)
    logits_ptr += row * n_classes
    if target == ignore_index:
        for start in range(0, n_classes, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            tl.store(logits_ptr + columns, 0.0, mask=columns < n_classes)
        tl.store(loss_ptr + row, 0.0)
        return
    # The largest logit and the sum of the exponentials in one pass, block by block.
    largest = -float("inf")
    total = 0.0
    for start in range(0, n_classes, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + columns, mask=columns < n_classes, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.max(x, axis=0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(x - larger), axis=0)
        largest = larger
    tl.store(loss_ptr + row, (tl.log(total) + largest - tl.load(logits_ptr + target)) / n_rows)
    for start in range(0, n_classes, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + columns, mask=columns < n_classes, other=-float("inf")).to(tl.float32)
        probability = tl.exp(x - largest) / total
        gradient = (probability - tl.where(columns == target, 1.0, 0.0)) / n_rows
        tl.store(logits_ptr + columns, gradient, mask=columns < n_classes)


class CrossEntropy(fnjax.Function):
    """The mean over all rows of -log softmax(logits)[row, target[row]]; ignored rows count 0."""

    @staticmethod
    def forward(ctx, logits, target, ignore_index=-100):
        rows, classes = logits.shape
        block = min(triton.next_power_of_2(classes), 4096)
        loss = jnp.empty(rows, jnp.float32)
        grad_logits, loss = kernel[(rows,)](logits, target, loss, classes, rows, ignore_index, BLOCK=block)
        ctx.save_for_backward(grad_logits)
        return loss.sum()

    @staticmethod
    def backward(ctx, grad_output):
        (grad_logits,) = ctx.saved_tensors
        return grad_logits * grad_output, None, None


def plain(logits, target, ignore_index=-100):
    """Compute the same in jax.numpy."""
    kept = target != ignore_index
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.where(kept, target, 0)[:, None], 1)[:, 0]
    return -jnp.sum(jnp.where(kept, picked, 0)) / len(target)
