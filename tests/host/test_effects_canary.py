"""What effects of host functions rely on in jax, and what happens where it is missing."""

import jax
import pytest

from purestate import _compat
from tests.helpers import python

NO_TABLE = """\
jax no longer shows its rules for splitting the bodies of loops, or has no rule for this
primitive. Effects of host functions are then refused in what is differentiated, and the
tests of effects in differentiated loops fail. Find what this jax asks in place of
`jax.interpreters.partial_eval.custom_partial_eval_rules`, return it from
`splits_in_loops` in _compat.py, and see in _host/program/effects.py what is put there.
"""


@pytest.mark.parametrize("primitive", [jax.lax.cond_p, jax.lax.while_p])
def test_jax_shows_its_rules_for_splitting_loops(primitive):
    assert primitive in _compat.splits_in_loops(), NO_TABLE


def run(*code):
    done = python(PRELUDE, *code)

    assert 0 == done.returncode, done.stderr
    return done.stdout.splitlines()


PRELUDE = """\
import jax, jax.numpy as jnp, purestate as ps
from jax.interpreters import partial_eval

def declare():
    global seen, log, loop
    seen = []
    log = ps.host_function(lambda *t: seen.append(len(t)), ordered=True, name="log")

def loop(*args):
    def body(c, t):
        log(*(t for _ in args))
        return c * 2.0, None
    return lambda x: jax.lax.scan(body, x, jnp.arange(3))[0]

def show():
    jax.effects_barrier()
    print(seen)
    seen.clear()
"""


def test_the_rules_of_jax_are_left_alone_until_a_function_has_effects():
    found = run(
        """
        rules = partial_eval.custom_partial_eval_rules
        before = dict(rules)
        print(jax.jit(jax.grad(ps.host_function(lambda x: x, grad="zero")))(1.0))
        print(rules == before)
        declare()
        changed = [p for p in rules if rules[p] is not before.get(p)]
        print(sorted(p.name for p in changed))
        once = dict(rules)
        declare()
        print(rules == once)
        """
    )

    assert ["0.0", "True", "['cond', 'host_call', 'while']", "True"] == found


MISSING = {
    "no table": "del partial_eval.custom_partial_eval_rules",
    "no rule for while": """\
partial_eval.custom_partial_eval_rules = {
    p: r for p, r in partial_eval.custom_partial_eval_rules.items() if p.name != 'while'
}""",
}


@pytest.mark.parametrize("missing", MISSING)
def test_an_effect_that_jax_would_drop_is_refused(missing):
    found = run(
        MISSING[missing],
        """
        declare()
        program = jax.jit(loop(1))
        program(1.0).block_until_ready()
        show()
        for differentiated in (
            jax.grad(program),  # traced before, without a derivative
            jax.jit(jax.value_and_grad(loop())),
            jax.grad(lambda x: jax.jit(loop(1))(x) ** 2),
        ):
            try:
                print("not refused", differentiated(1.0))
            except ps.errors.HostGradError as error:
                print(str(error).partition(") ")[2][:55])
        show()
        """,
    )

    refused = "has effects, and is inside of what is differentiated. T"
    assert ["[1, 1, 1]", refused, refused, refused, "[]"] == found
