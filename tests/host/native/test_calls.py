"""Functions of numba in programs: what is native, what is not, and that both agree."""

import os
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purestate as ps
import purestate.testing as pst
from purestate.errors import HostSpecError
from tests.host.native.helpers import (
    Diverged,
    assert_same,
    fail,
    host,
    is_native,
    numba,
    raising,
    triple,
    unpack,
)

X = jnp.arange(6.0).reshape(2, 3)


def test_a_function_of_numba_is_native_by_itself():
    fn = host(triple)

    assert "native" == fn.lowering
    assert "" == fn.why_not_native
    assert is_native(fn, X)
    assert (jax.jit(fn)(X) == 3 * X).all()
    assert re.search(r"^<host function triple .*, native>$", repr(fn))


def test_outside_of_a_program_it_is_a_plain_call():
    seen = []

    def watched(x):
        seen.append(type(x))
        return triple.py_func(x)

    fn = host(triple)
    object.__setattr__(fn.options, "fn", watched)

    assert (fn(X) == 3 * X).all()
    assert [np.ndarray, np.ndarray] == seen  # one to see what it returns


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: f,
        lambda f: jax.vmap(f),
        lambda f: jax.vmap(jax.vmap(f)),
        lambda f: jax.vmap(f, in_axes=1, out_axes=1),
        lambda f: lambda x: jax.lax.scan(lambda c, y: (f(c), f(y)), x[0], x),
        lambda f: lambda x: jax.lax.map(f, x),
        lambda f: lambda x: jax.lax.cond(x.sum() > 0, f, lambda x: x, x),
        lambda f: lambda x: jax.lax.while_loop(lambda c: c.sum() < 99, f, x),
        lambda f: jax.checkpoint(f),
    ],
    ids=["jit", "vmap", "vmap2", "axes", "scan", "map", "cond", "while", "remat"],
)
def test_it_agrees_with_the_callback_under(monkeypatch, transform):
    fn = host(triple, out=lambda x: x)

    assert_same(monkeypatch, transform(fn), X)


@pytest.mark.parametrize("upcast", [False, True])
def test_structures_of_tuples_are_native(monkeypatch, upcast):
    fn = host(unpack, upcast=upcast)
    args = jnp.ones(3), (jnp.array([2.0, 1.0, 0.5]), jnp.arange(4))

    assert_same(monkeypatch, fn, *args)
    found = jax.jit(fn)(*args)
    assert found[1] is None
    assert 4 == found[2][0]


def test_axes_that_some_arguments_lack_are_repeated(monkeypatch):
    fn = host(unpack)
    a, b, c = (
        jnp.arange(6.0).reshape(2, 3),
        jnp.arange(8.0).reshape(4, 2),
        jnp.arange(3),
    )
    inner = jax.vmap(lambda a, b: fn(a, (b, c)), (None, 0))

    assert_same(monkeypatch, jax.vmap(inner, (0, None)), a, b)
    assert_same(monkeypatch, jax.vmap(lambda a: fn(a, (b[0], c))), a)


