"""What purestate leans on in others: each test fails when it is no longer so.

Where one fails after an update of jax or Python, look for the new text or name in
`purestate/_compat.py`, keep the old one beside it, and run the tests on both versions.
"""

import dataclasses
import sys

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

from purestate import _compat


@pytest.mark.parametrize("donated", [(0, 1), (0,), (1,)])
def test_jax_still_says_that_a_buffer_is_donated_and_used(donated):
    step = jax.jit(lambda a, b: (a + 1, b + 1), donate_argnums=donated)
    x = jnp.arange(3.0)
    with pytest.raises(Exception) as first:  # noqa: PT011  # XLA's own class
        jax.block_until_ready(step(x, x))

    assert any(text in str(first.value) for text in _compat.DONATED_TWICE)


def test_jax_still_says_of_which_type_a_deleted_array_was():
    x = jnp.ones((2, 3), "int8")
    x.delete()

    with pytest.raises(RuntimeError) as found:
        x + 1

    assert "int8[2,3]" == _compat.DELETED.search(str(found.value))[1]


def test_jax_still_says_that_a_value_must_be_concrete():
    def branch(x):
        return 1 if x > 0 else 2

    with pytest.raises(jax.errors.ConcretizationTypeError) as found:
        jax.jit(branch)(1)

    assert _compat.NEEDS_A_VALUE in str(found.value)


def test_jax_still_warns_of_donated_buffers_that_it_cannot_use():
    with pytest.warns(UserWarning, match=_compat.UNUSED_DONATION):
        jax.jit(jnp.sum, donate_argnums=0)(jnp.arange(3.0))


def test_jax_still_says_that_a_tracer_leaked():
    kept = []

    with pytest.raises(Exception, match=_compat.LEAKED), jax.checking_leaks():
        jax.jit(lambda x: kept.append(x * 2))(1.0)


def kept(transform=jax.jit, given=1.0):
    """Return the argument of a function and what it computed, as it saw them."""
    found = []

    def function(x):
        found.extend([x, x * 2])
        return x

    transform(function)(given)
    return found


@pytest.mark.parametrize(
    ("transform", "given"),
    [
        (jax.jit, 1.0),
        (jax.vmap, jnp.ones(2)),
        (lambda f: jax.jit(jax.grad(f)), 1.0),
        (lambda f: jax.jit(jax.vmap(f)), jnp.ones(2)),
    ],
    ids=["jit", "vmap", "grad in jit", "vmap in jit"],
)
def test_a_tracer_still_knows_the_line_that_computed_it(transform, given):
    _, computed = kept(transform, given)

    lines = [x for x in _compat.computed_lines(computed) if x.file == __file__]

    first = kept.__code__.co_firstlineno
    assert _compat.Line(__file__, first + 5, "function") == lines[0]


def test_a_tracer_still_knows_the_function_that_was_traced():
    first = kept.__code__.co_firstlineno
    for tracer in kept():
        found = _compat.traced_function(tracer)

        assert _compat.Line(__file__, first + 4, "function") == found


@pytest.mark.parametrize(
    ("transform", "given"),
    [(jax.jit, 1.0), (jax.vmap, jnp.ones(2))],
    ids=["jit", "vmap"],
)
def test_an_argument_still_has_no_line(transform, given):
    argument, _ = kept(transform, given)

    assert [] == _compat.computed_lines(argument)


def test_a_tracer_still_says_in_errors_where_it_is_from():
    for tracer in kept():
        with pytest.raises(jax.errors.TracerArrayConversionError) as found:
            np.asarray(tracer)

        lines = [line.strip() for line in str(found.value).splitlines()]
        assert _compat.origin_text(tracer) in lines
        assert "tracing the function" in _compat.origin_text(tracer)


def test_a_tracer_still_tells_whether_its_trace_is_over():
    inside = []

    def asking(x):
        y = x * 2
        inside.append(_compat.is_over(y))
        return y

    for transform, given in ((jax.jit, 1.0), (lambda f: jax.jit(jax.grad(f)), 1.0)):
        transform(asking)(given)
        _, computed = kept(transform, given)

        assert _compat.is_over(computed)
    assert [False, False] == inside
    assert all(_compat.is_over(tracer) for tracer in kept(jax.vmap, jnp.ones(2)))


