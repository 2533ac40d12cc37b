"""Products, decompositions and solvers."""

from fnjax._torch_ops.record import Call, Refuse, Template
from fnjax._torch_ops.registry import add_lines, add_operation

add_lines("""
+matmul linalg.matmul | input, other | input @ other | promoted
+mm torch.dsmm | input, mat2 | input @ mat2 | promoted
+bmm | input, mat2 | input @ mat2 | promoted
+mm torch.dsmm | input, mat2, dtype | jnp.matmul(input, mat2, preferred_element_type=dtype) | promoted
+bmm | input, mat2, dtype | jnp.matmul(input, mat2, preferred_element_type=dtype) | promoted
+mv | input, vec | input @ vec | promoted
torch.dot | input, tensor | jnp.dot(input, tensor) | promoted
.dot | input, other | jnp.dot(input, other) | promoted
torch.dot | input, other | jnp.dot(input, other) | promoted
.dot | input, tensor | jnp.dot(input, tensor) | promoted
+vdot | input, other | jnp.vdot(input, other) | promoted
+inner | input, other | jnp.inner(input, other) | promoted
+outer +ger | input, vec2 | jnp.outer(input, vec2) | promoted
+kron | input, other | jnp.kron(input, other) | promoted
torch.einsum | equation, *operands | jnp.einsum(equation, *operands) | promoted
torch.tensordot | a, b, dims=2 | jnp.tensordot(a, b, axes=dims) | promoted
torch.chain_matmul | *matrices | jnp.linalg.multi_dot([*matrices]) | promoted
linalg.multi_dot | tensors | jnp.linalg.multi_dot(tensors) | promoted
+matrix_power | input, n | jnp.linalg.matrix_power(input, n) | same
linalg.matrix_power | A, n | jnp.linalg.matrix_power(A, n) | same
+matrix_exp linalg.matrix_exp | input | jax.scipy.linalg.expm(input) | float precise
+inverse | input | jnp.linalg.inv(input) | float
linalg.inv | A | jnp.linalg.inv(A) | float
linalg.inv_ex | A, *, check_errors=False | (jnp.linalg.inv(A), _zero_pivot(A)) | pair fields=inverse,info
+det | input | jnp.linalg.det(input) | float
linalg.det | A | jnp.linalg.det(A) | float
+logdet | input | _logdet(input) | float
+slogdet | input | jnp.linalg.slogdet(input) | pair fields=sign,logabsdet
linalg.slogdet | A | jnp.linalg.slogdet(A) | pair fields=sign,logabsdet
linalg.eigh | A, UPLO="L" | jnp.linalg.eigh(A, UPLO=UPLO, symmetrize_input=False) | pair fields=eigenvalues,eigenvectors
linalg.eigvalsh | A, UPLO="L" | jnp.linalg.eigvalsh(A, UPLO=UPLO, symmetrize_input=False) | float
linalg.eig | A | jnp.linalg.eig(A) | pair fields=eigenvalues,eigenvectors
linalg.eigvals | A | jnp.linalg.eigvals(A) | complex
linalg.svd | A, full_matrices=True, *, driver=None | jnp.linalg.svd(A, full_matrices=full_matrices) | pair fields=U,S,Vh
linalg.svdvals | A, *, driver=None | jnp.linalg.svd(A, compute_uv=False) | float
+pinverse | input, rcond=1e-15 | jnp.linalg.pinv(input, rtol=(rcond)) | float
linalg.matrix_rank | A, *, atol=None, rtol=None, hermitian=False | _matrix_rank(A, atol=atol, rtol=rtol, hermitian=hermitian) | int
linalg.matrix_rank | A, tol, hermitian=False | _matrix_rank(A, atol=tol, hermitian=hermitian) | int
linalg.cond | A, p=None | jnp.linalg.cond(A, p=p) | float
linalg.lu_factor | A, *, pivot=True | _lu_factor(A) | pair fields=LU,pivots
linalg.lu_factor_ex | A, *, pivot=True, check_errors=False | (*_lu_factor(A), _zero_pivot(A)) | pair fields=LU,pivots,info
linalg.lu | A, *, pivot=True | _lu(A) | pair fields=P,L,U
torch.lu_unpack | LU_data, LU_pivots, *, unpack_data=True, unpack_pivots=True | _lu_unpack(LU_data, LU_pivots) | pair fields=P,L,U
+cross | input, other, dim=-1 | jnp.cross(input, other, axis=dim) | promoted
linalg.cross | input, other, *, dim=-1 | jnp.cross(input, other, axis=dim) | promoted
linalg.vecdot | x, y, *, dim=-1 | jnp.linalg.vecdot(x, y, axis=dim) | promoted
linalg.vander | x, N=None | _vander(x, N) | same large
linalg.tensorinv | A, ind=2 | jnp.linalg.tensorinv(A, ind=ind) | float
linalg.householder_product | A, tau | jax.lax.linalg.householder_product(A, tau) | float
+geqrf | input | _geqrf(input) | pair fields=a,tau
+ormqr | input, input2, input3, left=True, transpose=False | _ormqr(input, input2, input3, left=left, transpose=transpose) | float
+orgqr | input, tau | jax.lax.linalg.householder_product(input, tau) | float
torch.cdist | x1, x2, p=2.0, compute_mode=None | _cdist(x1, x2, p=p) | float
torch.pdist F.pdist | input, p=2 | _pdist(input, p=p) | float
""")  # fmt: skip


