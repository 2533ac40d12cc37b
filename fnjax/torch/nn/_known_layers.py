"""The layers of torch.nn and their functions: imported, each file enters its names."""

import fnjax.torch.nn._activations
import fnjax.torch.nn._adaptive
import fnjax.torch.nn._attention
import fnjax.torch.nn._convolutions
import fnjax.torch.nn._embeddings
import fnjax.torch.nn._functional
import fnjax.torch.nn._init
import fnjax.torch.nn._lazy
import fnjax.torch.nn._linear
import fnjax.torch.nn._losses
import fnjax.torch.nn._norms
import fnjax.torch.nn._packed
import fnjax.torch.nn._recurrent
import fnjax.torch.nn._shaping
import fnjax.torch.nn._transformer  # noqa: F401 - each enters its names