def test_the_trace_of_a_function_that_raised_is_still_not_over():
    found = []

    def failing(x):
        found.append(x * 2)
        raise KeyError

    with pytest.raises(KeyError):
        jax.jit(failing)(1.0)

    assert not _compat.is_over(found[0])


def test_errors_about_tracers_are_still_of_two_kinds():
    tracer = kept()[1]
    asked = [np.asarray, float, bool, lambda t: t + 1, lambda t: jnp.ones(2)[t > 1]]
    for ask in asked:
        with pytest.raises(_compat.TRACER_ERRORS):
            ask(tracer)


def test_the_last_error_is_still_where_python_leaves_it():
    for name in ("last_exc", "last_value"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "last_exc", None, raising=False)
            patch.setattr(sys, "last_value", None, raising=False)
            patch.setattr(sys, name, KeyError(name), raising=False)

            assert repr(KeyError(name)) == repr(_compat.last_error())


@jax.custom_vjp
def only_reverse(x):
    return x


only_reverse.defvjp(lambda x: (x, None), lambda _, ct: (ct,))
WITHOUT = {
    "forward mode of custom_vjp": lambda: jax.jvp(only_reverse, (1.0,), (1.0,)),
    "reverse mode of while_loop": lambda: jax.grad(
        lambda x: jax.lax.while_loop(lambda y: y < 9, lambda y: y * 2, x)
    )(1.0),
    "derivative of a callback": lambda: jax.grad(
        lambda x: jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), "float32"), x)
    )(1.0),
}


@pytest.mark.parametrize("derivative", WITHOUT.values(), ids=WITHOUT)
def test_jax_still_says_where_there_is_no_derivative(derivative):
    with pytest.raises((TypeError, ValueError, NotImplementedError)) as found:
        derivative()

    assert any(text in str(found.value) for text in _compat.NO_DERIVATIVE)


def test_dataclasses_still_name_the_kinds_of_fields():
    @dataclasses.dataclass
    class Plain:
        x: int
        given: dataclasses.InitVar[int]

    kinds = {n: _compat.field_kind(s) for n, s in Plain.__dataclass_fields__.items()}

    assert {"x": "_FIELD", "given": "_FIELD_INITVAR"} == kinds
    spec = _compat.revived_field(Plain.__dataclass_fields__["x"])
    assert spec.default is dataclasses.MISSING


def test_dataclasses_still_compile_their_methods_from_strings():
    @dataclasses.dataclass
    class Plain:
        x: int

        def written(self):
            return self.x

    assert _compat.is_written_by_dataclasses(Plain.__init__)
    assert _compat.is_written_by_dataclasses(Plain.__eq__)
    assert not _compat.is_written_by_dataclasses(Plain.written)


def test_dataclasses_replace_still_reads_every_init_var_from_the_instance():
    """By one of them `ps.State` tells that it is called: see `_state/dataclass`."""
    marked = dataclasses.make_dataclass(
        "Marked", [("source", dataclasses.InitVar[object], None)]
    )
    marked.source = property(lambda self: self)
    given = []
    marked.__init__ = lambda self, **kwargs: given.append(kwargs)
    instance = marked()

    dataclasses.replace(instance)

    assert [{}, {"source": instance}] == given


def test_a_trace_state_still_tells_traces_apart():
    outside = _compat.current_trace()
    inside = []
    jax.jit(lambda x: inside.append(_compat.current_trace()) or x)(1.0)

    assert _compat.outermost_trace() == outside
    assert [outside] != inside


def test_operations_of_jax_are_still_refused_inside_of_host_code():
    if not hasattr(jax.extend.core, "set_current_trace"):
        pytest.skip("this version of jax has no public way to refuse")

    refusing = _compat.refusing_jax(lambda: KeyError("refused"))()
    with refusing, pytest.raises(KeyError, match="refused"):
        jnp.zeros(3) + 1


def test_jax_still_says_which_mesh_is_set():
    mesh = jax.make_mesh((1,), ("data",))

    with jax.set_mesh(mesh):
        found = _compat.current_mesh()
        traced = []
        jax.eval_shape(lambda: traced.append(_compat.current_mesh()))

    assert found == (mesh if _compat.FINDS_MESH else None)
    assert ("data",) == traced[0].axis_names
    assert None is _compat.current_mesh()
