"""An exception of a host function that was handed out once is not raised again.

Where jax runs a program in a thread of its own, it keeps the token of one that failed,
and `jax.effects_barrier` raises its error until another one has run. When it does so is
a matter of timing, so that the barrier of these tests stands in for jax's.
"""

import gymnasium
import jax
import pytest

import purestate as ps

pytestmark = pytest.mark.usefixtures("lowering")


@pytest.fixture
def kept(monkeypatch):
    """Return the error of a program that failed, which each barrier raises from now on."""

    @ps.host_function(out=lambda x: x)
    def fail(x):
        raise KeyError("lost")

    with pytest.raises(Exception, match="lost") as failed:
        jax.block_until_ready(jax.jit(fail)(1.0))

    def barrier():
        raise RuntimeError(str(failed.value))

    monkeypatch.setattr(jax, "effects_barrier", barrier)
    return failed.value


def test_a_later_block_does_not_raise_it_again(kept):
    with ps.surface_errors():
        pass


@pytest.fixture
def env():
    return ps.HostEnv(gymnasium.make("CartPole-v1"))


def test_an_environment_does_not_raise_it_again(env, kept):
    with pytest.raises(RuntimeError, match="lost"):
        env.reset(0)
    assert isinstance(ps.original_error(kept), KeyError)
    assert (4,) == env.reset(0)[0].shape


def test_an_error_that_is_not_of_a_host_function_is_raised(monkeypatch):
    def barrier():
        raise RuntimeError("out of memory")

    monkeypatch.setattr(jax, "effects_barrier", barrier)

    with pytest.raises(RuntimeError, match="out of memory"), ps.surface_errors():
        pass