def test_an_empty_batch_is_one(monkeypatch):
    fn = host(triple, out=lambda x: x)

    assert_same(monkeypatch, jax.vmap(fn), jnp.zeros((0, 3)))
    assert_same(monkeypatch, fn, jnp.zeros((0, 3)))
    assert_same(monkeypatch, jax.vmap(fn), jnp.zeros((2, 0)))


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "complex64"],
)
def test_dtypes_that_numba_has_are_native(monkeypatch, dtype):
    @numba.njit
    def turned(x):
        return x[::-1].copy(), x[0]

    x = jnp.arange(4).astype(dtype)

    assert_same(monkeypatch, jax.vmap(host(turned)), jnp.stack([x, x]))


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
def test_dtypes_of_64_bits_are_native_as_they_are(monkeypatch, dtype):
    with jax.enable_x64(True):
        x = jnp.arange(4).astype(dtype) + jnp.asarray(2**31, dtype)
        assert_same(monkeypatch, host(numba.njit(lambda x: x + x)), x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int4"])
def test_dtypes_that_numba_lacks_are_callbacks(dtype):
    fn = host(triple, out=lambda x: x)
    x = jnp.ones(3, dtype)

    text = jax.jit(fn).lower(x).as_text()

    assert "purestate/" not in text
    assert "python_cpu_callback" in text


def test_numbers_are_arrays_without_axes(monkeypatch):
    @numba.njit
    def total(x, y):
        return x[()] + y[()], x * y[()]

    assert_same(monkeypatch, host(total), jnp.float32(2), jnp.int32(3))


@pytest.mark.parametrize(
    "view",
    [lambda x: x[::2], lambda x: x.T, lambda x: x[::-1]],
    ids=["strided", "transposed", "backwards"],
)
def test_results_that_are_not_contiguous_come_out_in_order(monkeypatch, view):
    fn = host(numba.njit(lambda x: view_of(x)), out=lambda x: jax.eval_shape(view, x))
    view_of = numba.njit(view)
    fn.options.fn.py_func.__closure__[0].cell_contents = view_of

    assert_same(monkeypatch, fn, jnp.arange(12.0).reshape(4, 3))


def test_a_result_may_be_the_argument(monkeypatch):
    fn = host(numba.njit(lambda x: x), out=lambda x: x)

    assert_same(monkeypatch, jax.vmap(fn), X)


def test_a_function_without_arguments_is_native(monkeypatch):
    fn = host(numba.njit(lambda: np.ones(3, np.float32)))

    assert_same(monkeypatch, lambda: fn() + 1)


def test_threads_share_a_batch(monkeypatch):
    fn = host(triple, out=lambda x: x, vmap="threads", threads=3)
    x = jnp.arange(300.0).reshape(100, 3)

    assert_same(monkeypatch, jax.vmap(fn), x)
    assert_same(monkeypatch, jax.vmap(fn), x[:1])
    jax.clear_caches()
    monkeypatch.setenv("PURESTATE_HOST_LOWERING", "native")
    step = jax.jit(jax.vmap(fn))
    for _ in range(200):
        assert (step(x) == 3 * x).all()


@pytest.mark.parametrize("mode", ["vectorized", "batched"])
def test_modes_for_whole_batches_are_callbacks_for_a_batch_only(mode):
    fn = host(triple, out=lambda x: x, vmap=mode)

    assert is_native(fn, X)
    assert not is_native(jax.vmap(fn), X)
    assert (jax.jit(jax.vmap(fn))(X) == 3 * X).all()


def test_copies_that_may_be_written_to_are_native(monkeypatch):
    @numba.njit
    def fill(x):
        x[0] = 9
        return x

    assert_same(monkeypatch, host(fill, writable=True, out=lambda x: x), X[0])
    assert_same(
        monkeypatch, host(fill, writable=True, upcast=True, out=lambda x: x), X[0]
    )


# --- results that are not as declared ---------------------------------------------------


def test_an_integer_that_does_not_fit_is_refused_as_in_a_callback(monkeypatch):
    @numba.njit
    def grown(x):
        return x.astype(np.int64) * 1000, 300 * x.size

    fn = host(
        grown,
        out=lambda x: (
            jax.ShapeDtypeStruct(x.shape, jnp.int16),
            jax.ShapeDtypeStruct((), jnp.int8),
        ),
    )
    texts = []
    for lowering in ("native", "pure"):
        monkeypatch.setenv("PURESTATE_HOST_LOWERING", lowering)
        jax.clear_caches()
        for x in (jnp.array([1, 99]), jnp.array([1, -99]), jnp.array([1])):
            with pytest.raises(HostSpecError) as found:
                ps.jit(fn)(x)
            texts.append(str(found.value))

    assert texts[:3] == texts[3:]
    assert texts[0].endswith(
        "returned another array than declared at [0]:\n"
        "  expected: int16[2]\n  received: int64[2] with 99000, which int16 cannot hold"
    )
    assert texts[1].endswith("int64[2] with -99000, which int16 cannot hold")
    assert texts[2].endswith("int64[] with 300, which int8 cannot hold")


def test_a_shape_that_is_not_as_declared_is_refused_as_in_a_callback(monkeypatch):
    fn = host(fail, out=lambda x: x)
    texts = []
    for lowering in ("native", "pure"):
        monkeypatch.setenv("PURESTATE_HOST_LOWERING", lowering)
        jax.clear_caches()
        with pytest.raises(HostSpecError) as found:
            ps.jit(fn)(X[0].at[0].set(7))
        texts.append(str(found.value))

    assert texts[0] == texts[1]
    assert texts[0].endswith(
        "returned another array than declared at its result:\n"
        "  expected: float32[3]\n  received: float32[1]"
    )


@pytest.mark.parametrize(
    ("function", "out"),
    [
        (numba.njit(lambda x: (x, x)), lambda x: x),
        (numba.njit(lambda x: x), lambda x: (x, None)),
        (numba.njit(lambda x: x.sum()), lambda x: x),
        (numba.njit(lambda x: x.reshape(1, 3)), lambda x: x),
        (numba.njit(lambda x: x), lambda x: jax.ShapeDtypeStruct(x.shape, "int32")),
        (numba.njit(lambda x: {0: x}), lambda x: {0: x}),
    ],
    ids=["tuple", "none", "number", "rank", "dtype", "dict"],
)
def test_what_is_declared_otherwise_is_left_to_the_callback(function, out):
    fn = host(function, out=out)

    assert not is_native(fn, X[0])
    with pytest.raises(HostSpecError, match=r"returned another|cannot determine Numba"):
        ps.jit(fn)(X[0])


# --- exceptions --------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["plain", "loop", "threads"])
@pytest.mark.parametrize(
    ("which", "kind", "text"),
    [
        (1, Diverged, "('too large', 5.0)"),
        (2, AssertionError, "an assertion"),
        (3, ZeroDivisionError, "division by zero"),
        (4, np.linalg.LinAlgError, "Matrix is singular to machine precision."),
    ],
)
def test_an_exception_comes_out_as_it_is(form, which, kind, text):
    fn = host(raising, out=lambda x: x, vmap="loop" if form == "plain" else form)
    bad = jnp.array([which, 5.0, 0.0])
    if form != "plain":
        fn, bad = jax.vmap(fn), jnp.zeros((9, 3)).at[4].set(bad)
    step = ps.jit(fn)

    with pytest.raises(kind) as found:
        step(bad)

    assert text in str(found.value)
    assert any(__file__ == entry.path.__fspath__() for entry in found.traceback)
    assert (step(0 * bad) == 0).all()


def test_numba_says_in_which_line():
    with pytest.raises(ValueError, match="negative") as found:
        ps.jit(host(fail, out=lambda x: x))(-X[0] - 1)

    last = found.traceback[-1]
    assert "helpers.py" in str(last.path)
    assert ("negative", -1.0) == found.value.args


def test_around_plain_jit_the_exception_is_found():
    with pytest.raises(ValueError, match="negative"), ps.surface_errors():
        jax.jit(host(fail, out=lambda x: x))(-X[0] - 1)


def test_two_hundred_exceptions_leave_nothing_behind():
    step = ps.jit(host(fail, out=lambda x: x))
    good, bad = X[0], -X[0] - 1

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def run(count):
        for _ in range(count):
            with pytest.raises(ValueError, match="negative"):
                step(bad)
            step(good).block_until_ready()

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("only Linux tells here how much memory a process has")
    run(300)  # those that are kept for whoever asks are 256
    before = resident()
    run(200)

    assert resident() - before < 2**20


class Unreadable(Exception):
    def __str__(self):
        return f"code {self.args[1]}"


def test_an_exception_whose_text_raises_is_not_lost():
    @numba.njit
    def failing(x):
        if x[0] > 0:
            raise Unreadable("x")
        return x

    fn = host(failing, out=lambda x: x)

    with pytest.raises(Unreadable) as caught:
        ps.jit(fn)(jnp.ones(2))
    assert ("x",) == caught.value.args
    with pytest.raises(
        jax.errors.JaxRuntimeError, match="Unreadable, whose text raises"
    ):
        jax.block_until_ready(jax.jit(fn)(jnp.ones(2)))


# --- what numba cannot compile -----------------------------------------------------------


def test_writing_to_an_argument_is_refused_while_tracing():
    @numba.njit
    def fill(x):
        x[0] = 1
        return x

    with pytest.raises(
        HostSpecError,
        match=r"^numba cannot compile fill \(.*test_calls\.py:\d+\) for float32\[3\]: "
        r"it writes to an argument\.\nArguments are arrays that nobody may write to: copy what is written to, or say "
        r"writable=True, which hands in copies\.",
    ) as found:
        jax.jit(host(fill, out=lambda x: x))(X[0])

    causes = [found.value]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    assert isinstance(causes[-1], numba.core.errors.TypingError)


def test_signatures_for_other_arrays_are_refused_and_writable_takes_them():
    summed = numba.njit("float32[::1](float32[::1])")(lambda x: x + x)
    text = (
        r"^numba cannot compile <lambda> \(.*\) for float32\[3\]: it is compiled for "
        r"signatures of its own, and for none that these are\.\nLeave the signatures out; "
        r"or say writable=True if they are for arrays that may be written to, and get "
        r"copies\."
    )

    with pytest.raises(HostSpecError, match=text):
        jax.jit(host(summed, out=lambda x: x))(X[0])
    fn = host(summed, out=lambda x: x, writable=True)
    assert is_native(fn, X[0])
    assert (jax.jit(fn)(X[0]) == 2 * X[0]).all()


# --- writes that numba does not see ------------------------------------------------------


@numba.njit
def through_contiguous(x):
    y = np.ascontiguousarray(x)
    y[0] = 9
    return y.sum()


@numba.njit
def through_fortran(x):
    y = np.asfortranarray(x)
    y[0] = 9
    return y.sum()


@numba.njit
def through_flat(x):
    x[::2].flat[0] = 9
    return x.sum()


@numba.njit
def through_nditer(x):
    for v in np.nditer(x):
        v[()] = 9
    return x.sum()


@numba.njit
def through_diagonal(x):
    y = x.reshape(1, x.size)
    np.fill_diagonal(y, 9)
    return x.sum()


@numba.njit
def through_dot(x):
    np.dot(np.eye(x.size, dtype=np.float32)[::-1].copy(), x, x)
    return x.sum() + x[0]


@numba.njit
def through_another(x):
    return through_flat(x) + 1


LEAKS = [
    through_contiguous,
    through_fortran,
    through_flat,
    through_nditer,
    through_diagonal,
    through_dot,
    through_another,
]


@pytest.mark.parametrize("fn", LEAKS, ids=lambda fn: fn.py_func.__name__)
@pytest.mark.parametrize("options", [{}, {"upcast": True}, {"vmap": "threads"}])
def test_writes_that_numba_does_not_see_change_no_other_value(fn, options):
    if options and fn is through_dot:
        pytest.skip("its matrix has one dtype")
    leaking = host(fn, out=lambda x: jax.ShapeDtypeStruct((), x.dtype), **options)
    given = jnp.arange(1.0, 13).reshape(4, 3)
    whole = jax.jit(lambda x, c: (jax.vmap(leaking)(x), leaking(c), x + 0, c + 0))
    constant = np.array([1, 2, 3], np.float32)

    assert is_native(whole, given, constant)
    assert is_native(lambda: leaking(constant))
    first, alone, rows, row = whole(given, constant)
    again = jax.jit(lambda: (leaking(jnp.asarray(constant)), jnp.asarray(constant)))

    assert alone == fn(constant.copy())
    assert [float(fn(np.array(r))) for r in np.array(given)] == first.tolist()
    assert [1, 2, 3] == row.tolist() == again()[1].tolist() == again()[1].tolist()
    assert np.arange(1, 13).tolist() == rows.ravel().tolist() == given.ravel().tolist()


@pytest.mark.parametrize("grad", ["fd", "fd-forward"])
def test_writes_that_numba_does_not_see_change_no_difference(grad):
    leaking = host(numba.njit(lambda x: overwritten(x)), grad=grad, upcast=True)
    v = jnp.array([3.0, 5.0, 7.0])

    assert is_native(jax.grad(leaking), v)
    assert np.allclose(jax.jit(jax.grad(leaking))(v), 2 * v, rtol=1e-3)
    assert np.allclose(jax.jit(jax.jacfwd(leaking))(v), 2 * v, rtol=1e-3)
    assert [3, 5, 7] == v.tolist()


@numba.njit
def overwritten(x):
    total = (x * x).sum()
    x.flat[1] = 100
    return total


def test_functions_that_only_read_get_no_copies():
    from purestate._host.native.functions import may_write

    assert not may_write(triple)
    assert not may_write(numba.njit(lambda a, b: np.dot(a, b)))
    assert may_write(numba.njit(lambda a, b, c: np.dot(a, b, c)))


def test_what_numba_does_not_know_is_refused_while_tracing():
    @numba.njit
    def spectrum(x):
        return np.fft.fft(x)

    with pytest.raises(
        HostSpecError,
        match=r"^numba cannot compile spectrum \(.*\) for float32\[3\]: .*fft.*\n"
        r"A call of the function itself, outside of a program, fails alike\.",
    ):
        jax.jit(host(spectrum, out=lambda x: x))(X[0])
    with pytest.raises(numba.core.errors.TypingError):
        host(spectrum, out=lambda x: x)(X[0])


def test_a_function_with_signatures_of_its_own_is_called_as_they_say(monkeypatch):
    kind = numba.types.Array(numba.float32, 1, "C", readonly=True)
    fn = host(numba.njit([numba.float32[::1](kind)])(lambda x: x + x))

    assert_same(monkeypatch, fn, X[0])


@numba.njit
def with_default(x, factor=2):
    return x * factor


@numba.njit
def of_any_number(*xs):
    return xs[0] + xs[-1]


@numba.njit
def recursive(n):
    return n if n < 2 else recursive(n - 1) + recursive(n - 2)


@numba.njit
def caught(x):
    try:
        if x[0] == 0:
            raise ValueError("zero")
    except Exception:  # noqa: BLE001  # numba knows no other
        return x + 10
    return x


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (with_default, 1),
        (with_default, 2),
        (of_any_number, 1),
        (of_any_number, 3),
        (numba.njit(lambda x: x * recursive(7)), 1),
        (caught, 1),
        (numba.njit(fastmath=True)(lambda x: x * 2), 1),
        (numba.njit(lambda x: TABLE[::-1]), 1),
        (numba.njit(lambda x: x[0] > 1), 1),
    ],
)
def test_functions_of_all_kinds_are_native(monkeypatch, function, count):
    args = [X[0] + i for i in range(count)]

    assert_same(monkeypatch, host(function), *args)


