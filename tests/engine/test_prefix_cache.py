"""The radix tree by itself: what matches, who holds which page, and in what order pages go."""

import pytest

from engine.page_pool import Pool
from engine.prefix_cache import PrefixCache


class Tree:
    """A cache on a small pool; keep() inserts tokens on fresh pages and lets go of them as a sequence that ends."""

    def __init__(self, count: int = 16) -> None:
        self.pool = Pool(count)
        self.cache = PrefixCache(self.pool)

    def keep(self, tokens) -> list[int]:
        pages = self.pool.take(-(-len(tokens) // 16))
        self.cache.insert(tokens, pages, 0)
        self.pool.release(pages, 0)
        self.check()
        return pages

    def match(self, tokens) -> int:
        found = self.cache.match(tokens, len(tokens))
        self.check()
        return found.num_tokens

    def check(self) -> None:
        self.cache.check_integrity()
        self.pool.recount(self.cache.pages_held())


@pytest.fixture
def tree() -> Tree:
    return Tree()


def numbers(count: int, start: int = 0) -> list[int]:
    return list(range(start, start + count))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 40])
def test_what_was_kept_matches_to_the_token(tree, length):
    pages = tree.keep(numbers(length))
    assert tree.match(numbers(length)) == length
    assert tree.match(numbers(60)) == length
    assert tree.match([*numbers(length - 1), 999]) == length - 1
    assert tree.cache.match(numbers(length), length).pages == pages[: length // 16]


def test_clearing_restores_every_page(tree):
    tree.keep(numbers(40))
    tree.keep(numbers(20, 100))
    tree.cache.pin(numbers(40), 16)
    tree.cache.clear(0)
    tree.check()
    assert tree.pool.num_free == 16
    assert tree.match(numbers(40)) == 0


def test_an_unfinished_page_is_lengthened_and_a_longer_one_is_kept(tree):
    tree.keep(numbers(5))
    tree.keep(numbers(9))
    assert tree.cache.num_pages == 1
    assert tree.match(numbers(9)) == 9
    tree.keep(numbers(3))
    assert tree.cache.num_pages == 1
    tree.keep(numbers(35))
    assert tree.cache.num_pages == 3
    assert tree.match(numbers(40)) == 35


def test_the_sequence_that_brought_a_page_goes_on_in_it(tree):
    pages = tree.pool.take(1)
    tree.cache.insert(numbers(5), pages, 0)
    tree.cache.insert(numbers(12), pages, 0)
    tree.pool.recount([*pages, *tree.cache.pages_held()])
    tree.pool.release(pages, 0)
    tree.check()
    assert (tree.match(numbers(12)), tree.cache.num_pages) == (12, 1)


def test_forks_inside_a_page_and_after_it(tree):
    tree.keep([0, 1, 2, 4])
    tree.keep([0, 1, 2, 5])
    assert tree.match([0, 1, 2, 4]) == 4
    assert tree.match([0, 1, 2, 5]) == 4
    assert tree.match([0, 1, 2, 6]) == 3
    tree.keep([*numbers(16), 7, 8])
    tree.keep([*numbers(16), 9])
    assert tree.match([*numbers(16), 7, 8, 1]) == 18
    assert tree.match([*numbers(16), 9, 8]) == 17


def test_the_match_with_the_most_tokens_is_found_among_many(tree):
    for last in range(12):
        tree.keep([1, 2, last, last, last])
    assert tree.match([1, 2, 7, 7, 8]) == 4
    assert tree.match([1, 2, 99]) == 2


def test_a_limit_leaves_something_to_compute(tree):
    pages = tree.keep(numbers(32))
    found = tree.cache.match(numbers(32), 31)
    assert (found.pages, found.partial, found.num_tokens) == (pages[:1], pages[1], 31)


def test_the_longest_unused_leaf_goes_first_page_by_page(tree):
    tree.keep(numbers(32))
    tree.keep(numbers(32, 100))
    tree.keep(numbers(32, 200))
    tree.match(numbers(16))  # its first page is used, its second is not
    assert tree.cache.evict(1, 0) == 1
    tree.check()
    assert [tree.match(numbers(32, start)) for start in (0, 100, 200)] == [16, 32, 32]
    tree.match(numbers(32, 100))
    assert tree.cache.evict(2, 0) == 2  # 0..15 was used before both others
    assert [tree.match(numbers(32, start)) for start in (0, 100, 200)] == [0, 32, 16]


def test_the_oldest_of_many_goes_and_never_the_newest(tree):
    for start in range(0, 160, 10):
        tree.keep(numbers(8, start))
    for gone in range(5):
        tree.cache.evict(1, 0)
        there = [start for start in range(0, 160, 10) if tree.cache.match(numbers(8, start), 8).num_tokens == 8]
        assert there == list(range(10 * (gone + 1), 160, 10))


def test_pages_that_somebody_else_holds_stay(tree):
    pages = tree.keep(numbers(32))
    tree.pool.share(pages)
    assert tree.cache.evict(4, 0) == 0
    tree.pool.release(pages, 0)
    assert tree.cache.evict(4, 0) == 2


def test_pinned_pages_stay_whatever_happens(tree):
    tree.keep(numbers(20))
    assert not tree.cache.pin(numbers(20), 1)
    assert tree.cache.pin(numbers(20), 2)
    assert tree.cache.pin(numbers(20), 0)  # nothing more to pin
    tree.keep(numbers(40))
    assert tree.cache.evict(9, 0) == 1
    assert tree.match(numbers(40)) == 32


def test_what_is_evicted_leaves_with_the_last_step(tree):
    tree.keep(numbers(16))
    tree.cache.evict(1, last_submitted=3)
    assert (tree.pool.num_free, tree.pool.num_leaving) == (15, 1)
    tree.pool.retire(3)
    assert tree.pool.num_free == 16


def test_pages_that_nobody_uses_are_not_trapped_by_one_in_use(tree):
    tree.keep(numbers(40))
    pages = tree.pool.take(3)
    tree.cache.insert(numbers(45), pages, 0)
    tree.pool.share(pages[2:])
    tree.pool.release(pages, 0)  # somebody goes on with the last page only
    assert tree.cache.evict(16, 0) == 2
    tree.pool.recount(pages[2:])


def test_of_two_copies_the_one_in_use_is_kept(tree):
    tree.keep(numbers(32))
    pages = tree.pool.take(2)
    tree.cache.insert(numbers(32), pages, 0)
    tree.pool.recount([*pages, *tree.cache.pages_held()])
    assert sorted(tree.cache.pages_held()) == sorted(pages)
    assert tree.pool.num_free == 14


def test_what_follows_a_dropped_page_is_kept_only_where_the_tree_still_has_that_page(tree):
    pages = tree.keep(numbers(32))
    own = tree.pool.take(2)
    tree.cache.insert(numbers(60), [-1, -1, *own], 0)
    tree.pool.release(own, 0)
    assert tree.match(numbers(60)) == 60
    assert tree.cache.match(numbers(60), 60).pages == [*pages, own[0]]
    others = tree.pool.take(2)
    tree.cache.insert(numbers(40, 100), [others[0], -1, others[1]], 0)
    tree.pool.release(others, 0)
    assert tree.match(numbers(40, 100)) == 16
