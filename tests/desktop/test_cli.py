"""The commands from their arguments to their output and exit status, on a pretend model."""

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from desktop import cli
from desktop.commands import chat, common, options, terminal
from engine.config import MODES
from engine.engine import Engine
from engine.errors import DeviceFailed
from engine.fake_loader import fake_loader
from engine.loading import Loader, LoadOptions
from models.errors import CorruptFile

ANSWER = "One two three, and a long tail."
TINY = Path(__file__).parents[1] / "data" / "gguf_llama" / "tiny-F16.gguf"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGLENOOK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(terminal, "quiet_logs", lambda: None)  # pytest's own handlers come and go
    return tmp_path / "home"


def use(monkeypatch: pytest.MonkeyPatch, loader: Loader) -> None:
    monkeypatch.setattr(common, "loader", lambda: loader)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, fake_loader(answer=ANSWER))


def run(*argv: str) -> int:
    return cli.main(list(map(str, argv)))


def type_in(monkeypatch: pytest.MonkeyPatch, text: str, *, person: bool = False) -> None:
    stdin = io.StringIO(text)
    stdin.isatty = lambda: person  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", stdin)


@pytest.mark.parametrize(
    "argv",
    [
        ["generate"],
        ["generate", "m", "--prompt", "a", "--token-ids", "1"],
        ["generate", "m", "--token-ids", "1,x"],
        ["generate", "m", "--token-ids", "-1"],
        ["generate", "m", "--prompt", "a", "--max-tokens", "0"],
        ["generate", "m", "--prompt", "a", "--temperature", "nan"],
        ["generate", "m", "--prompt", "a", "--top-p", "0"],
        ["generate", "m", "--prompt", "a", "--seed", str(2**64)],
        ["generate", "m", "--prom", "a"],
        ["chat", "--context", "0"],
        ["chat", "--kv-type", "f8"],
        ["chat", "--mode", "fast"],
        ["serve", "--max-sequences", "0"],
        ["generate", "m", "--prompt", "a", "--total-tokens", "many"],
        ["bench", "--memory", "8XB"],
        ["serve", "--memory", "0"],
        ["serve", "--memory", "0.4B"],
        ["serve", "--memory", "1e9"],
        ["doctor", "m", "--memory", "99999999999T"],
        ["logits", "m", "--token-ids", "1", "--out", "x.npy", "--mode", "local"],
        ["logits", "m", "--token-ids", "1"],
        ["bench", "--prefill", "128,"],
        ["serve", "--port", "65536"],
        ["--adapter", "x", "chat"],
        ["nonsense"],
    ],
)
def test_wrong_usage_is_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "inglenook" in err.splitlines()[-1]


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["chat", "--help"], ["bench", "--help"]])
def test_help_and_version_are_status_0(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv) == 0
    assert "inglenook" in capsys.readouterr().out


