"""What the endpoint leaves on disk, and what its clients and its owner have to say about that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from engine.fake_loader import ANSWER, fake_loader
from engine.generate import load_blocking
from engine.loading import LoadedModel, LoadOptions
from engine.server.settings import EndpointSettings
from engine.threaded import ThreadedEngine
from engine.tiers.disk_limits import DiskLimits
from engine.tiers.notes import Notes
from engine.tiers.settings import TierSettings
from tests.server.conftest import OPTIONS, Served

FINGERPRINT = b"pretend model 1B"
QUESTION = [{"role": "user", "content": "What is an inglenook, and is it warm?"}]
ROOMY = DiskLimits(budget_bytes=1 << 30, reserve_bytes=0, daily_write_bytes=1 << 30)


@dataclass(frozen=True)
class Kept:
    """An endpoint whose engine keeps what it computes, and the folder where it does."""

    served: Served
    root: Path

    def ask(self, **fields: object) -> int:
        """One chat; returns its cached tokens when everything that is to be written is written."""
        reply = self.served.chat(messages=QUESTION, **fields)
        assert reply.status == 200, reply.body
        assert reply.json["choices"][0]["message"]["content"] == ANSWER
        self.served.wait_until_idle()
        store = self.served.engine._keeping._store
        assert store is not None and store.flush(5.0)
        return reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]

    @property
    def on_disk(self) -> bool:
        """Whether anything of the conversation is, pages or answer; both or neither."""
        notes = Notes(self.root)
        answer = notes.recall_answer(FINGERPRINT, ANSWER)
        notes.close()
        blocks = list(self.root.rglob("*.safetensors"))
        assert bool(blocks) == (answer is not None)
        return bool(blocks)


@pytest.fixture
def kept(serve: Callable[..., Served], tmp_path: Path) -> Callable[..., Kept]:
    """kept(EndpointSettings' fields): such an endpoint on an empty folder."""

    def start(**settings: object) -> Kept:
        def load(options: LoadOptions, *others: object) -> LoadedModel:
            return replace(fake_loader()(options, *others), fingerprint=FINGERPRINT)

        engine = ThreadedEngine(load)
        load_blocking(engine, replace(OPTIONS, tiers=TierSettings(root=tmp_path, host_bytes=1 << 20, disk=ROOMY)))
        return Kept(serve(engine=engine, settings=EndpointSettings(**settings)), tmp_path)

    return start


@pytest.mark.parametrize("fields", [{}, {"prompt_cache_retention": "24h"}, {"prompt_cache_retention": None}])
def test_chats_are_kept(kept: Callable[..., Kept], fields: dict) -> None:
    endpoint = kept()
    assert endpoint.ask(**fields) == 0
    assert endpoint.on_disk
    assert endpoint.ask(**fields) > 32


@pytest.mark.parametrize("word", ["in_memory", "in-memory"])
def test_in_memory_leaves_nothing_on_disk(kept: Callable[..., Kept], word: str) -> None:
    """And is in memory all the same."""
    endpoint = kept()
    assert endpoint.ask(prompt_cache_retention=word) == 0
    assert not endpoint.on_disk
    assert endpoint.ask(prompt_cache_retention=word) > 32
    assert not endpoint.on_disk
    endpoint.ask(prompt_cache_retention="24h")
    assert endpoint.on_disk


@pytest.mark.parametrize("word", ["forever", "", "24H", "0h"])
def test_other_words_are_refused(kept: Callable[..., Kept], word: str) -> None:
    reply = kept().served.chat(prompt_cache_retention=word)
    assert (reply.status, reply.error["param"]) == (400, "prompt_cache_retention")


def test_a_wrong_type_is_refused(kept: Callable[..., Kept]) -> None:
    reply = kept().served.chat(prompt_cache_retention=24)
    assert (reply.status, reply.error["param"]) == (400, "prompt_cache_retention")


def test_who_wants_no_cache_uses_none_and_leaves_none(kept: Callable[..., Kept]) -> None:
    endpoint = kept()
    for _ in range(2):
        assert endpoint.ask(cache_prompt=False) == 0
    assert not endpoint.on_disk
    endpoint.ask()
    assert endpoint.ask(cache_prompt=False) == 0
    assert endpoint.ask(cache_prompt=True) > 32


@pytest.mark.parametrize("fields", [{}, {"prompt_cache_retention": "24h"}])
def test_the_owner_may_forbid_it(kept: Callable[..., Kept], fields: dict) -> None:
    """Whatever the client asks for; what is in memory is no trace."""
    endpoint = kept(persist=False)
    assert endpoint.ask(**fields) == 0
    assert not endpoint.on_disk
    assert endpoint.ask(**fields) > 32


def test_without_the_cache_nothing_is_kept(kept: Callable[..., Kept]) -> None:
    endpoint = kept(use_cache=False)
    for _ in range(2):
        assert endpoint.ask(cache_prompt=True, prompt_cache_retention="24h") == 0
    assert not endpoint.on_disk