TABLE = np.arange(3.0, dtype=np.float32)


@numba.njit
def in_python(x):
    with numba.objmode(y="float32[:]"):
        y = looked_up({1: x}, x)
    return y  # noqa: RET504  # numba takes it out of the block by its name


def looked_up(table, x):
    return table[int(x[0])]


HERE = sys.modules[__name__]


def behind_a_class():
    @numba.experimental.jitclass([("n", numba.int64)])
    class Looking:
        def __init__(self, n):
            self.n = n

        def at(self, x):
            return in_python(x)

    return numba.njit(lambda x: Looking(1).at(x))


BLOCKS = {
    "a global": lambda: numba.njit(lambda x: in_python(x)),
    "a module": lambda: numba.njit(lambda x: HERE.in_python(x)),
    "a tuple": lambda f=(in_python,): numba.njit(lambda x: f[0](x)),
    "a default": lambda: numba.njit(with_function),
    "a class": behind_a_class,
}


def with_function(x, f=in_python):
    return f(x)


@pytest.mark.parametrize("mode", ["loop", "threads"])
@pytest.mark.parametrize("behind", BLOCKS)
@pytest.mark.filterwarnings("ignore:First-class function type")  # of numba, in a tuple
def test_blocks_of_python_make_a_callback_and_lose_no_exception(behind, mode):
    fn = host(BLOCKS[behind](), out=lambda x: x, vmap=mode)
    assert "pure" == fn.lowering
    assert "it has blocks of numba.objmode, which need Python" == fn.why_not_native
    step = ps.jit(jax.vmap(fn))
    rows = jnp.ones((9, 3))

    assert not is_native(jax.vmap(fn), rows)
    assert (step(rows) == 1).all()
    with pytest.raises(KeyError, match="5"):
        step(rows.at[4].set(5.0))


