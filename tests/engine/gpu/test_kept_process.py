"""Conversations that outlive real processes with SmolLM2: commands that end, are killed, and find each other's files.

Whatever was restored, the tokens are those of an engine that computes everything.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from desktop import cli
from desktop.commands import terminal
from engine.loading import LoadedModel
from engine.tiers.chain import chain
from models.gguf import open_gguf
from tests.engine.gpu.keeping import Keeper, open_tiers

ROOT = Path(__file__).parents[3]
LIMIT_S = 120
FEW, MANY = 8, 400
DAMAGES = ("flipped", "truncated", "swapped", "zeroed")

CHAT = [
    {"role": "user", "content": "What is an inglenook, and why did people build one beside the fire of a cold house?"},
    {"role": "assistant", "content": "It is a corner beside the hearth, with a bench where people sat to keep warm."},
    {"role": "user", "content": "Name ten things that one would have found there, and say what each was for."},
]

GO_ON = {"role": "user", "content": "Go on."}
WINTER = [{"role": "user", "content": "Tell me of a long winter in the mountains, as a poet would. " * 3}]

Message = dict[str, str]
Cold = Callable[[list[int], int], list[int]]


class Home:
    """A user's folder, and commands that use it: as processes, or in this one where only the files matter."""

    def __init__(self, path: Path, model: Path) -> None:
        self.path, self.model = path, model
        self.cache = path / "prefix-cache"
        self.environment = {**os.environ, "INGLENOOK_HOME": str(path), "PYTHONPATH": str(ROOT)}

    @property
    def blocks(self) -> list[Path]:
        return sorted(self.cache.rglob("*.safetensors"))

    def start(self, *argv: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "desktop", *argv],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def run(self, *argv: str) -> str:
        process = self.start(*argv)
        out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, err
        assert "Traceback" not in err
        return out

    def arguments(self, messages: list[Message], count: int, *options: str) -> list[str]:
        file = self.path / "messages.json"
        file.write_text(json.dumps(messages), encoding="utf-8")
        counted = ["--messages", str(file), "--max-tokens", str(count), "--ignore-eos"]
        return ["generate", str(self.model), *counted, *options]

    def generate(self, messages: list[Message], *options: str, count: int = FEW) -> dict:
        """What a process says of a conversation."""
        return json.loads(self.run(*self.arguments(messages, count, *options), "--json"))

    def kill(self, messages: list[Message], num_characters: int, then_s: float) -> str:
        """What a process had said when it was killed: so many characters at least, and some moments more."""
        process = self.start(*self.arguments(messages, MANY))
        assert process.stdout is not None and process.stderr is not None
        try:
            text = process.stdout.read(num_characters)
            time.sleep(then_s)
            assert process.poll() is None, "the answer ended before the kill"
        finally:
            process.kill()
        rest, _ = process.communicate(timeout=LIMIT_S)
        return text + rest


@pytest.fixture
def home(tmp_path: Path, starter_path: Path) -> Home:
    return Home(tmp_path, starter_path)


