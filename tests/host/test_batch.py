"""The axes of a batch, which of them each array has, and what is done with both."""

import numpy as np

from purestate._host.call.batch import Batch

# Two arguments of three in a batch of 2 x 3: `x` along both axes, `y` along the second.
BATCH = Batch((2, 3), ((True, True), (False, True), (False, False)))
X = np.arange(24.0).reshape(2, 3, 4)
Y = np.arange(3.0)
Z = np.arange(5.0)


def shapes(arrays):
    return [array.shape for array in arrays]


def test_an_array_is_aligned_with_axes_of_size_one():
    assert [(2, 3, 4), (1, 3), (1, 1, 5)] == shapes(BATCH.aligned([X, Y, Z]))


def test_an_array_is_repeated_along_the_axes_that_it_lacks():
    x, y, z = BATCH.repeated([X, Y, Z])

    assert [(2, 3, 4), (2, 3), (2, 3, 5)] == shapes([x, y, z])
    assert [[0, 1, 2], [0, 1, 2]] == y.tolist()
    assert np.shares_memory(z, Z)


def test_one_axis_in_place_of_all_and_back():
    flat = BATCH.flattened([X, Y, Z])

    assert [(6, 4), (6,), (6, 5)] == shapes(flat)
    assert [0, 1, 2, 0, 1, 2] == flat[1].tolist()
    assert (BATCH.unflattened(flat)[0] == X).all()


def test_an_axis_comes_in_front_of_those_that_have_it():
    assert Batch(
        (7, 2, 3), ((True, True, True), (False, False, True), (True, False, False))
    ) == BATCH.mapped(7, [True, False, True])


def test_some_of_the_arrays_and_some_of_the_axes():
    assert Batch((2, 3), ((False, True), (False, False))) == BATCH.part([1, 2])
    assert Batch((3,), ((True,), (True,), (False,))) == BATCH.along([1])
    assert Batch((3, 2), ((True, True),)) == BATCH.part([0]).along([1, 0])


def test_which_axes_some_array_has():
    assert (True, True) == BATCH.used
    assert (False, True) == BATCH.part([1, 2]).used
    assert (False, False) == BATCH.part([]).used
    assert () == Batch.full((), 3).used


def test_arrays_are_added_along_the_same_axes():
    assert Batch((2,), ((False,), (True,), (True,))) == Batch(
        (2,), ((False,),)
    ) + Batch.full((2,), 2)


def test_a_batch_is_a_key():
    same = Batch((2, 3), ((True, True), (False, True), (False, False)))

    assert hash(BATCH) == hash(same)
    assert BATCH == same
    assert BATCH != Batch.full((2, 3), 3)