# --- which functions are native ----------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: host(lambda x: x), "it is no function of numba.njit"),
        (
            lambda: host(triple, cache=3),
            "it is declared with cache=, which needs Python",
        ),
        (lambda: host(triple, effects=True), "it is declared with effects=, which nee"),
        (
            lambda: host(triple, thread="own"),
            "it is declared with thread=, which needs",
        ),
        (
            lambda: host(triple, scratch=list),
            "it is declared with scratch=, which need",
        ),
        (
            lambda: host(triple, static_argnames="x"),
            "it is declared with static_argnames=, which needs Python",
        ),
        (lambda: host(numba.jit(forceobj=True)(lambda x: x)), "it is no function of n"),
        (lambda: host(numba.vectorize(lambda x: x)), "it is no function of numba.njit"),
    ],
)
def test_a_function_says_why_it_is_not_native(make, why):
    fn = make()

    assert "native" != fn.lowering
    assert fn.why_not_native.startswith(why)


def test_the_environment_turns_it_off(monkeypatch):
    fn = host(triple, out=lambda x: x)
    monkeypatch.setenv("PURESTATE_HOST_LOWERING", "pure")

    assert "pure" == fn.lowering
    assert "PURESTATE_HOST_LOWERING=pure asks for callbacks" == fn.why_not_native
    assert not is_native(fn, X)