@pytest.fixture
def here(home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict]:
    """here(messages, options): `generate` in this process, for what starting one adds nothing to."""
    monkeypatch.setenv("INGLENOOK_HOME", str(home.path))
    monkeypatch.setattr(terminal, "quiet_logs", lambda: None)

    def generate(messages: list[Message], *options: str, count: int = 2) -> dict:
        capsys.readouterr()
        assert cli.main([*home.arguments(messages, count, *options), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return generate


@pytest.fixture(scope="module")
def model(model_of: Callable[..., LoadedModel], starter_path: Path) -> LoadedModel:
    return model_of(starter_path, kv_type="f16")


@pytest.fixture(scope="module")
def cold(model: LoadedModel) -> Cold:
    """cold(prompt, count): the answer, computed in whole."""
    answers: dict[tuple[int, ...], list[int]] = {}

    def answer(prompt: list[int], count: int = FEW) -> list[int]:
        known = answers.get(tuple(prompt), [])
        if len(known) < count:
            known = Keeper(model, None).tell("cold", prompt, count)
            answers[tuple(prompt)] = known
        return known[:count]

    return answer


def cached(answer: dict) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_the_next_process_goes_on_where_the_last_one_ended(home: Home, cold: Cold) -> None:
    first = home.generate(CHAT)
    prompt = first["prompt_token_ids"]
    assert (cached(first), first["token_ids"]) == (0, cold(prompt, FEW))
    second = home.generate(CHAT)
    assert (cached(second), second["token_ids"]) == (len(prompt) - 1, first["token_ids"])
    longer = [*CHAT, {"role": "assistant", "content": first["text"]}, GO_ON]
    third = home.generate(longer)
    seen = [*prompt, *first["token_ids"]]
    assert third["prompt_token_ids"][: len(seen)] == seen
    assert cached(third) == len(seen) - 1  # the last token drawn was never fed
    assert third["token_ids"] == cold(third["prompt_token_ids"], FEW)
    for index, path in enumerate(home.blocks):
        damage(home.blocks, path, DAMAGES[index % len(DAMAGES)], random.Random(index))
    fourth = home.generate(longer)
    assert (cached(fourth), fourth["token_ids"]) == (0, third["token_ids"])


@pytest.mark.parametrize("count", [1, pytest.param(20, marks=pytest.mark.long)])
def test_killed_in_the_midst_of_a_long_answer(home: Home, model: LoadedModel, cold: Cold, count: int) -> None:
    """At any instant behind its first words the whole prompt outlives the process."""
    chance = random.Random(count)
    prompt = model.chat_template.prompt_ids(CHAT, model.tokenizer)
    for _ in range(count):
        shutil.rmtree(home.cache, ignore_errors=True)
        said = home.kill(CHAT, chance.randrange(60, 200 + 20 * count), chance.uniform(0.0, 0.5))
        following = home.generate([*CHAT, {"role": "assistant", "content": said}, GO_ON])
        assert following["prompt_token_ids"][: len(prompt)] == prompt
        assert cached(following) >= len(prompt)
        assert following["token_ids"] == cold(following["prompt_token_ids"], FEW)


@pytest.mark.parametrize("count", [2, pytest.param(20, marks=pytest.mark.long)])
def test_killed_while_blocks_are_written(home: Home, model: LoadedModel, cold: Cold, count: int) -> None:
    """Whatever is on disk then, another engine says what one does that computes everything."""
    chance = random.Random(1000 + count)
    prompt = model.chat_template.prompt_ids(CHAT, model.tokenizer)
    found = []
    for _ in range(count):
        shutil.rmtree(home.cache, ignore_errors=True)
        home.kill(CHAT, 1, chance.uniform(0.0, 0.4))
        server = restart(home, model)
        assert server.tell("next", prompt, FEW) == cold(prompt, FEW)
        found.append(server.cached("next"))
        assert server.store is not None and server.store.close(5.0)
    assert all(0 <= number < len(prompt) for number in found)
    assert any(found), "no process came to keep anything"


def restart(home: Home, model: LoadedModel) -> Keeper:
    """What a process does that begins with this folder, on a device that knows nothing."""
    [folder] = [path for path in home.cache.iterdir() if path.is_dir()] or [home.cache / bytes(16).hex()]
    store = open_tiers(model, home.cache, host_bytes=0, fingerprint=bytes.fromhex(folder.name))
    return Keeper(model, store)


def damage(blocks: list[Path], path: Path, how: str, chance: random.Random) -> None:
    """Do to a file what drives, file systems and people do; it is as long as before unless it is cut."""
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif how == "truncated":
        del data[chance.randrange(len(data)) :]
    elif how == "swapped":
        data = bytearray(chance.choice([each for each in blocks if each != path]).read_bytes())
    else:
        first = chance.choice([place for place in range(0, len(data), 101) if data[place]])  # there are zeros already
        end = min(len(data), first + 64 + chance.randrange(4096))
        data[first:end] = bytes(end - first)
    path.write_bytes(data)


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.long)])
def test_damaged_blocks_cost_a_prefill_and_no_token(model: LoadedModel, tmp_path: Path, count: int) -> None:
    """One of the two blocks of a conversation at a time, mostly the one that is soon computed."""
    length, chance = 70, random.Random(count)
    text = model.tokenizer.encode("They sat beside the fire and told each other how the winter had been. " * 5)
    prompt, other = [[2000 + number, *text[: length - 1]] for number in range(2)]
    pristine, root = tmp_path / "pristine", tmp_path / "damaged"
    store = open_tiers(model, pristine)
    expected = Keeper(model, store).tell("first", prompt, 4)
    [first] = [key.hex() for parent, key, _ in chain(store.root, prompt) if parent == store.root]
    Keeper(model, store).tell("other", other, 4)
    assert store.close(5.0)
    for number in range(count):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(pristine, root)
        blocks = sorted(root.rglob("*.safetensors"))
        which = 0 if number % 5 == 0 else 1
        [path] = [path for path in blocks if path.stem.split("-")[1 - which] == first]
        damage(blocks, path, DAMAGES[number % len(DAMAGES)], chance)
        store = open_tiers(model, root, host_bytes=0)
        server = Keeper(model, store)
        assert server.tell("again", prompt, 4) == expected
        assert server.cached("again") == 64 * which
        assert path.exists(), "it was not written anew"
        assert store.close(5.0)


