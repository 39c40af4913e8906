"""What went wrong in serving engines before, each by its symptom, and the plain runs that any of them must master."""

import random
from functools import cache
from itertools import pairwise

import pytest

from engine.config import DeviceFacts, EngineConfig, ModelFacts, resolve
from engine.errors import ContextTooLong
from engine.fake_table import Fault, continuation, small_limits
from engine.function_table import PAGE_SIZE
from engine.page_pool import Pool
from engine.prefix_cache import PrefixCache
from models import library
from models.gguf import open_gguf
from models.tokenizer import Tokenizer
from tests.engine.conftest import PieceVocabulary

END = 299


def drawn_tokens(state: int, last: int) -> int:
    return state % 256


def steps_until_the_end(driver) -> dict[str, int]:
    """Name -> the step in which its end was told, the first step being number 1."""
    ends: dict[str, int] = {}
    step = 0
    while driver.engine.has_work:
        step += 1
        driver.step()
        for name in driver.deltas:
            if driver.reason(name) and name not in ends:
                ends[name] = step
    return ends


def test_continuous_batching_ends_each_request_max_tokens_steps_later(make_driver):
    driver = make_driver(small_limits(max_in_flight=1, max_rows=64))
    for n in range(8):
        driver.add(str(n), [n] * 4, max_tokens=10 + n)
    assert steps_until_the_end(driver) == {str(n): 10 + n + 1 for n in range(8)}


def test_hybrid_prefill_costs_those_who_stream_no_step(make_driver):
    driver = make_driver(small_limits(max_in_flight=1))
    ends: dict[str, int] = {}
    for step in range(60):
        if step < 8:
            driver.add(str(step), [step] * 8, max_tokens=20)
        driver.step()
        for name in driver.deltas:
            if driver.reason(name):
                ends.setdefault(name, step)
    assert ends == {str(n): n + 20 for n in range(8)}


def test_random_arrivals_all_finish(make_driver):
    chance = random.Random(7)
    driver = make_driver(small_limits(num_pages=24), delay=3)
    asked = {}
    for n in range(40):
        asked[str(n)] = [chance.randrange(250) for _ in range(chance.randrange(1, 90))], chance.randrange(1, 60)
        driver.add(str(n), asked[str(n)][0], max_tokens=asked[str(n)][1])
        for _ in range(chance.randrange(8)):
            driver.step()
    driver.run(20_000)
    for name, (prompt, count) in asked.items():
        assert driver.tokens(name) == continuation(prompt, count, drawn_tokens)


@pytest.mark.parametrize("num_pages", [16, 17])
def test_near_the_end_of_the_context_it_neither_slows_down_nor_hangs_but_ends_with_length(make_driver, num_pages):
    driver = make_driver(small_limits(num_pages=num_pages), delay=4)  # a context of 256 tokens needs 16 pages
    driver.add("a", range(200))
    driver.add("b", range(50, 250))
    driver.run()
    assert [driver.reason(name) for name in "ab"] == ["length", "length"]
    assert [len(driver.tokens(name)) for name in "ab"] == [56, 56]
    assert driver.table.num_rows < 2 * (256 + 32)


def test_it_does_not_wedge_after_thousands_of_requests(make_driver):
    driver = make_driver(small_limits(num_pages=10), delay=2)
    for n in range(2500):
        driver.add(str(n), [n % 256, n % 7, 3], max_tokens=1 + n % 3)
        if n % 10 == 9:
            driver.run()
            driver.deltas.clear()


def test_a_burst_of_seventy_is_queued_and_not_a_crash(make_driver):
    driver = make_driver(small_limits(num_pages=12, max_slots=4), delay=2)
    for n in range(70):
        driver.add(str(n), [n] * 10, max_tokens=12)
    driver.run()
    assert all(driver.tokens(str(n)) == continuation([n] * 10, 12, drawn_tokens) for n in range(70))


def test_ending_a_sequence_that_others_were_forked_from_leaves_them_alone(make_driver):
    driver = make_driver(delay=4)
    driver.add("first", range(40), max_tokens=50)
    for _ in range(8):
        driver.step()
    for n in range(3):
        driver.add(str(n), [*range(35), n], max_tokens=30)
    for _ in range(3):
        driver.step()
    driver.abort("first")
    driver.engine.state.cache.evict(64, driver.table.last_submitted)
    driver.run()
    for n in range(3):
        assert driver.cached(str(n)) == 35
        assert driver.tokens(str(n)) == continuation([*range(35), n], 30, drawn_tokens)


