"""The layers of torch.nn and their functions: imported, each file enters its names."""

import fnjax.torch._nn._activations
import fnjax.torch._nn._adaptive
import fnjax.torch._nn._attention
import fnjax.torch._nn._convolutions
import fnjax.torch._nn._cross_map
import fnjax.torch._nn._embeddings
import fnjax.torch._nn._functional
import fnjax.torch._nn._gradients
import fnjax.torch._nn._init
import fnjax.torch._nn._lazy
import fnjax.torch._nn._linear
import fnjax.torch._nn._losses
import fnjax.torch._nn._norms
import fnjax.torch._nn._packed
import fnjax.torch._nn._parametrizations
import fnjax.torch._nn._recurrent
import fnjax.torch._nn._shaping
import fnjax.torch._nn._transformer  # noqa: F401 - each enters its names