def _build_lstsq(call: Call) -> str:
    """Render lstsq; rank and singular values, which it returns next to the solution, depend on the driver."""
    driver = call.read_literal("driver")
    if driver not in {None, "gels", "gelsy", "gelsd", "gelss"}:
        raise Refuse("driver must be a literal: 'gels', 'gelsy', 'gelsd' or 'gelss'")
    return f"_lstsq(A, B, rcond{', driver=driver' if call.is_given('driver') else ''})"


add_operation(
    "linalg.lstsq",
    "A, B, rcond=None, *, driver=None",
    _build_lstsq,
    "pair",
    fields="solution residuals rank singular_values",
)


add_operation(
    "linalg.tensorsolve",
    "A, B, dims=None",
    lambda call: "_tensorsolve(A, B, axes=dims)" if call.is_given("dims") else "jnp.linalg.tensorsolve(A, B)",
    "float",
)


def _make_product(product: str) -> Template:
    """Return the rule of `beta * input + alpha * product`, as short as the call allows."""

    def build(call: Call) -> str:
        scaled = {name for name in ("beta", "alpha") if call.is_given(name) and call.read_literal(name) != 1}
        first = "beta * input" if "beta" in scaled else "input"
        inner = product if "@" not in product or "alpha" not in scaled else f"({product})"
        second = f"alpha * {inner}" if "alpha" in scaled else product
        return second if call.read_literal("beta") == 0 and call.is_given("beta") else f"{first} + {second}"

    return build


for _names, _factors, _inner in (
    ("~addmm", "mat1, mat2", "mat1 @ mat2"),
    ("~addmv torch.addmv_", "mat, vec", "mat @ vec"),
    ("~addr", "vec1, vec2", "jnp.outer(vec1, vec2)"),
    ("~baddbmm", "batch1, batch2", "batch1 @ batch2"),
    ("~addbmm", "batch1, batch2", "jnp.sum(batch1 @ batch2, axis=0)"),
):
    add_operation(_names, f"input, {_factors}, *, beta=1, alpha=1", _make_product(_inner), "promoted")
    for _first in ("input, beta: static", "beta: static, input"):  # deprecated: the scales by position
        add_operation(_names, f"{_first}, {_factors}", _make_product(_inner), "promoted")
        add_operation(_names, f"{_first}, alpha: static, {_factors}", _make_product(_inner), "promoted")
for _names, _factors in (("~addmm", "mat1, mat2"), ("~baddbmm", "batch1, batch2")):
    _inner = f"jnp.matmul({_factors}, preferred_element_type=dtype)"
    add_operation(_names, f"input, {_factors}, dtype, *, beta=1, alpha=1", _make_product(_inner), "promoted")


