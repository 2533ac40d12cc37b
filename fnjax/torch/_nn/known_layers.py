"""The layers of torch.nn and their functions: importing a file registers its names."""
# ruff: noqa: F401 - each registers its names

import fnjax.torch._nn.layers.activations
import fnjax.torch._nn.layers.adaptive
import fnjax.torch._nn.layers.convolutions
import fnjax.torch._nn.layers.cross_map
import fnjax.torch._nn.layers.embeddings
import fnjax.torch._nn.layers.functional
import fnjax.torch._nn.layers.linear
import fnjax.torch._nn.layers.losses
import fnjax.torch._nn.layers.norms
import fnjax.torch._nn.layers.shaping
import fnjax.torch._nn.module.lazy
import fnjax.torch._nn.sequences.attention
import fnjax.torch._nn.sequences.packed
import fnjax.torch._nn.sequences.recurrent
import fnjax.torch._nn.sequences.transformer
import fnjax.torch._nn.utils.clip_grad
import fnjax.torch._nn.utils.init
import fnjax.torch._nn.utils.parametrizations
