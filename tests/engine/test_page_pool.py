"""Pool: every id is free, held or leaving, and what leaves comes back with its step and not before."""

import pytest

from engine.page_pool import Pool


def test_released_ids_return_when_their_step_has_retired():
    pool = Pool(4)
    held = pool.take(3)
    pool.release(held, last_submitted=5)
    assert pool.num_free == 1
    pool.retire(4)
    assert pool.num_free == 1
    pool.retire(5)
    assert sorted(pool.take(4)) == [0, 1, 2, 3]


def test_release_after_the_last_step_has_retired_is_immediate():
    pool = Pool(2)
    pool.retire(7)
    pool.release(pool.take(2), last_submitted=7)
    assert pool.num_free == 2


def test_shared_ids_stay_until_the_last_holder_lets_go():
    pool = Pool(2)
    held = pool.take(1)
    pool.share(held)
    pool.release(held, last_submitted=0)
    pool.recount(held)
    assert pool.num_free == 1
    pool.release(held, last_submitted=0)
    assert pool.num_free == 2


@pytest.mark.parametrize("held", [[], [0], [0, 1, 1]])
def test_recount_sees_a_wrong_holder(held):
    pool = Pool(3)
    pool.take(2)
    with pytest.raises(AssertionError):
        pool.recount(held)


def test_releasing_twice_is_a_bug():
    pool = Pool(1)
    held = pool.take(1)
    pool.release(held, last_submitted=1)
    with pytest.raises(AssertionError, match="twice"):
        pool.release(held, last_submitted=1)
