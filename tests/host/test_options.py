"""How a host function is declared: what Python shows of it, and what it keeps."""

import functools
import inspect
import typing

import pytest

import purestate as ps
from purestate.errors import HostSpecError


def add(x, y):
    return x + y


def test_help_shows_each_option_with_its_default_and_its_type():
    found = inspect.signature(ps.host_function).parameters

    assert ["fn", "out", "vmap", "grad", "jvp"] == list(found)[:5]
    assert "loop" == found["vmap"].default
    assert found["scratch"].default is None
    assert ("own",) == typing.get_args(typing.get_args(found["thread"].annotation)[0])
    assert all(p.kind is p.KEYWORD_ONLY for name, p in found.items() if name != "fn")


def test_each_option_is_documented():
    documented = inspect.getdoc(ps.host_function)

    for name in inspect.signature(ps.host_function).parameters:
        assert f"\n    {name}: " in documented


@pytest.mark.parametrize("option", ["grd", "no_vmap", "trusted"])
def test_an_unknown_option_is_refused_at_once(option):
    with pytest.raises(
        TypeError,
        match=rf"^host_function\(\) got an unexpected keyword argument '{option}'$",
    ):
        ps.host_function(**{option: True})


def test_a_function_goes_by_its_own_name_unless_it_is_given_one():
    assert "add" == ps.host_function(add).options.name
    assert "add" == ps.host_function(functools.partial(add, 1)).options.name
    assert "plus" == ps.host_function(add, name="plus").options.name
    assert "add" == ps.host_function(name=None)(add).options.name


@pytest.mark.parametrize("given", ["y", ["y"], ("y",)])
def test_one_static_argument_may_be_given_by_itself(given):
    assert ("y",) == ps.host_function(
        add, static_argnames=given
    ).options.static_argnames


def test_what_is_not_a_function_is_refused():
    with pytest.raises(
        HostSpecError, match=r"^ps\.host_function takes a function, and got a int\.$"
    ):
        ps.host_function(3)
