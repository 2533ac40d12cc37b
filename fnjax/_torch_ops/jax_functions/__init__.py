"""Functions that a port brings along; a port copies them; fnjax.torch imports them."""
