"""Small models of public packages, in PyTorch: each function returns a module and the arguments of its forward.

`python -m benchmarks.packages` runs them in PyTorch and, without PyTorch, in fnjax.torch. Each has as many names of the
package's own as fit into a model of seconds; nothing is drawn at random in forward.
"""

import numpy as np
import torch
from torch import nn


def _numbers(*shape):
    return torch.tensor(np.random.RandomState(0).randn(*shape).astype(np.float32))


def _tokens(*shape):
    return torch.tensor(np.random.RandomState(0).randint(0, 16, shape))


class Of(nn.Module):
    """Module of a function of its submodules and arguments."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(modules)

    def forward(self, *args):
        return self.function(*self.parts, *args)


class Measured(nn.Module):
    """A module's results of floating point, and a loss in which each of their elements has a weight of its own."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *args):
        results = list(_flatten(self.model(*args)))
        return sum((r * (0.3 + torch.arange(r.numel()).reshape(r.shape).sin())).mean() for r in results), results


def _flatten(result):
    if isinstance(result, torch.Tensor):
        return [result] if result.is_floating_point() else []
    return [x for member in result for x in _flatten(member)]


def einops():
    import einops
    from einops.layers.torch import EinMix, Rearrange, Reduce

    def mix(layers, x):
        y, shapes = einops.pack([layers(x), einops.repeat(x.mean((2, 3)), "b c -> b (c k)", k=2)], "b *")
        return einops.einsum(y, y, "b i, c i -> b c"), einops.unpack(y, shapes, "b *")[0]

    layers = nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (c p q)", p=2, q=2),
        EinMix("b n i -> b n o", weight_shape="i o", bias_shape="o", i=12, o=6),
        Reduce("b n o -> b o", "mean"),
    )
    return Of(mix, layers), (_numbers(2, 3, 4, 4),)


def rotary_embedding_torch():
    from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb

    def rotate(rotary, q, k):
        q, k = rotary.rotate_queries_or_keys(q), rotary.rotate_queries_or_keys(k)
        return q @ k.mT, apply_rotary_emb(rotary(torch.arange(q.shape[-2])), q)

    return Of(rotate, RotaryEmbedding(8, learned_freq=True)), (_numbers(1, 2, 6, 16), _numbers(1, 2, 6, 16) * 2)


def x_transformers():
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=16, depth=2, heads=2, attn_flash=True, rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True)
    return TransformerWrapper(num_tokens=16, max_seq_len=8, attn_layers=layers), (_tokens(2, 8),)


def x_transformers_encoder():
    from x_transformers import Encoder, ViTransformerWrapper

    layers = Encoder(dim=16, depth=2, heads=2, alibi_pos_bias=True, attn_qk_norm=True)
    return ViTransformerWrapper(image_size=8, patch_size=4, attn_layers=layers, num_classes=3), (_numbers(2, 3, 8, 8),)


def vector_quantize_pytorch():
    from vector_quantize_pytorch import FSQ, ResidualVQ, VectorQuantize

    def quantize(vq, residual, fsq, x):
        (a, _, loss), (b, _, losses), (c, _) = vq(x), residual(x), fsq(x)
        return a + b + c, loss, losses

    vq = VectorQuantize(dim=4, codebook_size=8, threshold_ema_dead_code=0, rotation_trick=True)
    residual = ResidualVQ(dim=4, codebook_size=8, num_quantizers=2, threshold_ema_dead_code=0)
    return Of(quantize, vq, residual, FSQ([8, 5, 5, 5])), (_numbers(2, 5, 4),)


def vit_pytorch():
    from vit_pytorch import ViT

    return ViT(image_size=8, patch_size=4, num_classes=3, dim=16, depth=2, heads=2, mlp_dim=32), (_numbers(2, 3, 8, 8),)


def vit_pytorch_simple():
    from vit_pytorch import SimpleViT

    model = SimpleViT(image_size=8, patch_size=4, num_classes=3, dim=16, depth=2, heads=2, mlp_dim=32)
    return model, (_numbers(2, 3, 8, 8),)


def timm_resnet():
    from timm.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, (1, 1, 1, 1), num_classes=3, channels=(8, 8, 16, 16)), (_numbers(2, 3, 32, 32),)


