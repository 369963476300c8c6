"""The chat tab: several conversations, answered as questions are asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from html import escape
from typing import Any

import gradio as gr

from lsv_base.errors import LsvError
from lsv_webui.api import Api, Model
from lsv_webui.chat import conversation, media, tools
from lsv_webui.chat.answer import write
from lsv_webui.chat.controls import Controls
from lsv_webui.chat.conversation import Chat, Message
from lsv_webui.chat.maths import DELIMITERS
from lsv_webui.chat.parts import request_messages, sent_kinds
from lsv_webui.chat.request_fields import RequestFields
from lsv_webui.chat.typed import read_typed
from lsv_webui.chat.view import QUIET, entries, message_at
from lsv_webui.theme import TUCK

EXAMPLES = (
    "Who are you?",
    "What is the capital of France?",
    "What is 27 + 38?",
    "Tell me a story.",
)

Drawn = tuple[Any, ...]
"""What handlers return: updates of components, in the order of the outputs."""

KEEP_SECONDS = 1.0
"""Seconds between two times that the browser stores an answer in progress."""

_LATEX: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
    DELIMITERS,
]


class Turn:
    """An answer in progress. ``left``: nobody is looking at it any more, so it draws nothing."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.left = False


class ChatTab:
    """The components of the chat and their handlers. One for all visitors, whose own data is in states.

    Handlers that touch turns are asynchronous, because Gradio runs all others in threads.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._turns: dict[str, Turn] = {}

    def render_list(self) -> None:
        """The list of conversations, for the sidebar."""
        self.new = gr.Button("New chat", variant="primary", elem_id="lsv-new")
        self.list = gr.Radio(
            [], label="Conversations", show_label=False, container=False, elem_id="lsv-chats", interactive=True
        )

        self.undo = gr.Button("", visible=False, size="sm", elem_id="lsv-undo")
        self.deleted = gr.State(Chat())

    def render_delete(self) -> None:
        self.delete = gr.Button("Delete this chat", size="sm", elem_id="lsv-delete")

    def render(self) -> None:
        """The conversation and the message box."""
        self.current = gr.State(Chat())
        # These pass between the browser's store and the server: one conversation, and the titles of all.
        self.record = gr.Textbox(visible="hidden")
        self.index = gr.Textbox(visible="hidden")
        self.changed = gr.Button(visible="hidden", elem_id="lsv-changed")
        self.view = gr.Chatbot(
            show_label=False,
            container=False,
            elem_id="lsv-chat",
            layout="bubble",
            height=None,
            scale=1,
            editable="user",
            placeholder=media.greeting(Model("")),
            examples=[{"text": text} for text in EXAMPLES],
            autoscroll=False,  # scroll.js does it
            latex_delimiters=_LATEX,
            buttons=["copy"],
            feedback_options=None,
            group_consecutive_messages=False,
            allow_tags=False,
        )
        self.box = gr.MultimodalTextbox(
            label="Message",
            show_label=False,
            container=False,
            elem_id="lsv-box",
            placeholder="Ask anything",
            sources=["upload", "microphone"],
            file_types=["image", "audio", "video"],
            file_count="multiple",
            max_plain_text_length=100_000,
        )
        self.hint = gr.HTML(elem_id="lsv-hint")
        self.offered = gr.Textbox(visible="hidden")

    @property
    def offering(self) -> list[Any]:
        """The components that depend on the model."""
        return [self.offered, self.view, self.hint]

    def offer(self, model: Model) -> Drawn:
        """The media inputs the model takes, and a sentence about them."""
        return media.offered(model), gr.update(placeholder=media.greeting(model)), escape(media.hint(model))

    def wire(self, page: gr.Blocks, controls: Controls) -> None:
        """Connect events to handlers."""
        self.offered.change(None, self.offered, self.box, js=media.OFFER, **QUIET)
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
        self._wire_leaving(answers)
        self._wire_store(page)

    def _wire_leaving(self, answers: list[Any]) -> None:
        """Going elsewhere ends the answer in progress, which must not be drawn over what is shown next."""
        here, shown = [self.index, self.current], [self.current, self.view, self.list, self.record]
        chosen, undone = [*here, self.record, self.list], [*shown, self.deleted, self.undo]
        index, record = (
            "(_, ...others) => [lsvStore.index(), ...others]",
            "lsvStore.index(), chat, lsvStore.read(id), id",
        )
        leaving: tuple[tuple[Any, Callable[..., Any], list[Any], list[Any], str], ...] = (
            (self.new.click, self.begin, here, shown, index),
            (self.delete.click, self.remove, here, undone, index),
            (self.undo.click, self.restore, [*here, self.deleted], undone, index),
            (self.list.input, self.open, chosen, shown, f"(_, chat, r, id) => [{record}]"),
        )
        for trigger, act, inputs, outputs, js in leaving:
            left = trigger(act, inputs, outputs, js=js, cancels=answers, **QUIET)
            # An update in flight when it was cancelled may still have been drawn, so draw once more.
            left.then(entries, self.current, self.view, **QUIET).then(self.rest, None, self.box, **QUIET)
        for trigger in (self.new.click, self.list.input):
            trigger(None, js=TUCK, **QUIET)

    def _wire_store(self, page: gr.Blocks) -> None:
        """The browser's store: written as chats change, read when the page opens or another window has written."""
        self.record.change(None, self.record, js="record => lsvStore.write(record)", **QUIET)
        self.list.change(None, self.list, js="id => { lsvStore.show(id); lsvScroll.toEnd(); }", **QUIET)
        for trigger, found in ((page.load, "first"), (self.changed.click, "shown")):
            trigger(
                self.look,
                [self.index, self.current, self.record],
                [self.current, self.view, self.list],
                js=f"(_, chat) => [lsvStore.index(), chat, lsvStore.{found}()]",
                **QUIET,
            )

    def _answered(self, asked: Any, controls: Controls) -> Any:
        """Answer a question once it has been entered; returns the event that answers.

        A question that comes while the one before is still being answered waits for its end, instead of being dropped.
        """
        answer = asked.then(
            self.answer,
            [self.index, self.current, *controls.inputs],
            [self.view, self.current, self.record, self.list, self.box],
            js="(_, ...others) => [lsvStore.index(), ...others]",
            trigger_mode="always_last",
            **QUIET,
        )
        answer.then(self.rest, None, self.box, **QUIET)
        return answer

    async def ask(self, box: dict[str, Any], chat: Chat, request: gr.Request) -> tuple[Any, Chat, Any]:
        """Take the question from the box; while an answer is being written it stays there."""
        text, files = (box.get("text") or "").strip(), box.get("files") or []
        if self._writes(request) or not (text or files):
            return gr.skip(), chat, gr.skip()
        chat.ask(text, files)
        return _writing(empty=True), chat, entries(chat)

    async def again(self, chat: Chat, event: gr.RetryData, request: gr.Request) -> tuple[Chat, Any, Any]:
        """Ask the last question again; an answer in progress ends."""
        self._leave(request)
        chat.back_to(message_at(chat, event.index))
        return chat, entries(chat), _writing()

    async def edit(self, chat: Chat, event: gr.EditData, request: gr.Request) -> tuple[Chat, Any, Any]:
        """Ask an edited question instead; an answer in progress ends."""
        self._leave(request)
        question = chat.back_to(message_at(chat, event.index))
        if question is not None:
            question.text = read_typed(str(event.value)).strip()
        return chat, entries(chat), _writing()

    async def take_example(self, chat: Chat, event: gr.SelectData, request: gr.Request) -> tuple[Chat, Any, Any]:
        if self._writes(request):
            return chat, gr.skip(), gr.skip()
        chat.ask(str(event.value["text"]))
        return chat, entries(chat), _writing()

    async def answer(self, request: gr.Request, index: str, chat: Chat, *values: Any) -> AsyncIterator[Drawn]:
        """Answer the last question, drawing as tokens come. The browser stores the question at once, then the rest."""
        if not chat.messages or chat.messages[-1].role != "user":
            yield (gr.skip(),) * 5  # without this Gradio would empty the components
            return
        turn, fields = self._turn(request), RequestFields.of(values)
        try:
            yield entries(chat), chat, chat.record(), _listed(index, chat, first=True), _writing()
            # This reads files, so it runs in a thread.
            messages = await asyncio.to_thread(request_messages, chat, fields.system)
            if fields.schema or fields.tools or fields.thinks:
                fields = fields.within(await self._api.abilities(fields.key or None))
            body = {**fields.as_json(), "messages": messages}
            if kinds := sent_kinds(messages):
                media.check(await self._api.model(fields.model, fields.key or None), kinds)
            async for drawn in self._loop(body, chat, turn, fields):
                yield drawn
        except LsvError as error:
            chat.messages.append(Message(role="assistant", error=error.message))
        finally:
            self._end(turn, request)
        if not turn.left:
            yield entries(chat), chat, chat.record(), gr.skip(), gr.skip()

    async def _loop(self, body: dict[str, Any], chat: Chat, turn: Turn, fields: RequestFields) -> AsyncIterator[Drawn]:
        """Stream an answer; where it calls tools of the page, run them and stream the one that follows."""
        kept_at = time.monotonic()
        for _ in range(tools.ROUNDS):
            message = Message(role="assistant")
            chat.messages.append(message)
            yield entries(chat), *(gr.skip(),) * 4
            async with aclosing(write(self._api, body, message, turn.stop, fields.key or None)) as progress:
                async for _ in progress:
                    if not turn.left:
                        kept: Any = gr.skip()
                        if time.monotonic() > kept_at + KEEP_SECONDS:
                            kept, kept_at = chat.record(), time.monotonic()
                        yield entries(chat), gr.skip(), kept, gr.skip(), gr.skip()
            if not (fields.tools and message.calls) or message.error or turn.stop.is_set():
                return
            tools.run(message.calls, fields.tools)
            body["messages"] = await asyncio.to_thread(request_messages, chat, fields.system)

    async def rest(self, request: gr.Request) -> Any:
        """The message box once an answer has ended: ready to send, unless another is being written by now."""
        return gr.skip() if self._writes(request) else gr.update(submit_btn=True, stop_btn=False)

    async def stop(self, request: gr.Request) -> None:
        if turn := self._turns.get(str(request.session_hash)):
            turn.stop.set()

    async def begin(self, index: str, chat: Chat, request: gr.Request) -> Drawn:
        return self._go(Chat(), index, chat, request)

    async def open(self, index: str, chat: Chat, record: str, chosen: str, request: gr.Request) -> Drawn:
        if chosen == chat.id:  # its answer may have been cancelled, but the browser has nothing newer
            chat.interrupt()
            return *self._show(chat, index, request), chat.record()
        return self._go(conversation.read_record(record) or Chat(), index, chat, request)

    async def remove(self, index: str, chat: Chat, request: gr.Request) -> Drawn:
        """Delete a conversation, and offer to undo that."""
        chat.interrupt()
        undo = gr.update(value=f"Undo: delete “{chat.title}”", visible=True)
        return *self._show(Chat(), index, request, gone=chat.id), chat.no_record(), chat, undo

    async def restore(self, index: str, chat: Chat, deleted: Chat, request: gr.Request) -> Drawn:
        """Show the conversation that was deleted last, and store it again."""
        chat.interrupt()
        record = deleted.record()  # this also makes it the latest version, so the browser stores it
        return *self._show(deleted, index, request), record, Chat(), gr.update(visible=False)

    async def look(self, index: str, chat: Chat, record: str, request: gr.Request) -> Drawn:
        """Show what the browser has stored, when the page opens or another window has changed it.

        An answer in progress here takes precedence over what other windows wrote.
        """
        found = conversation.read_record(record)
        if self._writes(request) or found is None or found.at <= chat.at:
            return gr.skip(), gr.skip(), _listed(index, chat)
        return self._show(found, index, request)

    def _go(self, chat: Chat, index: str, left: Chat, request: gr.Request) -> Drawn:
        """Show another conversation; an unfinished answer in the one being left is kept."""
        kept = left.record() if left.interrupt() else gr.skip()
        return *self._show(chat, index, request), kept

    def _show(self, chat: Chat, index: str, request: gr.Request, gone: str = "") -> Drawn:
        self._leave(request)
        return chat, entries(chat), _listed(index, chat, gone=gone)

    def _turn(self, request: gr.Request) -> Turn:
        """A new turn; an answer in progress in this window ends."""
        self._leave(request)
        turn = self._turns[str(request.session_hash)] = Turn()
        return turn

    def _writes(self, request: gr.Request) -> bool:
        """Whether an answer is being written in this window."""
        return str(request.session_hash) in self._turns

    def _end(self, turn: Turn, request: gr.Request) -> None:
        if self._turns.get(str(request.session_hash)) is turn:
            del self._turns[str(request.session_hash)]

    def _leave(self, request: gr.Request) -> None:
        if turn := self._turns.pop(str(request.session_hash), None):
            turn.left = True
            turn.stop.set()


def _listed(index: str, chat: Chat, *, first: bool = False, gone: str = "") -> Any:
    """The list of conversations, including ``chat`` once it has a message; with ``first``, it moves to the top."""
    listed = {name: title for name, title in conversation.read_index(index) if name != gone}
    if chat.id and (first or chat.id not in listed):
        listed = {chat.id: chat.title, **listed}
    return gr.update(choices=[(title, name) for name, title in listed.items()], value=chat.id or None)


def _writing(*, empty: bool = False) -> Any:
    """The message box while an answer streams in: its button stops instead of sending."""
    changes: dict[str, Any] = {"value": None} if empty else {}
    return gr.update(submit_btn=False, stop_btn=True, **changes)
