"""Writes pictures of the window in its states into a folder: python tests/desktop/take_screenshots.py FOLDER [NAME].

With a NAME, only the states whose name contains it. No GPU and no model file are needed; QT_QPA_PLATFORM=xcb draws on a
real display instead of offscreen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from conftest import App, build

from desktop.theme import ThemeName

LONG = """Use a `Condition` around a deque. A full queue blocks the producer, and *nobody* polls.

| Operation | Blocks when | Cost |
|---|---|---:|
| `put` | queue is full | 0.4 µs |
| `get` | queue is empty | 0.4 µs |
| `close` | never | 1.1 µs |

```python
def put(self, item: Item) -> None:
    with self.changed:
        # wakes when a consumer has made room
        self.changed.wait_for(lambda: len(self.items) < self.limit)
        self.items.append(item)
        self.changed.notify()
```

## What to watch

1. The lock is held only for the append, so a slow consumer **never** stops a fast producer for long.
2. Two kinds of waiters share one condition:
   - producers, who wait for room,
   - consumers, who wait for items.
3. See [the manual](https://docs.python.org/3/library/threading.html) for the rest.

> A condition is a lock and a list of those who wait.

- [x] tested with one producer
- [ ] tested with many

The lock is held only for the append, so a slow consumer never"""

OTHER = """炉辺は家の中でいちばん暖かい場所です。人々はそこに座って話をしました。

炉边是房子里最温暖的地方。불 옆의 자리는 따뜻합니다. Всё тихо. مرحبا بالعالم 👋🏽 🔥 👩‍👩‍👧"""

UNBROKEN = "https://example.org/" + "averylongpathwithoutanybreak" * 8


def loading(app: App) -> None:
    app.engine.progress(31, 98)
    app.settle()


def empty(app: App) -> None:
    app.engine.ready()
    app.wait(lambda: app.session.state == "ready")


def software(app: App) -> None:
    app.engine.ready(software=True, adapter="llvmpipe (LLVM 15.0.6, 256 bits)")
    app.wait(lambda: app.session.state == "ready")


def no_gpu(app: App) -> None:
    app.engine.fail_load(
        "No graphics adapter can be used. No Vulkan driver is installed: install mesa-vulkan-drivers, or the driver "
        "of your graphics card, then try again."
    )
    app.wait(lambda: app.session.state == "failed")


def queued_while_loading(app: App) -> None:
    app.session.send("Why is the corner beside the fire the warmest place of a house?")
    loading(app)


def prefill(app: App) -> None:
    empty(app)
    app.ask("How do I make a bounded queue that blocks the producer, without polling? Show what each call costs.")
    app.settle()


def streaming(app: App) -> None:
    prefill(app)
    for start in range(0, len(LONG), 40):
        app.engine.say(LONG[start : start + 40], 9)
        app.settle()


def queued_while_answering(app: App) -> None:
    streaming(app)
    app.session.send("And how would I close it so that every waiting consumer wakes up and ends?")


def answered(app: App) -> None:
    empty(app)
    app.ask("Size the gutter for a shed roof of 6.2 by 4.0 metres.")
    app.engine.say("The roof sheds rain towards the yard, so the gutter belongs on that side.", 20)
    app.engine.finish(cached=1846)
    app.wait(lambda: app.session.state == "ready")
    app.ask("Thanks")
    app.engine.say(LONG + " waits.", 300)
    app.engine.finish(cached=1846)
    app.wait(lambda: app.session.state == "ready")


def error(app: App) -> None:
    empty(app)
    app.ask("Size the gutter for a shed roof of 6.2 by 4.0 metres.")
    app.engine.say("The roof sheds rain towards the yard, so the gutter belongs on that side. That gives 0.52", 20)
    app.engine.finish(
        "error", error="The graphics driver restarted. The chat is safe; the answer stopped after 20 tokens."
    )
    app.wait(lambda: app.session.state == "ready")


def context_full(app: App) -> None:
    empty(app)
    app.ask("Write a very long story.")
    app.engine.say("Once upon a time there was a hearth, and beside it", 20)
    app.engine.finish("length")
    app.wait(lambda: app.session.state == "ready")


def scripts(app: App) -> None:
    empty(app)
    app.ask("Say hello in many scripts 🔥 你好")
    app.engine.say(OTHER, 20)
    app.engine.finish()
    app.wait(lambda: app.session.state == "ready")


def unbroken(app: App) -> None:
    empty(app)
    app.ask(UNBROKEN)
    app.engine.say(
        f"{UNBROKEN}\n\n`{UNBROKEN}`\n\n```\n{UNBROKEN}\n```\n\n| a | b |\n|--|--|\n| {UNBROKEN} | x |\n", 20
    )
    app.engine.finish()
    app.wait(lambda: app.session.state == "ready")


def long_draft(app: App) -> None:
    empty(app)
    app.window._composer.put_back("\n".join(f"Line {number} of a long message" for number in range(1, 15)))


STATES: dict[str, Callable[[App], None]] = {
    "empty": empty, "loading": loading, "software": software, "no-gpu": no_gpu, "prefill": prefill,
    "streaming": streaming, "answered": answered, "error": error, "context-full": context_full, "scripts": scripts,
    "unbroken": unbroken, "long-draft": long_draft, "queued-loading": queued_while_loading,
    "queued-answering": queued_while_answering,
}  # fmt: skip
SIZES = ((1180, 760), (900, 640), (720, 520))
THEMES: tuple[ThemeName, ...] = ("light", "dark")


def main(folder: Path, wanted: str = "") -> None:
    """Write <state>-<width>-<theme>.png for every combination."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, enter in STATES.items():
        if wanted not in name:
            continue
        for theme in THEMES:
            app = build(theme)
            app.window.activateWindow()
            app.window.resize(*SIZES[0])
            app.settle()
            enter(app)
            for width, height in SIZES:
                app.window.resize(width, height)
                app.settle()
                app.window.grab().save(str(folder / f"{name}-{width}-{theme}.png"))
            app.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