def timm_vision_transformer():
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(img_size=8, patch_size=4, num_classes=3, embed_dim=16, depth=2, num_heads=2)
    return model, (_numbers(2, 3, 8, 8),)


def timm_mlp_mixer():
    from timm.models.mlp_mixer import MlpMixer

    model = MlpMixer(num_classes=3, img_size=8, patch_size=4, num_blocks=2, embed_dim=16)
    return model, (_numbers(2, 3, 8, 8),)


def timm_convnext():
    from timm.models.convnext import ConvNeXt

    model = ConvNeXt(num_classes=3, depths=(1, 1, 1, 1), dims=(8, 8, 8, 8))
    return model, (_numbers(2, 3, 32, 32),)


def timm_layers():
    from timm.layers import ConvNormAct, EcaModule, GroupNorm, LayerNorm2d, Mlp, SelectAdaptivePool2d, SqueezeExcite

    model = nn.Sequential(
        ConvNormAct(3, 8), SqueezeExcite(8), EcaModule(8), LayerNorm2d(8), GroupNorm(8, 2),
        SelectAdaptivePool2d(pool_type="avgmax", flatten=True), Mlp(8, 16, 3),
    )  # fmt: skip
    return model, (_numbers(2, 3, 8, 8),)


def torchdiffeq():
    from torchdiffeq import odeint, odeint_adjoint

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, t, y):
            return torch.tanh(self.linear(y)) * (1 + t)

    def solve(field, y):
        t = torch.linspace(0.0, 1.0, 4)
        return odeint(field, y, t, method="rk4"), odeint_adjoint(field, y, t, method="midpoint")[-1]

    return Of(solve, Field()), (_numbers(2, 3),)


def torchode():
    import torchode

    def solve(linear, y):
        term = torchode.ODETerm(lambda t, y: torch.tanh(linear(y)))
        tableau = torchode.Heun(term=term)
        adapt = torchode.FixedStepController()
        solver = torchode.AutoDiffAdjoint(tableau, adapt)
        problem = torchode.InitialValueProblem(y0=y, t_eval=torch.linspace(0, 1, 4).repeat((2, 1)))
        return solver.solve(problem, dt0=torch.full((2,), 0.25)).ys

    return Of(solve, nn.Linear(3, 3)), (_numbers(2, 3),)


