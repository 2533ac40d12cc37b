"""Strides of results: which rule of fnjax.torch.memory.strides PyTorch follows where an operation's result is not contiguous.

Elementwise operations (the column `each`) have the rule `each` and are not named here.
"""

import fnjax._torch_ops.table.elementwise
import fnjax._torch_ops.table.fft
import fnjax._torch_ops.table.indexing
import fnjax._torch_ops.table.linear_algebra
import fnjax._torch_ops.table.neural
import fnjax._torch_ops.table.random
import fnjax._torch_ops.table.reductions
import fnjax._torch_ops.table.shapes
import fnjax._torch_ops.table.special  # noqa: F401 - each registers its lines
from fnjax._torch_ops.registry import mark_column

# Elementwise, though the column `each` does not say so: the porter does not take them for it.
mark_column(
    "strides",
    "torch.celu torch.float_power torch.isclose torch.isneginf torch.isposinf torch.isreal torch.gcd torch.lcm "
    "torch.i0 special.i0e special.i1 special.i1e torch.igamma torch.igammac torch.logaddexp2 torch.rsub torch.complex "
    "torch.polar torch.bitwise_left_shift torch.bitwise_right_shift special.entr special.erfcx special.ndtr "
    "special.log_ndtr special.ndtri special.xlog1py special.zeta torch.prelu torch.polygamma .polygamma "
    "special.spherical_bessel_j0 F.mse_loss F.l1_loss F.smooth_l1_loss F.huber_loss F.soft_margin_loss "
    "F.hinge_embedding_loss F.margin_ranking_loss F.kl_div F.binary_cross_entropy "
    "F.binary_cross_entropy_with_logits F.poisson_nll_loss torch.frexp torch.dropout F.dropout F.dropout1d "
    "special.hermite_polynomial_h special.hermite_polynomial_he special.laguerre_polynomial_l "
    "special.legendre_polynomial_p special.airy_ai special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1 "
    "special.modified_bessel_k0 special.modified_bessel_k1 special.scaled_modified_bessel_k0 "
    "special.scaled_modified_bessel_k1 F.normalize F.local_response_norm torch.alpha_dropout "
    "F.alpha_dropout torch.feature_dropout torch.feature_alpha_dropout F.feature_alpha_dropout",
    "each",
)
mark_column(
    "strides", " ".join(f"special.{s}chebyshev_polynomial_{k}" for s in ("", "shifted_") for k in "tuvw"), "each"
)
mark_column(
    "strides",
    "torch.flip .flip torch.fliplr torch.flipud torch.sort torch.msort torch.argsort torch.index_fill torch.index_put "
    "torch.put torch.select_scatter torch.slice_scatter torch.diagonal_scatter torch.addr "
    "torch.fake_quantize_per_channel_affine",
    "like",
)
mark_column("strides", "torch.masked_fill torch.bernoulli torch.normal F.logsigmoid", "contiguous")
mark_column(
    "strides",
    "F.max_pool2d F.max_pool3d F.max_pool2d_with_indices F.max_pool3d_with_indices F.avg_pool2d F.adaptive_avg_pool2d "
    "F.adaptive_max_pool2d F.max_unpool2d F.lp_pool2d F.batch_norm torch.batch_norm torch.group_norm F.pad "
    "torch.constant_pad_nd F.interpolate F.upsample F.upsample_nearest F.upsample_bilinear torch.pixel_shuffle "
    "torch.pixel_unshuffle torch.channel_shuffle torch.roll F.rms_norm",
    "format",
)
mark_column("strides", "torch.cat", "all")
mark_column("strides", "torch.stack", "stack")
mark_column("strides", "torch.angle", "each if real")  # those of complex numbers are copied
mark_column("strides", "F.conv_transpose3d", "convolution if bfloat16")
mark_column("strides", "linalg.lstsq", "solutions")
mark_column("strides", "linalg.solve linalg.solve_ex linalg.lu_solve", "columns if left")
mark_column(
    "strides",
    "F.conv2d F.conv3d F.conv_transpose2d torch.convolution",
    "convolution",
)
mark_column("strides", "torch.nonzero torch.argwhere", "transposed")
for _suffix in ("", "2", "n"):
    mark_column("strides", f"fft.fft{_suffix} fft.ifft{_suffix}", "fft")
    mark_column("strides", f"fft.rfft{_suffix}", "rfft")
    mark_column("strides", f"fft.irfft{_suffix} fft.hfft{_suffix}", "irfft")
    mark_column("strides", f"fft.ihfft{_suffix}", "ihfft")
mark_column(
    "strides",
    "torch.inverse linalg.inv linalg.inv_ex torch.cholesky linalg.cholesky linalg.cholesky_ex torch.cholesky_solve "
    "torch.cholesky_inverse linalg.solve_triangular torch.triangular_solve linalg.qr "
    "torch.qr linalg.svd torch.svd linalg.eigh linalg.eig linalg.lu_factor linalg.lu_factor_ex torch.lu "
    "torch.lu_solve torch.geqrf torch.ormqr linalg.householder_product torch.orgqr torch.stft",
    "columns",
)
