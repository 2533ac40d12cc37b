"""Checks of gradients: gradcheck, gradgradcheck and opcheck, for any JAX function."""