def torchsde():
    from torchsde import sdeint

    class Equation(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def f(self, t, y):
            return torch.tanh(self.linear(y)) * (1 + t)

        def g(self, t, y):
            return torch.zeros_like(y)  # the noise is drawn, and has no effect

    return Of(lambda sde, y: sdeint(sde, y, torch.linspace(0, 1, 3), dt=0.25), Equation()), (_numbers(2, 3),)


def snntorch():
    import snntorch
    from snntorch import surrogate

    def run(linear, leaky, x):
        membrane, spikes = leaky.init_leaky(), []
        for step in range(x.shape[0]):
            spike, membrane = leaky(linear(x[step]), membrane)
            spikes.append(spike)
        return torch.stack(spikes), membrane

    leaky = snntorch.Leaky(beta=0.9, spike_grad=surrogate.fast_sigmoid(), learn_beta=True)
    return Of(run, nn.Linear(4, 5), leaky), (_numbers(6, 2, 4) * 3,)


def norse():
    from norse.torch.functional.lif import LIFParameters
    from norse.torch.module.lif import LIFCell

    def run(linear, cell, x):
        state, spikes = None, []
        for step in range(x.shape[0]):
            spike, state = cell(linear(x[step]), state)
            spikes.append(spike)
        return torch.stack(spikes), state.v

    return Of(run, nn.Linear(4, 5), LIFCell(p=LIFParameters(alpha=torch.tensor(50.0)))), (_numbers(6, 2, 4) * 30,)


def spikingjelly():
    from spikingjelly.activation_based import neuron, surrogate

    def run(linear, lif, x):
        lif.reset()
        return torch.stack([lif(linear(step)) for step in x])

    lif = neuron.LIFNode(tau=2.0, surrogate_function=surrogate.ATan(), v_threshold=0.5)
    return Of(run, nn.Linear(4, 5), lif), (_numbers(4, 2, 4) * 3,)


def kornia():
    import kornia.color
    import kornia.filters
    import kornia.geometry.conversions
    import kornia.losses

    def process(scale, x):
        x = torch.sigmoid(scale(x))
        blurred = kornia.filters.gaussian_blur2d(x, (3, 3), (1.0, 1.0))
        edges = kornia.filters.sobel(kornia.color.rgb_to_grayscale(x))
        rotation = kornia.geometry.conversions.axis_angle_to_rotation_matrix(x[:, :, 0, 0])
        return blurred, edges, rotation, kornia.losses.ssim_loss(x, blurred, 3), kornia.color.rgb_to_ycbcr(x)

    return Of(process, nn.Conv2d(3, 3, 1)), (_numbers(2, 3, 8, 8),)


def e3nn():
    from e3nn.o3 import angles_to_matrix, matrix_to_axis_angle, spherical_harmonics

    def rotate(linear, x):
        y = linear(x)
        harmonics = spherical_harmonics([0, 1, 2, 3], y, normalize=True, normalization="component")
        return harmonics, angles_to_matrix(*y.unbind(1)), matrix_to_axis_angle(angles_to_matrix(*y.unbind(1)))

    return Of(rotate, nn.Linear(3, 3)), (_numbers(5, 3),)


def e3nn_linear():
    from e3nn.o3 import Linear

    return Linear("3x0e + 2x1o", "4x0e + 2x1o"), (_numbers(5, 9),)


def performer_pytorch():
    from performer_pytorch import FastAttention

    def attend(linear, attention, x):
        q, k, v = linear(x).chunk(3, -1)
        return attention(q[:, None], k[:, None], v[:, None])

    attention = FastAttention(dim_heads=8, nb_features=16, causal=False)
    return Of(attend, nn.Linear(8, 24), attention), (_numbers(2, 6, 8),)


def local_attention():
    from local_attention import LocalAttention

    def attend(linear, attention, x):
        return attention(*linear(x).chunk(3, -1))

    attention = LocalAttention(dim=8, window_size=4, causal=True, look_backward=1)
    return Of(attend, nn.Linear(8, 24), attention), (_numbers(2, 8, 8),)


def linear_attention_transformer():
    from linear_attention_transformer import LinearAttentionTransformer

    return LinearAttentionTransformer(dim=8, heads=2, depth=2, max_seq_len=8), (_numbers(2, 8, 8),)


def nystrom_attention():
    from nystrom_attention import NystromAttention

    return NystromAttention(dim=8, dim_head=4, heads=2, num_landmarks=4, pinv_iterations=4), (_numbers(2, 8, 8),)


def reformer_pytorch():
    from reformer_pytorch.reversible import ReversibleSequence

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, **_):
            return torch.tanh(self.linear(x))

    blocks = nn.ModuleList([nn.ModuleList([Block(), Block()]) for _ in range(2)])
    return ReversibleSequence(blocks), (_numbers(2, 5, 8),)


def axial_positional_embedding():
    from axial_positional_embedding import AxialPositionalEmbedding

    return AxialPositionalEmbedding(dim=8, axial_shape=(2, 4)), (_numbers(2, 8, 8),)


def product_key_memory():
    from product_key_memory import PKM

    return PKM(dim=8, heads=2, dim_head=8, num_keys=8, topk=4), (_numbers(2, 5, 8),)


def lion_pytorch():
    from lion_pytorch.lion_pytorch import update_fn

    def step(p, gradient):
        p, average = p.clone(), torch.zeros_like(p)
        for _ in range(2):
            update_fn(p, gradient, average, 0.1, 0.01, 0.9, 0.99)
        return p, average

    return Of(step), (_numbers(3, 2), _numbers(3, 2) * 2)


def ema_pytorch():
    from ema_pytorch import EMA

    ema = EMA(nn.Linear(3, 2), beta=0.9)
    return Of(lambda ema, x: ema(x) + ema.model(x), ema), (_numbers(4, 3),)


def hyper_connections():
    from hyper_connections import HyperConnections

    initialise, expand, reduce = HyperConnections.get_init_and_expand_reduce_stream_functions(2)
    hyper = initialise(dim=8, branch=nn.Linear(8, 8))
    return Of(lambda hyper, x: reduce(hyper(expand(x))), hyper), (_numbers(2, 5, 8),)


