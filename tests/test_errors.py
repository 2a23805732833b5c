"""What holds for every error and warning of purestate."""

import pickle

import pytest

from purestate import errors

CLASSES = [
    found
    for found in map(errors.__dict__.get, errors.__all__)
    if isinstance(found, type) and issubclass(found, BaseException)
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_it_can_be_made_again_from_its_text(cls):
    again = cls("what it said")

    assert cls is type(again)
    assert "what it said" == str(again)
    assert "what it said" == str(pickle.loads(pickle.dumps(again)))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_it_says_when_it_occurs(cls):
    assert cls.__doc__
    assert issubclass(cls, errors.PurestateError | errors.PurestateWarning)


def test_attributes_survive_pickling():
    broken = errors.LawError("jit", "it is so", "Box", ".x", "cpu", "not so.", "Box()")

    same = pickle.loads(pickle.dumps(broken))

    assert str(broken) == str(same)
    assert ("jit", "Box", ".x", "cpu", "Box()") == (
        same.law,
        same.subject,
        same.path,
        same.backend,
        same.example,
    )
