"""What a draft that is still open does to updates and copies of States around it."""

import copy
import threading

import jax
import pytest

import purestate as ps
from purestate.errors import CheckError


class Part(ps.State):
    x: jax.Array


class Whole(ps.State):
    part: Part
    held: list
    n: int = ps.static(default=1)

    def __check__(self):
        return self.n > 0


class Watched(list):
    """A list that counts how often something walks through it."""

    walks = 0

    def __iter__(self):
        type(self).walks += 1
        return super().__iter__()


@pytest.fixture
def whole():
    return Whole(part=Part(x=1.0), held=Watched([1, 2]))


def walks_of(change):
    """Return how often a change walks through the `Watched` lists of a State."""
    before = Watched.walks
    change()
    return Watched.walks - before


UPDATES = {
    "replace": lambda whole: whole.replace(n=2),
    "copy": copy.copy,
    "at": lambda whole: whole.at(lambda s: s.part.x).set(0.0),
}


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_nobody_looks_for_drafts_while_no_block_is_open(whole, update):
    assert 0 == walks_of(lambda: update(whole))


def test_nobody_looks_for_drafts_after_blocks_that_ended_or_raised(whole):
    with whole.draft() as new:
        new.n = 5
    with pytest.raises(ZeroDivisionError), whole.draft():
        1 / 0  # noqa: B018
    with pytest.raises(CheckError), whole.draft() as new:
        new.n = -1

    assert 0 == walks_of(lambda: whole.replace(n=2))


def test_an_abandoned_generator_costs_the_search_and_no_answer(whole):
    def block():
        with whole.draft() as new:
            yield new

    abandoned = block()
    new = next(abandoned)
    new.part.x = 3.0
    updated = Whole(part=new.part, held=[]).replace(n=2)
    new.part.x = 4.0

    assert 3.0 == updated.part.x
    assert 0 < walks_of(lambda: whole.replace(n=2))

    abandoned.close()

    assert 0 == walks_of(lambda: whole.replace(n=2))


def test_an_update_settles_a_draft_that_another_thread_has_open(whole):
    opened, looked = threading.Event(), threading.Event()
    drafts, failures = [], []

    def other():
        try:
            with whole.draft() as new:
                drafts.append(new)
                new.part.x = 2.0
                opened.set()
                assert looked.wait(60)
                new.part.x = 3.0
        except BaseException as error:  # noqa: BLE001  # raised below
            failures.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    assert opened.wait(60)
    holder = Whole(part=drafts[0].part, held=[]).replace(n=2)
    looked.set()
    thread.join()

    assert [] == failures
    assert 2.0 == holder.part.x
    assert 3.0 == drafts[0].part.x


def test_many_threads_leave_no_block_open(whole):
    def work():
        for i in range(1, 200):
            with whole.draft() as new:
                new.n = i

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 0 == walks_of(lambda: whole.replace(n=2))