def test_another_file_or_setting_gets_nothing(home: Home, here: Callable[..., dict], starter_path: Path) -> None:
    """Another type of keys and values, one byte of a weight, one of the name in the metadata, and as it was again."""
    home.model = home.path / starter_path.name
    shutil.copyfile(starter_path, home.model)
    original = home.model.read_bytes()
    with open_gguf(home.model) as gguf:
        name = str(gguf.metadata["general.name"]).encode()
        weight = gguf.tensors["blk.3.attn_k.weight"].data.tobytes()
    prompt = here(WINTER)["prompt_token_ids"]
    assert cached(here(WINTER, "--kv-type", "f32")) == 0
    for place in (original.index(weight) + len(weight) // 2, original.index(name)):
        with home.model.open("r+b") as file:
            file.seek(place)
            file.write(bytes([original[place] ^ 1]))
        changed = here(WINTER)
        assert (changed["prompt_token_ids"], cached(changed)) == (prompt, 0)
        home.model.write_bytes(original)
    assert cached(here(WINTER)) == len(prompt) - 1


@pytest.mark.parametrize("option", ["--no-prefix-cache", "--no-disk-cache"])
def test_who_wants_nothing_on_disk_finds_nothing_there(home: Home, here: Callable[..., dict], option: str) -> None:
    assert cached(here(WINTER, option)) == 0
    assert not home.cache.exists()


def test_clearing_the_cache_under_a_server(home: Home, model: LoadedModel, cold: Cold) -> None:
    """It answers as before, from what it has in memory or anew, and keeps what comes later."""
    with serving(home) as ask:
        first = ask(CHAT)
        wait_for(lambda: len(home.blocks) >= 2)
        assert json.loads(home.run("cache", "clear", "--json"))["removed_blocks"] >= 2
        assert ask(CHAT) == first
        longer = [*CHAT, {"role": "assistant", "content": first}, GO_ON]
        told = [(messages, ask(messages)) for messages in (longer, WINTER)]
        assert ask(CHAT) == first
    for messages, text in [(CHAT, first), *told]:
        prompt = model.chat_template.prompt_ids(messages, model.tokenizer)
        assert model.tokenizer.decode(cold(prompt, FEW)) == text
    server = restart(home, model)
    assert server.tell("later", prompt, FEW) == cold(prompt, FEW)
    assert server.cached("later") == len(prompt) - 1
    assert server.store is not None and server.store.close(5.0)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


@contextmanager
def serving(home: Home) -> Iterator[Callable[[list[Message]], str]]:
    """A server's process; ask(messages) gives the text of the likeliest answer."""
    process = home.start("serve", str(home.model), "--port", "0", "--context", "1024")
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if "answers at" in line)
        url = line.split("answers at ")[1].split(". ")[0]

        def ask(messages: list[Message]) -> str:
            body = json.dumps({"messages": messages, "temperature": 0, "max_tokens": FEW}).encode()
            with urllib.request.urlopen(f"{url}/chat/completions", body, timeout=LIMIT_S) as reply:
                return json.load(reply)["choices"][0]["message"]["content"]

        yield ask
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)
