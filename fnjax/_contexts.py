"""Values that apply to a part of a program and are part of the keys of JAX's caches: one context for each.

Each new context lengthens the keys: what `jax.jit` compiled before is compiled again. So `import fnjax` makes all of
them (see `_lazy.import_after`), and no other module makes one.
"""

import jax

HOOKS = jax.make_user_context(None)  # the pair of saved_tensors_hooks that applies
# Whether a backward is running inside shard_map: a helper under jax.jit that both forward and backward call is traced
# for each.
IN_BACKWARD = jax.make_user_context(False)
IN_KERNEL = jax.make_user_context(False)  # whether a Pallas kernel is being traced
TRITON_BACKEND = jax.make_user_context("auto")  # the choice of fnjax.triton.backend
DEFAULT_GROUP = jax.make_user_context(None)  # the mesh axis that is fnjax.torch's default process group
NO_GRAD = jax.make_user_context(False)  # whether torch.no_grad makes results constants for derivatives
AUTOCAST = jax.make_user_context(())  # the blocks of fnjax.torch.autocast, innermost first
