"""Arrays and JAX alone: rules on flat lists of arrays, and the primitives that carry them."""
