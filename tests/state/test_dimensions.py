"""What the words of a jaxtyping annotation's shape stand for."""

import pytest

from purestate._schema.dimensions import dimensions

NAMED, ONE, MANY, MANY_OR_ONE = (
    (False, False),
    (False, True),
    (True, False),
    (True, True),
)


@pytest.mark.parametrize(
    ("word", "label", "marks"),
    [
        ("n", "n", NAMED),
        ("3", "3", NAMED),
        ("2*n+1", "2*n+1", NAMED),
        ("rows=3", "3", NAMED),
        ("?n", "n", NAMED),
        ("_", "_", NAMED),
        ("#n", "n", ONE),
        ("*batch", "batch", MANY),
        ("...", "...", MANY),
        ("*#batch", "batch", MANY_OR_ONE),
        ("#*batch", "batch", MANY_OR_ONE),
    ],
)
def test_a_word_has_a_label_and_marks_in_any_order(word, label, marks):
    (found,) = dimensions(word)

    assert (word, label) == (found.word, found.label)
    assert marks == (found.is_many, found.may_be_one)


def test_each_word_is_a_dimension():
    assert ["batch", "n", "3"] == [d.label for d in dimensions(" *batch n  d=3 ")]
    assert () == dimensions("")


def test_a_name_that_starts_with_an_underscore_binds_nothing():
    assert [True, True, False] == [d.is_anonymous for d in dimensions("_ _n n_")]


@pytest.mark.parametrize(
    ("text", "size"),
    [("4", 4), ("n", 3), ("2*n-1", 5), ("(n+m)//2", 4), ("*b", (7, 8))],
)
def test_a_size_is_a_number_a_name_or_computed(text, size):
    assert size == dimensions(text)[0].size({"n": 3, "m": 5, "b": (7, 8)})


@pytest.mark.parametrize("text", ["k", "n+k", "...", "f(n)", "n**2", "1.5"])
def test_a_size_that_is_not_known_is_a_key_error(text):
    with pytest.raises(KeyError):
        dimensions(text)[0].size({"n": 3})


def test_a_size_that_is_not_an_expression_is_a_syntax_error():
    with pytest.raises(SyntaxError):
        dimensions("n+")[0].size({"n": 3})