def test_the_last_reply_is_not_prefilled_again_because_of_its_end_token(make_driver):
    driver = make_driver(next_token=lambda state, last: END if state % 9 == 0 else state % 256)
    chat: list[int] = list(range(40, 60))
    reused = []
    for turn in range(6):
        name = f"turn {turn}"
        driver.add(name, chat, max_tokens=30)
        driver.run()
        reused.append(driver.cached(name))
        told = driver.tokens(name)
        known = len(chat) + len(told) - (driver.reason(name) == "length")
        chat = [*chat, *told, END, 5, 6]
        if turn < 5:
            expected = known
            driver.add(f"probe {turn}", chat, max_tokens=1)
            driver.run()
            assert driver.cached(f"probe {turn}") == expected
    assert reused[0] == 0
    assert all(earlier < later for earlier, later in pairwise(reused))


def test_a_prompt_too_long_is_a_typed_error_and_too_long_an_answer_ends_with_length(make_driver):
    driver = make_driver(small_limits(context_length=64, num_pages=8))
    with pytest.raises(ContextTooLong):
        driver.add("too long", range(64))
    driver.add("a", range(60))
    driver.run()
    assert (driver.reason("a"), len(driver.tokens("a"))) == ("length", 4)


@pytest.mark.parametrize("delay", [1, 4])
def test_an_interrupt_does_not_make_later_answers_empty(make_driver, delay):
    driver = make_driver(delay=delay)
    for n in range(20):
        name = str(n)
        driver.add(name, range(30), max_tokens=20)
        for _ in range(n % 7):
            driver.step()
        driver.abort(name)
    driver.add("last", range(30), max_tokens=20)
    driver.run()
    assert driver.tokens("last") == continuation(range(30), 20, drawn_tokens)
    assert driver.cached("last") == 29


def test_the_same_prompt_again_and_again_gives_the_same_answer(make_driver):
    driver = make_driver(small_limits(num_pages=9), delay=3)
    answers = []
    for n in range(12):
        driver.add(str(n), range(50), max_tokens=40)
        driver.run()
        answers.append(driver.tokens(str(n)))
    assert all(answer == continuation(range(50), 40, drawn_tokens) for answer in answers)


def test_a_token_out_of_range_ends_one_request_and_not_the_engine(make_driver):
    driver = make_driver(next_token=lambda state, last: 300 if last == 7 else 1, delay=3)
    driver.add("bad", [7], max_tokens=5)
    driver.add("good", [8], max_tokens=50)
    driver.run()
    assert (driver.reason("bad"), driver.reason("good")) == ("error", "length")


def test_a_step_that_fails_while_streams_ride_along_costs_only_the_prompts(make_driver):
    driver = make_driver(delay=3)
    driver.add("stream", range(5), max_tokens=60)
    for _ in range(8):
        driver.step()
    driver.add("bad", range(100, 160), max_tokens=5)
    driver.table.faults.append(Fault("prefill", driver.table.last_submitted + 2, RuntimeError("boom")))
    driver.run()
    assert driver.reason("bad") == "error"
    assert driver.tokens("stream") == continuation(range(5), 60, drawn_tokens)


def test_eviction_does_not_keep_the_oldest_and_drop_the_newest(make_driver):
    driver = make_driver(small_limits(num_pages=8))
    for n in range(30):
        driver.add(str(n), [n] * 20, max_tokens=2)
        driver.run()
    driver.add("newest", [29] * 20, max_tokens=1)
    driver.run()
    assert driver.cached("newest") == 19
    driver.add("oldest", [0] * 20, max_tokens=1)
    driver.run()
    assert driver.cached("oldest") == 0


def test_requests_are_not_served_one_after_another(make_driver):
    driver = make_driver(small_limits(max_in_flight=1, max_rows=64))
    for n in range(8):
        driver.add(str(n), [n] * 4, max_tokens=20)
    while not any(map(driver.reason, driver.deltas)):
        driver.step()
        assert len({len(driver.tokens(name)) for name in driver.deltas}) == 1
    assert driver.table.last_submitted == 20


def test_new_prompts_do_not_stall_the_stream_that_runs(make_driver):
    driver = make_driver(small_limits(max_in_flight=1, max_rows=16))
    driver.add("stream", [1], max_tokens=150)
    driver.run_until(lambda: driver.tokens("stream"))
    since_last = longest = 0
    for step in range(120):
        if step % 15 == 0:
            driver.add(f"prompt {step}", [step] * 100, max_tokens=3)
        before = len(driver.tokens("stream"))
        driver.step()
        since_last = 0 if len(driver.tokens("stream")) > before else since_last + 1
        longest = max(longest, since_last)
    assert longest == 0
    driver.run()