def read_flag(call: Call, name: str) -> bool:
    """Return a parameter that determines the generated code and so must be a literal."""
    value = call.read_literal(name)
    if not isinstance(value, bool):
        raise Refuse(f"{name} must be True or False as a literal")
    return value


def _build_cholesky(call: Call) -> str:
    """Render cholesky; PyTorch reads the lower triangle only, or the upper one with upper=True."""
    upper = call.read_literal("upper")
    if not isinstance(upper, bool):
        return "jnp.linalg.cholesky(A, upper=upper)"
    return f"jnp.linalg.cholesky({'A.mT.conj(), upper=True' if upper else 'A'}, symmetrize_input=False)"


add_operation("+cholesky", "A, upper=False", _build_cholesky, "float")
add_operation("linalg.cholesky", "A, *, upper=False", _build_cholesky, "float")
add_operation(
    "linalg.cholesky_ex",
    "A, *, upper=False, check_errors=False",
    lambda call: f"_with_info({_build_cholesky(call)})",
    "pair",
    fields="L info",
)


def _build_qr(call: Call) -> str:
    mode = call.read_literal("mode")
    if mode == "r":
        return '(jnp.empty(0, dtype=A.dtype), jnp.linalg.qr(A, mode="r"))'
    if mode not in {"reduced", "complete"}:
        raise Refuse("mode must be 'reduced', 'complete' or 'r' as a literal")
    return "jnp.linalg.qr(A)" if mode == "reduced" else 'jnp.linalg.qr(A, mode="complete")'


add_operation(
    "torch.lu .lu",
    "A, pivot=True, get_infos=False",
    lambda c: "(*_lu_factor(A), _zero_pivot(A))" if read_flag(c, "get_infos") else "_lu_factor(A)",
    "pair",
    fields="LU pivots",
)
add_operation("linalg.qr", 'A, mode="reduced"', _build_qr, "pair", fields="Q R")
add_operation(
    "+qr",
    "input, some=True",
    lambda c: "jnp.linalg.qr(input)" if read_flag(c, "some") else 'jnp.linalg.qr(input, mode="complete")',
    "pair",
    fields="Q R",
)


def _build_svd(call: Call) -> str:
    if not read_flag(call, "compute_uv"):
        raise Refuse("without compute_uv it returns empty matrices; use torch.linalg.svdvals")
    return "_svd(input)" if read_flag(call, "some") else "_svd(input, full_matrices=True)"


add_operation("+svd", "input, some=True, compute_uv=True", _build_svd, "pair", fields="U S V")


def _build_symeig(call: Call) -> str:
    """Render symeig of PyTorch before 2.0, which read the upper triangle."""
    half = {True: '"U"', False: '"L"'}.get(call.read_literal("upper"), '"U" if upper else "L"')
    options = f"input, UPLO={half}, symmetrize_input=False"
    return (
        f"jnp.linalg.eigh({options})"
        if read_flag(call, "eigenvectors")
        else f"(jnp.linalg.eigvalsh({options}), jnp.zeros(0))"
    )


add_operation(
    "+symeig", "input, eigenvectors=False, upper=True", _build_symeig, "pair", fields="eigenvalues eigenvectors"
)


add_operation(
    "linalg.pinv",
    "A, *, atol=None, rtol=None, hermitian=False",
    lambda call: (
        "_pinv(A, atol=atol, rtol=rtol, hermitian=hermitian)"
        if call.is_given("atol") or call.is_given("hermitian")
        else "jnp.linalg.pinv(A, rtol=rtol)"
    ),
    "float",
)
add_operation(
    "linalg.pinv",
    "A, rcond, hermitian=False",
    lambda call: (
        "_pinv(A, rtol=rcond, hermitian=hermitian)"
        if call.is_given("hermitian")
        else "jnp.linalg.pinv(A, rtol=(rcond))"
    ),
    "float",
)