def test_generate_streams_text(pretend: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", TINY, "--prompt", "Hello") == 0
    assert capsys.readouterr().out == ANSWER + "\n"


def test_generate_json_has_the_promised_fields(pretend: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", TINY, "--token-ids", "72,105", "--json") == 0
    out, err = capsys.readouterr()
    value = json.loads(out)
    assert out.count("\n") == 1
    assert list(value) == ["prompt_token_ids", "token_ids", "text", "finish_reason", "usage", "timings"]
    assert value["prompt_token_ids"] == [72, 105]
    assert (value["text"], value["finish_reason"]) == (ANSWER, "stop")
    num_drawn = value["usage"].pop("completion_tokens")
    assert num_drawn - len(value["token_ids"]) in (0, 1)  # the end token counts, and is no part of the answer
    assert value["usage"] == {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}
    assert list(value["timings"]) == ["load_s", "ttft_s", "prefill_tokens_per_s", "decode_tokens_per_s"]
    assert "25 %" in err and "100 %" in err


def test_generate_stops_at_text_and_length(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    use(monkeypatch, fake_loader(answer=ANSWER, endless=True))
    assert run("generate", TINY, "--prompt", "a", "--stop", "zebra", "--stop", "three", "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["text"], value["finish_reason"]) == ("One two ", "stop")
    assert run("generate", TINY, "--prompt", "a", "--stop", "three", "--ignore-eos", "--max-tokens", "9", "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert (len(value["token_ids"]), value["finish_reason"]) == (9, "length")


def test_generate_accepts_every_option(pretend: None, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--max-tokens 3 --temperature 0.5 --top-p 0.9 --seed 7 --no-prefix-cache --adapter pretend --context 64"
    assert run("generate", "--prompt", "a", *options.split(), "--kv-type", "f32", "--kernels", "plain", TINY) == 0
    assert capsys.readouterr().out == "One two three,\n"


@pytest.mark.parametrize(
    "text, size",
    [
        ("8GB", 8_000_000_000),
        ("800MB", 800_000_000),
        ("1.5GiB", 3 << 29),
        ("1.5 gib", 3 << 29),
        ("2g", 2_000_000_000),
        ("4Ki", 4096),
        ("123456789", 123_456_789),
        ("123456789B", 123_456_789),
        ("0.5T", 500_000_000_000),
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_sizes_are_written_as_people_write_them(text: str, size: int) -> None:
    assert options.byte_size(text) == size


def test_what_is_said_of_serving_reaches_the_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[LoadOptions] = []

    def load(wanted: LoadOptions, progress: object, cancelled: object) -> object:
        asked.append(wanted)
        return fake_loader(answer=ANSWER)(wanted, progress, cancelled)

    use(monkeypatch, load)
    said = (
        "--mode server --max-sequences 3 --total-tokens 9000 --memory 2GB --context 512 --window 64 --sinks 0".split()
    )
    assert run("generate", TINY, "--prompt", "a", *said) == 0
    assert run("chat", TINY, "-p", "a", *said) == 0
    wanted = asked[0]
    assert asked == [wanted, wanted]
    assert (wanted.mode, wanted.max_sequences, wanted.total_tokens) == ("server", 3, 9000)
    assert (wanted.window, wanted.sinks) == (64, 0)
    assert (wanted.memory_bytes, wanted.context) == (2_000_000_000, 512)
    assert run("generate", TINY, "--prompt", "a") == 0
    assert replace(asked[-1], tiers=None) == LoadOptions(model=wanted.model)


def test_the_modes_are_those_of_the_engine() -> None:
    assert options.MODES == MODES


def test_what_a_model_takes_is_said_before_its_weights_move(pretend: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", TINY, "--prompt", "a") == 0
    memory, first, *_ = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"Memory: about \d+ MB: \d+ weights, 200 for 8,192 tokens, 50 working space", memory)
    assert first.startswith("Loading weights: 25 %")


def test_generate_reads_messages(pretend: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "talk.json"
    file.write_text(json.dumps([{"role": "user", "content": "Hi <|im_end|> \ud83d"}]))
    assert run("generate", TINY, "--messages", file, "--json") == 0
    value = json.loads(capsys.readouterr().out)
    end = 256 + len(ANSWER.split()) + 2
    assert value["prompt_token_ids"].count(end) == 1  # the template's own, not the one that the user wrote
    assert value["text"] == ANSWER


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"role": "user"}', '[{"role": "user", "content": 1}]', "[" * 99999]
)
def test_generate_refuses_other_files_before_loading(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "talk.json"
    file.write_text(content)
    assert run("generate", TINY, "--messages", file) == 1
    assert_one_line(capsys, "talk.json")


def test_missing_messages_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", TINY, "--messages", "nowhere.json") == 1
    assert_one_line(capsys, "nowhere.json: No such file or directory.")


def assert_one_line(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """One line on stderr, apart from what a load says, and nothing on stdout."""
    out, err = capsys.readouterr()
    said = ("% of", "no chat template", "Memory: about")
    lines = [line for line in err.splitlines() if not any(part in line for part in said)]
    assert out == ""
    assert len(lines) == 1, err
    assert lines[0].startswith("inglenook: ")
    assert text in lines[0]


def test_prompt_longer_than_the_context(pretend: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", TINY, "--prompt", "a" * 100, "--context", "32") == 1
    assert_one_line(capsys, "32")
    assert run("chat", TINY, "-p", "a" * 100, "--context", "32") == 1
    assert_one_line(capsys, "32")


def test_failed_answer_in_json_still_is_one_object(pretend: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", TINY, "--prompt", "a" * 100, "--context", "32", "--json") == 1
    value = json.loads(capsys.readouterr().out)
    assert (value["finish_reason"], value["usage"]["prompt_tokens"], value["token_ids"]) == ("error", 100, [])


def test_tokens_that_the_model_has_not(pretend: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", TINY, "--token-ids", "1,99999999") == 1
    assert_one_line(capsys, "99999999")


def test_empty_prompt(pretend: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", TINY, "--prompt", "") == 1
    assert_one_line(capsys, "prompt")


@pytest.mark.parametrize("command", [["generate", "--prompt", "a"], ["chat", "-p", "a"], ["bench"]])
def test_models_that_cannot_be_found(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "nowhere.gguf", tmp_path / "folder"):
        assert run(*command, path) == 1
        assert_one_line(capsys, path.name)


@pytest.mark.parametrize("error", [DeviceFailed("No driver here."), CorruptFile("It is torn.\nBadly.")])
def test_a_load_that_fails(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, fake_loader(error=error))
    line = " ".join(str(error).split())
    for argv in (["generate", "--prompt", "a"], ["chat"], ["logits", "--token-ids", "1", "--out", tmp_path / "x.npy"]):
        assert run(*argv, TINY) == 1
        assert_one_line(capsys, line)


def test_a_bug_is_one_line_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Loader:
        raise KeyError("oops")

    monkeypatch.setattr(common, "loader", broken)
    assert run("generate", TINY, "--prompt", "a") == 1
    assert_one_line(capsys, "bug in Inglenook: KeyError: 'oops'")


def test_interrupted_generate_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    use(monkeypatch, fake_loader(answer=ANSWER, endless=True, step_s=0.001))

    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(terminal, "write", interrupt)
    assert run("generate", TINY, "--prompt", "a") == 130
    assert "Traceback" not in capsys.readouterr().err


def test_broken_pipe_is_quiet(
    pretend: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def closed(text: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(terminal, "write", closed)
    monkeypatch.setattr(terminal, "discard_output", lambda: None)
    assert run("generate", TINY, "--prompt", "a") == 141
    assert "inglenook:" not in capsys.readouterr().err


def test_a_software_adapter_is_announced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from dataclasses import replace

    load = fake_loader(answer=ANSWER)
    use(monkeypatch, lambda *args: replace(load(*args), software_adapter=True))
    assert run("generate", TINY, "--prompt", "a") == 0
    assert "computes on the processor" in capsys.readouterr().err


def test_chat_answers_once_with_p(pretend: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("chat", TINY, "-p", "Hi") == 0
    assert capsys.readouterr().out == ANSWER + "\n"


def test_chat_ends_with_status_0_at_end_of_input(
    pretend: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "")
    assert run("chat", TINY) == 0
    type_in(monkeypatch, "Hi\n\n  \nAgain")
    assert run("chat", TINY) == 0
    out, err = capsys.readouterr()
    assert out == f"{ANSWER}\n{ANSWER}\n"
    assert "> " not in out + err


def test_chat_keeps_the_conversation_and_survives_a_long_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []
    load = fake_loader(answer=ANSWER)
    use(monkeypatch, load)
    add = Engine.add_request

    def watch(self: Engine, request, *rest):  # type: ignore[no-untyped-def]
        asked.append(len(request.prompt_ids))
        return add(self, request, *rest)

    monkeypatch.setattr(Engine, "add_request", watch)
    type_in(monkeypatch, "Hi\n" + "a" * 400 + "\nHi\n")
    assert run("chat", TINY, "--context", "200") == 0
    out, err = capsys.readouterr()
    assert out == f"{ANSWER}\n{ANSWER}\n"
    assert err.count("context holds 200") == 1
    assert asked[-1] > 2 * asked[0]


def test_chat_prompts_a_person_and_starts_over(
    pretend: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "Hi\n/new\nHi\n", person=True)
    seen: list[int] = []
    answer = chat.Conversation.answer
    monkeypatch.setattr(
        chat.Conversation, "answer", lambda self, text: (seen.append(len(self.messages)), answer(self, text))[1]
    )
    assert run("chat", TINY) == 0
    out, err = capsys.readouterr()
    assert out == f"{ANSWER}\n{ANSWER}\n"
    assert seen == [0, 0]
    assert err.count("> ") == 4
    assert "Pretend GPU" in err


def test_chat_interrupt_ends_the_answer_then_the_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, fake_loader(answer=ANSWER, endless=True, step_s=0.001))
    type_in(monkeypatch, "Hi\nHi again\n")
    write, written = terminal.write, []

    def interrupt_third(text: str) -> None:
        written.append(text)
        write(text)
        if len(written) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(terminal, "write", interrupt_third)
    assert run("chat", TINY, "--max-tokens", "9") == 0
    out, err = capsys.readouterr()
    first, second = out.splitlines()
    assert 0 < len(first) < len(second)
    assert "Ctrl+C" in err


def test_chat_says_when_the_context_is_full(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, fake_loader(answer=ANSWER, endless=True))
    assert run("chat", TINY, "-p", "Hi", "--context", "64") == 0
    assert "context is full" in capsys.readouterr().err


def test_models_lists_what_is_installed(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    folder = home / "models" / "someone" / "tiny"
    folder.mkdir(parents=True)
    (folder / "tiny-F16.gguf").write_bytes(TINY.read_bytes())
    assert run("models", "--json") == 0
    entries = json.loads(capsys.readouterr().out)
    entry = next(entry for entry in entries if entry["path"].endswith("tiny-F16.gguf"))
    assert list(entry) == ["name", "path", "format", "quantization", "bytes", "source"]
    assert entry["bytes"] == TINY.stat().st_size
    assert run("models") == 0
    assert "tiny-F16.gguf" in capsys.readouterr().out


def test_models_says_where_to_put_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import models.library

    monkeypatch.setattr(models.library, "installed", list)
    assert run("models") == 0
    assert "No model is installed" in capsys.readouterr().err
    assert run("models", "--json") == 0
    assert capsys.readouterr().out == "[]\n"


def test_the_last_model_is_remembered(pretend: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", TINY, "--prompt", "a") == 0
    assert run("generate", "--prompt", "a") == 0
    assert capsys.readouterr().out == f"{ANSWER}\n{ANSWER}\n"


def test_a_load_line_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.config import Estimate
    from engine.loading import LoadProgress

    stderr = io.StringIO()
    stderr.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("COLUMNS", "60")
    line = terminal.LoadLine()
    estimate = Estimate(weights=10**11, context=10**10, working_space=10**9, tokens=131_072)
    line(LoadProgress(stage="Reading", done_bytes=0, total_bytes=10, estimate=estimate))
    line(LoadProgress(stage="Loading weights", done_bytes=5, total_bytes=10))
    line.finish()
    shown = stderr.getvalue().split("\r")
    assert "Loading weights … 50% (about 111.0 GB: 100.0 weights, 10.0…" in shown
    assert max(map(len, shown)) < 60
    assert line.estimate == estimate


def test_load_line_rewrites_itself_for_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.loading import LoadProgress

    stderr = io.StringIO()
    stderr.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", stderr)
    line = terminal.LoadLine()
    for done in (0, 5, 5, 10):
        line(LoadProgress(stage="Loading weights", done_bytes=done, total_bytes=10))
    line.finish()
    text = stderr.getvalue()
    assert text.count("Loading weights … 50%") == 1
    assert "\n" not in text
    assert text.endswith(" " * 10 + "\r")