def test_a_fork_of_what_is_kept_has_the_right_pages_and_no_more_than_it_shares():
    """Against a plain list of all that was kept, on tokens so few that nearly everything forks somewhere."""
    chance = random.Random(5)
    pool = Pool(400)
    cache, kept, tokens_on = PrefixCache(pool), [], {}
    for _ in range(120):
        length = chance.randrange(1, 50)
        beginning = chance.choice(kept) if kept and chance.random() < 0.8 else []
        tokens = beginning[: chance.randrange(len(beginning) + 1)]
        tokens = tokens + [chance.randrange(3) for _ in range(length)]
        expected = max((common_length(tokens, other) for other in kept), default=0)
        found = cache.match(tokens, len(tokens))
        assert found.num_tokens == expected
        for index, page in enumerate([*found.pages, *([found.partial] if found.partial >= 0 else [])]):
            held = min(expected, (index + 1) * PAGE_SIZE)
            assert tokens_on[page][:held] == tokens[:held]
        pages = pool.take(-(-len(tokens) // PAGE_SIZE))
        for index, page in enumerate(pages):
            tokens_on[page] = tokens[: (index + 1) * PAGE_SIZE]
        cache.insert(tokens, pages, 0)
        pool.release(pages, 0)
        kept.append(tokens)
        cache.check_integrity()


def common_length(one: list[int], other: list[int]) -> int:
    return next(
        (n for n, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), min(len(one), len(other))
    )


@cache
def starter_tokenizer() -> Tokenizer:
    path = library.starter()
    assert path is not None, "the starter model belongs to the development dependencies"
    with open_gguf(path) as gguf:
        return Tokenizer.from_metadata(gguf.metadata)


EMOJI = "Hé 🤔👩‍👩‍👧‍👦 你好，世界。𝄞 ok"


def recite(make_driver, text: str, **options):
    """A driver that has answered with a real tokenizer's tokens of this text, some of which end inside a character."""
    tokenizer = starter_tokenizer()
    pieces = [tokenizer.token_bytes(token) for token in tokenizer.encode(text)]
    assert any(not is_whole(piece) for piece in pieces)
    driver = make_driver(vocabulary=PieceVocabulary(pieces), delay=2)
    driver.add("a", (PieceVocabulary.start,), **options)
    driver.run()
    return driver


def is_whole(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_emoji_and_chinese_are_not_streamed_as_broken_characters(make_driver):
    driver = recite(make_driver, EMOJI)
    shown = ""
    for delta in driver.deltas["a"]:
        shown += delta.text
        assert EMOJI.startswith(shown)
    assert shown == EMOJI
    assert len([delta for delta in driver.deltas["a"] if delta.text]) > 10


@pytest.mark.parametrize("stop", ["🤔", " 🤔", "👧", "\u200d👦", "世", "，世界", "𝄞"])
def test_a_stop_string_whose_tokens_end_inside_its_characters_is_cut_off_whole(make_driver, stop):
    driver = recite(make_driver, EMOJI, stop=(stop,))
    assert (driver.text(), driver.reason()) == (EMOJI.split(stop)[0], "stop")


def test_a_stop_string_that_only_begins_inside_an_emoji_takes_nothing_from_it(make_driver):
    driver = recite(
        make_driver, EMOJI, stop=("🤕", "👩‍👩‍👧‍👧")
    )  # the first share three bytes of four, and all but the last
    assert (driver.text(), driver.reason()) == (EMOJI, "stop")


def test_an_answer_that_never_stops_by_itself_ends_with_the_context(make_driver):
    driver = make_driver(small_limits(context_length=100, num_pages=32))
    driver.add("a", range(30))
    driver.run(200)
    assert (driver.reason("a"), len(driver.tokens("a"))) == ("length", 70)


@pytest.mark.parametrize("end", [END, 260, 12])
def test_none_of_a_models_end_tokens_is_ignored(make_driver, end):
    """Whichever of its several end tokens a model draws, also one that has a text of its own."""

    class SeveralEnds(PieceVocabulary):
        stop_ids = frozenset({END, 260, 12})

    vocabulary = SeveralEnds([b"word "] * 298)
    vocabulary.recite = lambda state, last: end if last == 5 else 5
    driver = make_driver(vocabulary=vocabulary, delay=3)
    driver.add("a", (1,))
    driver.run()
    assert (driver.tokens(), driver.text(), driver.reason()) == ([5], "word ", "stop")


@pytest.mark.parametrize("free_gib", [4, 6, 24, 200])
def test_many_sequences_ask_for_no_more_memory_than_there_is_and_estimates_are_not_absurd(free_gib):
    model = ModelFacts(
        vocab_size=128_256,
        trained_context=131_072,
        weight_bytes=3 << 30,
        page_bytes=2 << 20,
        layer_page_bytes=64 << 10,
        row_bytes=300_000,
        sample_bytes=520_000,
        logits_bytes=4 * 128_256,
        slot_bytes=4 * 128_256,
        position_bytes=512,
        trained_window=0,
    )
    config, device = EngineConfig(mode="server"), DeviceFacts(free_gib << 30, 1 << 30, "the test")
    limits, estimate = resolve(config, model, device)
    assert estimate.total <= free_gib << 30
    assert estimate.context == limits.num_pages * model.page_bytes
    assert estimate.working_space < 512 << 20
    assert limits.num_pages * model.layer_page_bytes <= 1 << 30
