"""Layers without state: the functions of torch.nn.functional that they call."""

from __future__ import annotations

# With the options of the function in the same order, as far as they are given without a name.
_NAMES = "ReLU ReLU6 GELU SiLU Mish ELU SELU CELU Sigmoid Tanh Softplus Softmax Softmin Softsign Tanhshrink Hardshrink"
LAYERS = {name: name.lower() for name in f"{_NAMES} Softshrink Hardtanh Hardsigmoid Hardswish LogSigmoid".split()} | {
    "LogSoftmax": "log_softmax",
    "LeakyReLU": "leaky_relu",
    "AvgPool2d": "avg_pool2d",
    "MaxPool2d": "max_pool2d",
}
LOSSES = {
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "KLDivLoss": "kl_div",
    "NLLLoss": "nll_loss",
    "CrossEntropyLoss": "cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
}
PLAIN = 3  # so many options of MaxPool2d stand as they do in max_pool2d
