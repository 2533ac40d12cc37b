"""`kernel.draw[grid](...)`: which program reads and writes which element, as a picture."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax import triton
from tests.triton import faulty
from tests.triton.test_goldens import CASES, kernel_of

pytest.importorskip("matplotlib")

from matplotlib.image import imread

X = np.arange(32, dtype=np.float32)


def empty(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def panels(figure):
    """Axes with an array, by the parameter and what is done to it."""
    found = {}
    for column in figure.subfigs[0].subfigs:
        verb = column.get_suptitle()
        found |= {(axis.get_title(loc="left"), verb): axis for axis in column.axes if axis.get_title(loc="left")}
    return found


def entries(figure):
    """Colours of the legend."""
    legend = figure.subfigs[1].legends[0]
    return {
        text.get_text(): np.array(patch.get_facecolor()[:3])
        for text, patch in zip(legend.get_texts(), legend.get_patches(), strict=True)
    }


def pixels(axis):
    return np.asarray(axis.images[0].get_array())


def test_each_element_has_the_colour_of_its_program():
    """Blocks of eight, with legend, numbers and what lies outside."""
    figure = faulty.wrong_mask_kernel.draw[(4,)](X[:25], empty(25), 25, BLOCK=8)
    found, colours = panels(figure), entries(figure)
    assert list(found) == [("x_ptr", "read"), ("out_ptr", "written")]
    assert list(colours) == [f"program {i}" for i in range(4)]
    wanted = np.array([colours[f"program {i // 8}"] for i in range(25)])
    for axis in found.values():
        np.testing.assert_allclose(pixels(axis)[0], wanted)
        assert [text.get_text() for text in axis.texts] == [str(i // 8) for i in range(25)]
        assert axis.get_title(loc="right") == "float32[25]"
        assert axis.get_xlabel() == "1 address outside of the array"
    assert figure.subfigs[0].get_suptitle() == "wrong_mask_kernel[4]"


def test_shared_elements_have_colours_of_their_own():
    """Elements that two programs write, that all read, and that nobody touches have colours of their own."""
    figure = faulty.overlap_kernel.draw[(3,)](X[:8], empty(24), BLOCK=8)
    found, colours = panels(figure), entries(figure)
    written = pixels(found["out_ptr", "written"])[0]
    np.testing.assert_allclose(written[7], colours["0 + 1"])
    np.testing.assert_allclose(written[14], colours["1 + 2"])
    np.testing.assert_allclose(written[22:], [colours["nobody"]] * 2)
    np.testing.assert_allclose(pixels(found["x_ptr", "read"])[0], [colours["all 3 programs"]] * 8)
    assert len({tuple(c) for c in colours.values()}) == len(colours)


def test_blocks_of_a_matrix():
    """Arrays of two axes, a grid of two; one program alone."""
    case = next(case for case in CASES if case.name == "products-split-k")
    arrays = case.arrays()
    given = {k: arrays.get(k, v) for k, v in case.arguments.items()}
    draw = kernel_of(case).draw
    c = pixels(panels(draw[case.grid](**given))["c_ptr", "written"])
    assert c.shape == (32, 30, 3)
    assert [len(np.unique(part.reshape(-1, 3), axis=0)) for part in (c, c[:16, :16], c[16:, 16:])] == [4, 1, 1]
    figure = draw(program=(1, 1))[case.grid](**given)
    colours = entries(figure)
    assert list(colours) == ["program (1, 1)", "other programs"]
    mine = (pixels(panels(figure)["c_ptr", "written"]) == colours["program (1, 1)"]).all(-1)
    assert mine.sum() == 16 * 14
    assert mine[:16, 16:].all()
    mine = (pixels(panels(figure)["a_ptr", "read"]) == colours["program (1, 1)"]).all(-1)
    assert np.flatnonzero(mine[0]).tolist() == [*range(16, 32), *range(48, 64)]


def test_a_long_array(tmp_path):
    """It is broken into rows, several elements share a pixel, programs have a scale; the picture is a PNG."""
    path = tmp_path / "picture.png"
    figure = faulty.reread_kernel.draw(path)[(256,)](np.zeros(2**18, np.float32), empty(2**18), BLOCK=1024)
    axis = panels(figure)["out_ptr", "written"]
    assert axis.get_xlabel() == "1024 elements in a row, a pixel is 1 × 3 elements"
    assert pixels(axis).shape == (256, 342, 3)
    assert len(np.unique(pixels(axis)[:, 0], axis=0)) > 200
    assert (pixels(axis) == pixels(axis)[:, :1]).all()
    assert figure.subfigs[1].legends == []
    image = imread(path)
    assert image.shape[1] == 1680
    assert image.std() > 0.05


def test_errors(monkeypatch):
    """Programs that are not there, traced arrays, and no matplotlib."""
    draw = faulty.before_kernel.draw
    with pytest.raises(triton.KernelError, match=r"before_kernel: there is no program 4 in before_kernel\[4\]"):
        draw(program=4)[(4,)](X, empty(32), BLOCK=8)
    with pytest.raises(triton.KernelError, match=r"outside of jax\.jit"):
        jax.jit(lambda x: draw[(4,)](x, x, BLOCK=8))(X)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        draw[(4,)](X, empty(32), BLOCK=8)