def pytorch_msssim():
    from pytorch_msssim import MS_SSIM, SSIM

    def losses(first, second, x, y):
        x, y = torch.sigmoid(x), torch.sigmoid(y)
        return first(x, y), second(x, y)

    ssim = SSIM(data_range=1.0, win_size=5, channel=3), MS_SSIM(data_range=1.0, win_size=3, channel=3)
    return Of(losses, *ssim), (_numbers(1, 3, 64, 64), _numbers(1, 3, 64, 64) * 0.9)


def geomloss():
    from geomloss import SamplesLoss

    return SamplesLoss("sinkhorn", p=2, blur=0.5, diameter=3.0, backend="tensorized"), (
        _numbers(5, 2),
        _numbers(6, 2) + 1,
    )


def torchmetrics():
    from torchmetrics.functional import pairwise_cosine_similarity
    from torchmetrics.functional.classification import multiclass_accuracy
    from torchmetrics.functional.image import total_variation

    def measure(linear, x, labels):
        y = linear(x)
        accuracy = multiclass_accuracy(y.detach(), labels, num_classes=4, validate_args=False)
        return pairwise_cosine_similarity(y, y), accuracy, total_variation(y[None, None])

    return Of(measure, nn.Linear(3, 4)), (_numbers(6, 3), _tokens(6) % 4)


def torchmetrics_pearson():
    from torchmetrics.functional.regression import pearson_corrcoef

    return Of(lambda linear, x: pearson_corrcoef(linear(x)[:, 0], x[:, 0]), nn.Linear(3, 4)), (_numbers(6, 3),)


def entmax():
    from entmax import entmax15, entmax_bisect, sparsemax

    def activate(linear, x):
        y = linear(x)
        return sparsemax(y, dim=-1), entmax15(y, dim=-1), entmax_bisect(y, 1.3)

    return Of(activate, nn.Linear(4, 6)), (_numbers(3, 4) * 2,)


def pytorch_tcn():
    from pytorch_tcn import TCN

    return TCN(num_inputs=3, num_channels=[4, 4], kernel_size=3, dropout=0.0), (_numbers(2, 3, 10),)


def loralib():
    import loralib

    return nn.Sequential(
        loralib.Linear(4, 5, r=2), nn.Tanh(), loralib.MergedLinear(5, 6, r=2, enable_lora=[True, False])
    ), (_numbers(3, 4),)


def efficientnet_pytorch():
    from efficientnet_pytorch.utils import MemoryEfficientSwish, Swish, get_same_padding_conv2d

    conv = get_same_padding_conv2d(9)(3, 4, 3, stride=2)
    return nn.Sequential(conv, MemoryEfficientSwish(), nn.BatchNorm2d(4), Swish()), (_numbers(2, 3, 9, 9),)


def segmentation_models_pytorch():
    from segmentation_models_pytorch.losses import DiceLoss, FocalLoss, LovaszLoss, TverskyLoss

    def losses(linear, x, target):
        y = linear(x)
        target = (target[:, None] > 7).float()
        return [loss(mode="binary")(y, target) for loss in (DiceLoss, FocalLoss, LovaszLoss, TverskyLoss)]

    return Of(losses, nn.Conv2d(3, 1, 1)), (_numbers(2, 3, 4, 4), _tokens(2, 4, 4))


def denoising_diffusion_pytorch():
    from denoising_diffusion_pytorch import Unet

    return Unet(dim=8, dim_mults=(1, 2), flash_attn=False), (_numbers(2, 3, 8, 8), torch.tensor([3, 5]))


def gpytorch():
    import gpytorch

    def kernel(rbf, matern, x):
        return rbf(x).to_dense(), matern(x).to_dense()

    rbf = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    return Of(kernel, rbf, gpytorch.kernels.MaternKernel(nu=1.5)), (_numbers(5, 2),)


def transformers_gpt2():
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel

    sizes = {"vocab_size": 16, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    return Of(lambda model, x: model(x).logits, GPT2LMHeadModel(config)), (_tokens(2, 8),)


def transformers_llama():
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    sizes = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1, use_cache=False)
    return Of(lambda model, x: model(x).logits, LlamaForCausalLM(config)), (_tokens(2, 8),)