def _write_right_side(call: Call, a: str, b: str) -> str:
    """Render the right side of a system; jax.scipy would take (3, 3) with (3, 3, 3) for three vectors."""
    ranks = call.find_rank(a), call.find_rank(b)
    return b if ranks[0] == 2 or (None not in ranks and ranks[0] == ranks[1]) else f"_matrices({a}, {b})"


def _build_triangular(call: Call) -> str:
    """Render solve_triangular; `left=False` solves the transposed system."""
    lower = {True: "", False: ", lower=True"}.get(call.read_literal("upper"), ", lower=not upper")
    right, options = _write_right_side(call, "A", "B"), f"{lower}, unit_diagonal=unitriangular"
    if read_flag(call, "left"):
        return f"jax.scipy.linalg.solve_triangular(A, {right}{options})"
    return f'jax.scipy.linalg.solve_triangular(A, {right}.mT, trans="T"{options}).mT'


add_operation("linalg.solve_triangular", "A, B, *, upper, left=True, unitriangular=False", _build_triangular, "float")


def _build_triangular_solve(call: Call) -> str:
    lower = "" if read_flag(call, "upper") else ", lower=True"
    transpose = ', trans="T"' if read_flag(call, "transpose") else ""
    return f"_triangular_solve(b, A{lower}{transpose}, unit_diagonal=unitriangular)"


add_operation(
    "torch.triangular_solve",
    "b, A, upper=True, transpose=False, unitriangular=False",
    _build_triangular_solve,
    "pair",
    fields="solution cloned_coefficient",
)
add_operation(
    ".triangular_solve",
    "b, A, upper=True, transpose=False, unitriangular=False",
    _build_triangular_solve,
    "pair",
    fields="solution cloned_coefficient",
)


def _build_cholesky_solve(call: Call) -> str:
    lower = {True: "False", False: "True"}.get(call.read_literal("upper"), "not upper")
    factor = "L" if call.is_passed("L") else "input2"
    return f"jax.scipy.linalg.cho_solve(({factor}, {lower}), {_write_right_side(call, factor, 'B')})"


add_operation("+cholesky_solve", "B, L, upper=False", _build_cholesky_solve, "float")
add_operation("+cholesky_solve", "B, input2, upper=False", _build_cholesky_solve, "float")


def _build_cholesky_inverse(call: Call) -> str:
    lower = {True: "False", False: "True"}.get(call.read_literal("upper"), "not upper")
    return f"_cholesky_inverse(L, lower={lower})"


add_operation("+cholesky_inverse", "L, upper=False", _build_cholesky_inverse, "float")


def _build_solve(call: Call) -> str:
    return "_solve(A, B)" if read_flag(call, "left") else "_solve(A.mT, B.mT).mT"


add_operation("linalg.solve", "A, B, *, left=True", _build_solve, "float")
add_operation(
    "linalg.solve_ex",
    "A, B, *, left=True, check_errors=False",
    lambda c: f"({_build_solve(c)}, _zero_pivot(A))",
    "pair",
    fields="result info",
)


def _build_lu_solve(call: Call) -> str:
    """Render lu_solve; `left=False` solves the transposed system, and `adjoint` is LAPACK's trans=2."""
    adjoint, right = read_flag(call, "adjoint"), _write_right_side(call, "LU", "B")
    if read_flag(call, "left"):
        return f"jax.scipy.linalg.lu_solve((LU, pivots - 1), {right}{', trans=2' * adjoint})"
    if adjoint:
        return f"jax.scipy.linalg.lu_solve((LU, pivots - 1), {right}.mT.conj()).mT.conj()"
    return f"jax.scipy.linalg.lu_solve((LU, pivots - 1), {right}.mT, trans=1).mT"


add_operation(
    "+lu_solve",
    "b, LU_data, LU_pivots",
    lambda c: f"jax.scipy.linalg.lu_solve((LU_data, LU_pivots - 1), {_write_right_side(c, 'LU_data', 'b')})",
    "float",
)
add_operation("linalg.lu_solve", "LU, pivots, B, *, left=True, adjoint=False", _build_lu_solve, "float")
