"""Text from bytes in pieces: the same text however it is cut, and nothing held back without need."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.detokenizer import StopFinder, TextDecoder

STOPS = st.lists(st.text("ab☕", min_size=1, max_size=4), min_size=1, max_size=3)


def cut(text: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def run_finder(stops: list[str], pieces: list[bytes]) -> tuple[bytes, bool]:
    finder, shown = StopFinder(stops), b""
    for piece in pieces:
        text, stopped = finder.feed(piece)
        shown += text
        if stopped:
            return shown + finder.flush(), True
    return shown + finder.flush(), False


@given(STOPS, st.text("ab☕c", max_size=12), st.lists(st.integers(0, 50), max_size=8))
def test_the_cut_does_not_depend_on_where_tokens_end(stops, text, cuts):
    data = text.encode()
    ends = [
        (end, -len(stop)) for end in range(len(text) + 1) for stop in stops if text[:end].endswith(stop)
    ]  # the plain rule: the stop that is complete first, the longest of those
    expected = text[: min(ends)[0] + min(ends)[1]] if ends else text
    assert run_finder(stops, cut(data, cuts)) == (expected.encode(), bool(ends))


@given(STOPS, st.text("ab☕c", max_size=12), st.lists(st.integers(0, 50), max_size=8))
def test_only_a_possible_stop_is_held_back(stops, text, cuts):
    finder, fed, shown = StopFinder(stops), b"", b""
    for piece in cut(text.encode(), cuts):
        out, stopped = finder.feed(piece)
        fed, shown = fed + piece, shown + out
        if stopped:
            return
        held = fed[len(shown) :]
        assert not held or any(stop.encode().startswith(held) for stop in stops)


@given(st.binary(max_size=30), st.lists(st.integers(0, 50), max_size=10))
def test_pieces_decode_like_the_whole(data, cuts):
    decoder = TextDecoder()
    text = "".join(decoder.feed(piece) for piece in cut(data, cuts)) + decoder.feed(b"", final=True)
    assert text == data.decode("utf-8", "replace")


@given(st.text(max_size=20), st.lists(st.integers(0, 80), max_size=10))
def test_valid_text_is_never_shown_broken(text, cuts):
    decoder, shown = TextDecoder(), ""
    for piece in cut(text.encode(), cuts):
        shown += decoder.feed(piece)
        assert text.startswith(shown)
    assert shown == text


def test_an_emoji_appears_with_its_last_byte():
    decoder = TextDecoder()
    parts = [decoder.feed(bytes([byte])) for byte in "🤔".encode()]
    assert parts == ["", "", "", "🤔"]


def test_a_byte_that_can_become_nothing_is_replaced_at_once():
    assert TextDecoder().feed(b"\xff") == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("stop", ["\ud800", "\x00"])
def test_odd_stop_strings_do_no_harm(stop):
    assert StopFinder([stop]).feed(b"abc") == (b"abc", False)


@pytest.mark.parametrize("stops", [["a" * 30 + "b"], ["ab" * 12, "b" * 24, "aab"]])
def test_the_work_for_a_token_does_not_grow_with_the_answer(stops):
    """What is looked at for each token is the token and what is held back, and that is shorter than a stop string."""
    finder, shown = StopFinder(stops), 0
    longest = max(map(len, stops))
    for fed in range(1, 20_001):
        text, stopped = finder.feed(b"a")
        assert not stopped
        shown += len(text)
        assert fed - shown == len(finder._held) < longest


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        ([b"\xe4\xbd", b"\xa0"], ["", "你", ""]),
        ([b"\xe4\xbd", b"A"], ["", "\ufffdA", ""]),  # the character will never be whole
        ([b"\xf0\x9f", b"\xe4\xbd\xa0"], ["", "\ufffd你", ""]),
        ([b"\x80", b"\x80"], ["\ufffd", "\ufffd", ""]),
        ([b"ok \xf0\x9f\xa4"], ["ok ", "\ufffd"]),
        ([b"\xc0\xaf", b"\xed\xa0\x80"], ["\ufffd\ufffd", "\ufffd\ufffd\ufffd", ""]),  # overlong; half a surrogate
    ],
)
def test_bytes_that_are_no_text_are_marked_and_take_nothing_along(pieces, texts):
    decoder = TextDecoder()
    assert [*map(decoder.feed, pieces), decoder.feed(b"", final=True)] == texts
