"""Modules of the tests in the places of `triton` and `jax_triton`, which run on a GPU only.

What stands for Triton is fnjax.triton under other names, so that a kernel that was made for jax-triton can be launched
here, as jax-triton would on a GPU: inputs, then outputs, each of which begins as the input that it is aliased with.
"""

import types

import jax
import jax.numpy as jnp
import numpy as np

import fnjax.triton
import fnjax.triton.language


class JITFunction(fnjax.triton.JITFunction):
    """A kernel, as `triton.jit` makes it."""


class Module(types.ModuleType):
    """A module that has what another one has."""

    def __init__(self, name, of, **own):
        super().__init__(name)
        vars(self).update(own, of=of)

    def __getattr__(self, name):
        return getattr(self.of, name)


def modules(calls):
    """The modules by name; each call of `jax_triton.triton_call` becomes a pair in `calls`: arguments, options.

    Lowered, it is a custom call of jax-triton's name and form. On concrete arrays it runs the kernel.
    """
    language = Module("triton.language", fnjax.triton.language)
    triton = Module("triton", fnjax.triton, language=language, JITFunction=JITFunction, jit=JITFunction)

    def triton_call(
        *args, kernel, out_shape, grid, name="", input_output_aliases=None, num_warps=None, num_stages=None,
        num_ctas=1, enable_fp_fusion=True, **metaparams,
    ):  # fmt: skip
        options = {"num_warps": num_warps, "num_stages": num_stages, "num_ctas": num_ctas}
        options |= {"enable_fp_fusion": enable_fp_fusion}
        call = {"kernel": kernel, "grid": grid, "name": name, "aliases": input_output_aliases, "constants": metaparams}
        calls.append((args, call | options))
        arrays = [x for x in args if isinstance(x, jax.Array)]
        assert isinstance(kernel, JITFunction)
        assert all(isinstance(x, jax.Array | int | np.float32) for x in args)
        assert all((out_shape[o].shape, out_shape[o].dtype) == (arrays[i].shape, arrays[i].dtype)
                   for i, o in input_output_aliases.items())  # fmt: skip
        if any(isinstance(x, jax.core.Tracer) for x in arrays):
            aliases = input_output_aliases
            return jax.ffi.ffi_call("triton_kernel_call", out_shape, input_output_aliases=aliases)(*arrays)
        outs = [jnp.array(arrays[i]) for i in sorted(input_output_aliases, key=input_output_aliases.get)]
        with fnjax.triton.backend("jax"):
            found = kernel[grid](*args, *outs, **metaparams)
        assert kernel.stores == kernel.arg_names[len(args) : len(args) + len(outs)]
        return [found] if len(outs) == 1 else list(found)

    jax_triton = types.ModuleType("jax_triton")
    jax_triton.triton_call, jax_triton.__version__ = triton_call, "0.3.1"
    return {"triton": triton, "triton.language": language, "jax_triton": jax_triton}
