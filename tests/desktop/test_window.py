"""The window on a scripted engine: what a person sees and does, state by state."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QGuiApplication, QPaintEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QLabel, QPushButton, QWidget

from desktop import words
from desktop.bridge import DRAIN_MS
from desktop.composer import SendButton
from desktop.controls import Notice
from desktop.turns import AnswerTurn, QuestionTurn


def visible_text(window: QWidget) -> str:
    return "\n".join(label.text() for label in window.findChildren(QLabel) if label.isVisible())


def button(window: QWidget, name: str) -> QAbstractButton:
    found = [
        each
        for each in window.findChildren(QAbstractButton)
        if each.isVisible() and name in (each.text(), each.accessibleName())
    ]
    assert len(found) == 1, f"{len(found)} buttons are called {name}"
    return found[0]


def write(app, text: str) -> None:
    QTest.keyClicks(app.window._composer._editor, text)


def press(app, key: Qt.Key, modifier: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
    QTest.keyClick(app.window._composer._editor, key, modifier)
    app.settle()


def answers(app) -> list[AnswerTurn]:
    return [turn for turn in app.window._chat._column.turns if isinstance(turn, AnswerTurn)]


def questions(app) -> list[str]:
    return [turn.source for turn in app.window._chat._column.turns if isinstance(turn, QuestionTurn)]


def test_loading_is_shown_in_words_and_as_a_bar(app) -> None:
    app.engine.progress(31, 98)
    app.settle()
    assert "Loading SmolLM2 135M Instruct, 31 of 98 MB. You can write already." in visible_text(app.window)
    assert app.window._start._bar.value() == pytest.approx(1000 * 31 / 98, abs=1)
    assert app.window.windowTitle() == "Inglenook"


def test_ready_says_where_the_model_runs(ready) -> None:
    text = visible_text(ready.window)
    assert "SmolLM2 135M is ready." in text
    assert "It runs on your Radeon 780M Graphics. What you write stays on this computer." in text
    assert "Q4_1 · Radeon 780M Graphics" in text
    assert ready.window._composer._editor.hasFocus()


def test_a_software_adapter_is_warned_of(app) -> None:
    app.engine.ready(software=True)
    app.wait(lambda: app.session.state == "ready")
    assert words.RUNS_SLOWLY in visible_text(app.window)
    button(app.window, "Close this notice").click()
    assert words.RUNS_SLOWLY not in visible_text(app.window)


def test_a_failed_load_names_cause_and_way_out_and_can_be_tried_again(app) -> None:
    write(app, "kept")
    app.engine.fail_load("No graphics adapter can be used. Install a driver, then try again.")
    app.wait(lambda: app.session.state == "failed")
    assert "No graphics adapter can be used.\nInstall a driver, then try again." in visible_text(app.window)
    assert not app.window._composer.isVisible()
    button(app.window, "Try again").click()
    app.wait(lambda: len(app.engine.loads) == 2)
    app.engine.ready()
    app.wait(lambda: app.session.state == "ready")
    assert app.window._composer.isVisible() and app.window._composer.text == "kept"


def test_enter_sends_and_the_answer_streams_in(ready) -> None:
    write(ready, "Hello")
    press(ready, Qt.Key.Key_Return)
    ready.wait(lambda: ready.engine.requests)
    assert ready.window._composer.text == "" and questions(ready) == ["Hello"]
    request = ready.engine.requests[0]
    assert request.prompt_ids == tuple(map(ord, "Hello"))
    assert (request.sampling.temperature, request.sampling.top_p) == (0.7, 0.9)
    assert "Reading" in visible_text(ready.window)
    ready.engine.say("Good **mor")
    ready.engine.say("ning**")
    ready.settle()
    assert answers(ready)[0].text.toPlainText() == "Good morning"
    ready.engine.finish(cached=1846)
    ready.wait(lambda: ready.session.state == "ready")
    line = "24.3 tokens per second · first token 0.41 s · 1,846 of 2,103 prompt tokens kept"
    assert line in visible_text(ready.window)
    assert "2,115 of 8,192 tokens" in visible_text(ready.window)


def test_shift_enter_breaks_the_line_and_the_box_grows_to_ten(ready) -> None:
    editor = ready.window._composer._editor
    low = editor.height()
    write(ready, "a")
    press(ready, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    write(ready, "b")
    assert ready.window._composer.text == "a\nb" and not ready.engine.requests
    assert editor.height() > low
    editor.setPlainText("\n" * 9)
    ten = editor.height()
    editor.setPlainText("\n" * 30)
    assert editor.height() == ten


def test_earlier_turns_are_sent_along_but_not_unanswered_ones(ready) -> None:
    ready.ask("one")
    ready.engine.say("1")
    ready.engine.finish()
    ready.wait(lambda: ready.session.state == "ready")
    ready.ask("far too long")
    ready.engine.finish("error", error="The prompt is too long. Start a new chat.")
    ready.wait(lambda: ready.session.state == "ready")
    ready.ask("two")
    assert "".join(map(chr, ready.engine.requests[-1].prompt_ids)) == "one1two"
    assert ready.engine.requests[0].sampling.seed != ready.engine.requests[-1].sampling.seed


def test_the_send_button_stops_and_so_does_escape(ready) -> None:
    send = ready.window.findChild(SendButton)
    assert send.accessibleName() == "Send" and not send.isEnabled()
    for stop in (send.click, lambda: press(ready, Qt.Key.Key_Escape)):
        ready.ask("tell me")
        ready.engine.say("Once")
        ready.settle()
        assert send.accessibleName() == "Stop" and send.isEnabled()
        stop()
        ready.wait(lambda: ready.session.state == "ready")
        assert answers(ready)[-1].source == "Once"
        assert "Stopped" in visible_text(ready.window)
    assert len(ready.engine.aborted) == 2


def test_what_the_empty_box_says_changes_on_the_screen_too(ready) -> None:
    class Paints(QObject):
        count = 0

        def eventFilter(self, watched: QWidget, event: QEvent) -> bool:
            # The blinking cursor paints its own few pixels.
            if isinstance(event, QPaintEvent) and event.rect().width() > watched.width() // 2:
                self.count += 1
            return False

    composer, paints = ready.window._composer, Paints()
    viewport = composer._editor.viewport()
    QTest.qWait(50)
    viewport.installEventFilter(paints)
    composer.set_placeholder("Something else")
    ready.wait(lambda: paints.count > 0)
    viewport.removeEventFilter(paints)


def test_a_message_written_while_answering_is_sent_when_the_answer_ends(ready) -> None:
    ready.ask("one")
    assert ready.window._composer._editor.placeholderText() == words.NEXT_MESSAGE
    write(ready, "two")
    press(ready, Qt.Key.Key_Return)
    assert len(ready.engine.requests) == 1 and questions(ready) == ["one"]
    assert "Sent when this answer ends" in visible_text(ready.window)
    ready.engine.say("1")
    ready.engine.finish()
    ready.wait(lambda: len(ready.engine.requests) == 2)
    assert questions(ready) == ["one", "two"] and ready.session.waiting == ""


def test_a_message_written_while_loading_is_sent_when_the_model_is_ready(app) -> None:
    write(app, "early")
    press(app, Qt.Key.Key_Return)
    write(app, "bird")
    press(app, Qt.Key.Key_Return)
    assert app.session.waiting == "early\n\nbird"
    app.engine.ready()
    app.wait(lambda: app.engine.requests)
    assert questions(app) == ["early\n\nbird"]


def test_a_waiting_message_can_be_taken_back_and_returns_after_an_error(ready) -> None:
    ready.ask("one")
    ready.session.send("two")
    button(ready.window, "Take the message back").click()
    assert ready.window._composer.text == "two" and ready.session.waiting == ""
    press(ready, Qt.Key.Key_Return)
    ready.engine.finish("error", error="It broke.")
    ready.wait(lambda: ready.session.state == "ready")
    assert ready.window._composer.text == "two" and len(ready.engine.requests) == 1


def test_an_error_stands_where_it_happened_and_can_be_asked_again(ready) -> None:
    ready.ask("one")
    ready.engine.say("half")
    ready.engine.finish("error", error="The graphics driver restarted. Ask again.")
    ready.wait(lambda: ready.session.state == "ready")
    (notice,) = answers(ready)[0].findChildren(Notice)
    assert notice.accessibleName() == "The graphics driver restarted. Ask again."
    button(ready.window, "Answer again").click()
    ready.wait(lambda: len(ready.engine.requests) == 2)
    assert len(answers(ready)) == 1 and answers(ready)[0].source == ""
    assert len(ready.engine.loads) == 2, "the engine may have lost its model, so the load is asked for first"


def test_a_full_context_offers_a_new_chat(ready) -> None:
    ready.ask("one")
    ready.engine.say("much")
    ready.engine.finish("length")
    ready.wait(lambda: ready.session.state == "ready")
    assert "This chat has reached 2,115 tokens." in visible_text(ready.window)
    button(ready.window, "Start a new chat").click()
    assert questions(ready) == [] and "is ready." in visible_text(ready.window)


def test_a_new_chat_ends_the_answer_and_forgets_what_still_arrives(ready) -> None:
    ready.ask("one")
    first = ready.engine.requests[0].request_id
    press(ready, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    assert ready.engine.aborted == [first] and ready.session.state == "ready"
    ready.ask("two")
    assert "".join(map(chr, ready.engine.requests[-1].prompt_ids)) == "two"
    assert len(answers(ready)) == 1


def test_answers_are_copied_as_the_model_wrote_them(ready) -> None:
    ready.ask("one")
    ready.engine.say("**1**\n\n```\nx = 1\n```\n")
    ready.engine.finish()
    ready.wait(lambda: ready.session.state == "ready")
    QGuiApplication.clipboard().clear()
    press(ready, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
    assert QGuiApplication.clipboard().text() == "**1**\n\n```\nx = 1\n```\n"
    button(ready.window, "Copy code").click()
    assert QGuiApplication.clipboard().text() == "x = 1"
    ready.window._chat.copy_all()
    assert QGuiApplication.clipboard().text().startswith("one\n\n**1**")


def test_text_and_composer_share_one_axis_at_every_size(ready) -> None:
    ready.ask("one")
    ready.engine.say("Words. " * 200)
    ready.settle()
    for width, height in ((1180, 760), (900, 640), (720, 520)):
        ready.window.resize(width, height)
        ready.settle()
        text, box = answers(ready)[0].text, ready.window._composer
        text_middle = text.mapTo(ready.window, text.rect().center()).x()
        assert abs(text_middle - box.geometry().center().x()) <= 1
        assert text.width() <= 720 and box.width() <= 760
        assert text.toPlainText() and text.height() >= text.document().size().height()
    assert ready.window.minimumWidth() == 720 and ready.window.minimumHeight() == 520


def test_the_transcript_follows_the_end_until_a_person_scrolls_away(ready) -> None:
    ready.ask("one")
    bar = ready.window._chat.verticalScrollBar()
    ready.engine.say("Line\n\n" * 80)
    ready.settle()
    assert bar.value() == bar.maximum() > 0
    bar.setValue(0)
    ready.engine.say("Line\n\n" * 20)
    ready.settle()
    assert bar.value() == 0
    press(ready, Qt.Key.Key_PageDown)
    assert bar.value() > 0


def test_everything_that_takes_the_focus_has_a_name(ready) -> None:
    ready.ask("one")
    ready.engine.say("```\ncode\n```\n")
    ready.engine.finish("error", error="It broke.")
    ready.wait(lambda: ready.session.state == "ready")
    for widget in ready.window.findChildren(QWidget):
        if widget.isVisible() and widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
            named = widget.accessibleName() or (isinstance(widget, QPushButton) and widget.text())
            assert named, f"{widget} has no accessible name"


def test_the_focus_ring_is_for_the_keyboard_alone(ready) -> None:
    new_chat = button(ready.window, "New chat")
    new_chat.setFocus(Qt.FocusReason.MouseFocusReason)
    assert not ready.window._ring.isVisible()
    ready.window._composer.setFocus()
    new_chat.setFocus(Qt.FocusReason.TabFocusReason)
    assert ready.window._ring.isVisible()
    assert ready.window._ring.geometry().contains(new_chat.geometry())
    ready.window._composer.setFocus(Qt.FocusReason.TabFocusReason)
    assert not ready.window._ring.isVisible()


def test_the_theme_can_change_while_an_answer_streams(ready) -> None:
    ready.ask("one")
    ready.engine.say("# Head\n\n`code` and [a link](http://a.example)\n\n- a")
    ready.settle()
    ready.theme.force("dark")
    ready.engine.say(" b\n")
    ready.settle()
    assert answers(ready)[0].text.toPlainText() == "Head\ncode and a link\na b"
    assert ready.theme.tokens.ink.lower() in answers(ready)[0].text.toHtml()
    assert ready.window.grab().toImage().pixelColor(5, 200).name().upper() == ready.theme.tokens.base


def test_events_are_gathered_and_the_clock_rests_when_nothing_is_expected(ready) -> None:
    assert DRAIN_MS == 33 and not ready.bridge._timer.isActive()
    ready.ask("one")
    grown: list[str] = []
    ready.session.answer_grew.connect(lambda text, _tokens: grown.append(text))
    assert ready.bridge._timer.isActive()
    for _ in range(20):
        ready.engine.say("x")
    ready.settle()
    assert "".join(grown) == "x" * 20 and len(grown) < 20
    ready.engine.finish()
    ready.wait(lambda: not ready.bridge._timer.isActive())


def test_a_prompt_that_cannot_be_built_is_an_error_on_the_stream(ready) -> None:
    def refuse(_messages: object, _tokenizer: object, *, answers: object) -> list[int]:
        raise ValueError("The template refuses this chat. Start a new one.")

    ready.session.model.chat_template.prompt_ids = refuse
    ready.session.send("one")
    ready.wait(lambda: ready.session.state == "ready")
    assert "The template refuses this chat." in visible_text(ready.window)
    assert not ready.engine.requests