def test_in_the_environment_native_is_the_usual_choice_for_others(monkeypatch):
    monkeypatch.setenv("PURESTATE_HOST_LOWERING", "native")

    assert "pure" == host(lambda x: x).lowering
    assert "native" == host(triple).lowering


def test_where_the_self_test_fails_functions_are_callbacks(monkeypatch):
    from purestate._host.native import trial

    monkeypatch.setattr(trial, "why_not_here", lambda: "a sum was [1, 2]")
    fn = host(triple, out=lambda x: x)

    assert "pure" == fn.lowering
    assert "native operations do not work here: a sum was [1, 2]" == fn.why_not_native
    assert not is_native(fn, X[:, :2])
    assert (jax.jit(fn)(X) == 3 * X).all()


def test_the_self_test_notices_what_it_is_there_for(monkeypatch):
    from purestate._host.native import handler, raising, trial

    assert "" == trial.why_not_here()
    again = trial.why_not_here.__wrapped__
    monkeypatch.setattr(raising, "keep", lambda error: b"lost")
    assert again().startswith("an exception came out as")
    monkeypatch.undo()
    monkeypatch.setattr(trial, "compiled", lambda *_: 1 / 0)
    assert "ZeroDivisionError: division by zero" == again()
    monkeypatch.undo()
    usual = handler.batch_attribute
    monkeypatch.setattr(trial, "batch_attribute", lambda *_: usual((), [()], 1))
    assert again() != ""


