"""The chat: several conversations, answered as they are asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import gradio as gr

from lsv.errors import LsvError
from lsv_webui import conversation
from lsv_webui.answer import write
from lsv_webui.api import Api
from lsv_webui.controls import Controls
from lsv_webui.conversation import Chat, Message
from lsv_webui.parts import request_messages
from lsv_webui.theme import TUCK
from lsv_webui.view import GREETING, QUIET, choices, entries
from lsv_webui.wishes import Wishes

EXAMPLES = (
    "Who are you?",
    "What is the capital of France?",
    "What is 27 + 38?",
    "Tell me a story.",
)

_LATEX: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
]


class Turn:
    """An answer being written. ``left``: nobody looks at it any more, so it draws nothing."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.left = False


class ChatTab:
    """The components of the chat and what they do. One for all visitors; what is theirs is in states.

    What touches turns is asynchronous, because Gradio runs all else in threads.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._turns: dict[str, Turn] = {}

    def render_list(self) -> None:
        """The list of conversations, for the side of the page."""
        self.new = gr.Button("New chat", variant="primary", elem_id="lsv-new")
        self.list = gr.Radio([], show_label=False, container=False, elem_id="lsv-chats", interactive=True)
        self.delete = gr.Button("Delete this chat", size="sm", elem_id="lsv-delete")

    def render(self) -> None:
        """The conversation and the message box."""
        self.current = gr.State(conversation.new_chat())
        self.saved = gr.BrowserState([], storage_key="lsv.chats", secret="lsv")
        self.view = gr.Chatbot(
            show_label=False,
            container=False,
            elem_id="lsv-chat",
            layout="bubble",
            height=None,
            scale=1,
            editable="user",
            placeholder=GREETING,
            examples=[{"text": text} for text in EXAMPLES],
            latex_delimiters=_LATEX,
            buttons=["copy"],
            feedback_options=None,
            group_consecutive_messages=False,
            allow_tags=False,
        )
        self.box = gr.MultimodalTextbox(
            show_label=False,
            container=False,
            elem_id="lsv-box",
            placeholder="Ask anything",
            sources=["upload", "microphone"],
            file_types=["image", "audio", "video"],
            file_count="multiple",
            max_plain_text_length=100_000,
            autofocus=True,
        )

    def wire(self, page: gr.Blocks, controls: Controls) -> None:
        """What happens when."""
        shown = [self.current, self.view, self.list]
        asked = self.box.submit(self.ask, [self.box, self.current], [self.box, self.current, self.view], **QUIET)
        answers = [self._answered(asked, controls)]
        for trigger, act in (
            (self.view.retry, self.again),
            (self.view.edit, self.edit),
            (self.view.example_select, self.take_example),
        ):
            asked = trigger(act, self.current, [self.current, self.view, self.box], **QUIET)
            answers.append(self._answered(asked, controls))
        self.box.stop(self.stop, queue=False, **QUIET)
        # Who goes elsewhere is done with the answer being written, which must not be drawn over what comes instead.
        for left in (
            self.new.click(self.begin, self.saved, shown, cancels=answers, **QUIET),
            self.list.input(self.open, [self.list, self.saved], shown, cancels=answers, **QUIET),
            self.delete.click(self.remove, [self.current, self.saved], [*shown, self.saved], cancels=answers, **QUIET),
        ):
            # What was under way when it was cancelled may still have been drawn, so it is drawn once more.
            left.then(entries, self.current, self.view, **QUIET).then(_at_rest, None, self.box, **QUIET)
        for trigger in (self.new.click, self.list.input):
            trigger(None, js=TUCK, **QUIET)
        page.load(self.restore, self.saved, shown, **QUIET)

    def _answered(self, asked: Any, controls: Controls) -> Any:
        """Once a question stands, let it be answered; gives the event that answers."""
        answer = asked.then(
            self.answer,
            [self.current, self.saved, *controls.inputs],
            [self.view, self.current, self.saved, self.list],
            **QUIET,
        )
        answer.then(_at_rest, None, self.box, **QUIET)
        return answer

    def ask(self, box: dict[str, Any], chat: Chat) -> tuple[Any, Chat, Any]:
        text, files = (box.get("text") or "").strip(), box.get("files") or []
        if not text and not files:
            return gr.skip(), chat, gr.skip()
        chat.ask(text, files)
        return _writing(empty=True), chat, entries(chat)

    def again(self, chat: Chat, event: gr.RetryData) -> tuple[Chat, Any, Any]:
        chat.back_to(_index(event.index))
        return chat, entries(chat), _writing()

    def edit(self, chat: Chat, event: gr.EditData) -> tuple[Chat, Any, Any]:
        question = chat.back_to(_index(event.index))
        if question is not None:
            question.text = str(event.value).strip()
        return chat, entries(chat), _writing()

    def take_example(self, chat: Chat, event: gr.SelectData) -> tuple[Chat, Any, Any]:
        chat.ask(str(event.value["text"]))
        return chat, entries(chat), _writing()

    async def answer(
        self, request: gr.Request, chat: Chat, saved: object, *values: Any
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Answer the last question, drawing as it goes. The browser keeps the question at once."""
        if not chat.messages or chat.messages[-1].role != "user":
            return
        turn, wishes = self._turn(request), Wishes.of(values)
        try:
            # Files are read for it, so it has a thread of its own.
            messages = await asyncio.to_thread(request_messages, chat, wishes.system)
            body = {**wishes.fields(), "messages": messages}
            message = Message(role="assistant")
            chat.messages.append(message)
            yield _kept(chat, saved)
            async with aclosing(write(self._api, body, message, turn.stop, wishes.key or None)) as progress:
                async for _ in progress:
                    if not turn.left:
                        yield entries(chat), gr.skip(), gr.skip(), gr.skip()
        except LsvError as error:
            chat.messages.append(Message(role="assistant", error=error.message))
        finally:
            self._end(turn, request)
        if not turn.left:
            yield _kept(chat, saved)

    async def stop(self, request: gr.Request) -> None:
        if turn := self._turns.get(str(request.session_hash)):
            turn.stop.set()

    async def begin(self, saved: object, request: gr.Request) -> tuple[Any, ...]:
        return self._show(conversation.new_chat(), saved, request)

    async def open(self, chosen: str, saved: object, request: gr.Request) -> tuple[Any, ...]:
        found = next((chat for chat in conversation.read_chats(saved) if chat.id == chosen), None)
        return self._show(found or conversation.new_chat(), saved, request)

    async def remove(self, chat: Chat, saved: object, request: gr.Request) -> tuple[Any, ...]:
        kept = conversation.forget(saved, chat)
        return *self._show(conversation.new_chat(), kept, request), kept

    async def restore(self, saved: object, request: gr.Request) -> tuple[Any, ...]:
        """The conversation that was open last, when the page opens."""
        chats = conversation.read_chats(saved)
        return self._show(chats[0] if chats else conversation.new_chat(), saved, request)

    def _show(self, chat: Chat, saved: object, request: gr.Request) -> tuple[Any, ...]:
        self._leave(request)
        return chat, entries(chat), _listed(saved, chat)

    def _turn(self, request: gr.Request) -> Turn:
        """A new turn; what was being written in this window ends."""
        self._leave(request)
        turn = self._turns[str(request.session_hash)] = Turn()
        return turn

    def _end(self, turn: Turn, request: gr.Request) -> None:
        if self._turns.get(str(request.session_hash)) is turn:
            del self._turns[str(request.session_hash)]

    def _leave(self, request: gr.Request) -> None:
        if turn := self._turns.pop(str(request.session_hash), None):
            turn.left = True
            turn.stop.set()


def _index(index: int | tuple[int, int] | list[int]) -> int:
    return index if isinstance(index, int) else index[0]


def _kept(chat: Chat, saved: object) -> tuple[Any, ...]:
    """The conversation drawn, and kept in the browser."""
    kept = conversation.keep(saved, chat)
    return entries(chat), chat, kept, _listed(kept, chat)


def _listed(saved: object, chat: Chat) -> Any:
    chats = conversation.read_chats(saved)
    return gr.update(choices=choices(chats), value=chat.id if chat.messages else None)


def _writing(*, empty: bool = False) -> Any:
    """The box while an answer is written: it stops instead of sending."""
    changes: dict[str, Any] = {"value": None} if empty else {}
    return gr.update(submit_btn=False, stop_btn=True, **changes)


def _at_rest() -> Any:
    return gr.update(submit_btn=True, stop_btn=False)