def test_calls_of_a_native_function_are_not_counted_wrongly(monkeypatch):
    fn = host(triple, out=lambda x: x)

    with (
        pytest.raises(
            TypeError,
            match=r"^count_host_calls cannot count calls of triple \(.*\), which is native: "
            r"programs call it without Python\. With the environment variable "
            r"PURESTATE_HOST_LOWERING=pure it is a callback, and counted\.$",
        ),
        pst.count_host_calls(fn),
    ):
        pass
    monkeypatch.setenv("PURESTATE_HOST_LOWERING", "pure")
    with pst.count_host_calls(fn) as calls:
        jax.jit(jax.vmap(fn))(X).block_until_ready()
    assert 2 == calls.total


def test_a_program_for_another_platform_has_callbacks():
    step = jax.jit(host(triple, out=lambda x: x))

    for platforms in (("cuda",), ("cpu", "cuda")):
        exported = step.trace(X)
        # jax makes a callback only for the devices of its own platform.
        with pytest.raises((ValueError, NotImplementedError), match=r"platform"):
            exported.lower(lowering_platforms=platforms)
    assert "purestate/" in step.trace(X).lower(lowering_platforms=("cpu",)).as_text()


def test_jax_refuses_to_export_it():
    with pytest.raises(ValueError, match="custom"):
        jax.export.export(jax.jit(host(triple, out=lambda x: x)))(X)


def test_two_functions_of_one_name_are_two_operations():
    def make(factor):
        @numba.njit
        def scaled(x):
            return x * factor

        return host(scaled, out=lambda x: x)

    first, second = make(2), make(5)

    assert (jax.jit(first)(X) == 2 * X).all()
    assert (jax.jit(second)(X) == 5 * X).all()
    assert (jax.jit(lambda x: first(x) + second(x))(X) == 7 * X).all()
    text = jax.jit(second).lower(X).as_text()
    assert re.search(
        r'"purestate/tests\.host\.native\.test_calls\..*scaled/.*#\d+"', text
    )
