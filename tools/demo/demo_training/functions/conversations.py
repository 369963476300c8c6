"""Conversations with functions, as training text and as held-out cases; both are what the chat template renders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from demo_training.chat import system_turn
from demo_training.corpus import ASKED, Document
from demo_training.functions.exchanges import Said, Step, exchange
from demo_training.functions.offered import CALCULATOR, WEATHER, Offer, offer
from demo_training.question import Split
from demo_training.skills.context import UNTOLD
from demo_training.template import CHAT_TEMPLATE, END_OF_TEXT, END_OF_TURN, THINK, THOUGHT, turn_start
from lsv.text.chat_template import ChatTemplates

Tools = list[dict[str, Any]] | None

ALONE = 0.15
"""Share of conversations without functions."""
THINKING = 0.3
"""Share of conversations that end in an answer with a thought before it."""


@dataclass(frozen=True)
class Conversation:
    """What is offered and said, and the kind of exchange that each message belongs to."""

    tools: Tools
    steps: tuple[Step, ...]
    kinds: tuple[str, ...]

    @property
    def messages(self) -> list[Said]:
        return [step.message for step in self.steps]


def conversation(split: Split, rng: Random, most: int = 4, shipped: bool = False) -> Conversation:
    """One to ``most`` exchanges with the same functions; ``shipped``: with those that the web page offers."""
    offered = Offer((), None, None) if rng.random() < ALONE else offer(rng)
    if shipped:
        offered = Offer((CALCULATOR, WEATHER), CALCULATOR, WEATHER)
    steps = [Step(dict(message)) for message in system_turn(rng)]
    kinds = ["system"] * len(steps)
    for number in range(rng.choice((1, 1, *range(1, most + 1)))):
        made = exchange(offered, split, rng)
        if number and made.steps[0].message["role"] == "system":
            continue
        if number and made.steps[-1].message["content"] == UNTOLD:  # An earlier turn may have told it.
            continue
        if made.steps[0].message["role"] == "system":
            steps, kinds = [], []
        steps += made.steps
        kinds += [made.kind] * len(made.steps)
    return Conversation(offered.as_tools(), tuple(steps), tuple(kinds))


@cache
def _templates() -> ChatTemplates:
    return ChatTemplates({"default": CHAT_TEMPLATE}, {})


def rendered(messages: list[Said], tools: Tools, prompt: bool = False, thinking: bool = False) -> str:
    """As the server renders it."""
    return _templates().render(
        messages, tools=tools, add_generation_prompt=prompt, kwargs={"enable_thinking": thinking}
    )


def document(made: Conversation, thinking: bool, rng: Random) -> Document:
    """The loss is on what the assistant is to learn; with ``thinking`` it ends behind one answer and its thought."""
    steps = made.steps
    if thinking:
        steps = steps[: 1 + rng.choice([place for place, step in enumerate(steps) if step.thought])]
    pieces: Document = []
    before = ""
    for count, step in enumerate(steps, start=1):
        text = rendered([each.message for each in steps[:count]], made.tools)
        new = text[len(before) :]
        if not step.thought:
            pieces.append((new, ASKED))
        else:
            opening = turn_start("assistant")
            said = new.removeprefix(opening).removesuffix("\n")
            if thinking and count == len(steps):
                pieces.append((opening + THINK, 0.0))
                said = step.thought + THOUGHT + said
            else:
                pieces.append((opening, ASKED))
            pieces += [(said, 1.0), ("\n", ASKED)]
        before = text
    return pieces


def documents(rng: Random) -> Iterator[Document]:
    """Endless training documents."""
    while True:
        made = conversation("train", rng)
        yield [*document(made, rng.random() < THINKING, rng), (END_OF_TEXT, 1.0)]


@dataclass(frozen=True)
class Case:
    """A request, and the message that should come back; ``kind`` groups them in the score."""

    kind: str
    tools: Tools
    messages: list[Said]
    answer: Said
    thought: str = ""
    """What should be thought first; nothing where thinking is not asked for."""

    @property
    def prompt(self) -> str:
        return rendered(self.messages, self.tools, prompt=True, thinking=bool(self.thought))

    @property
    def said(self) -> str:
        """What the model should write."""
        whole = rendered([*self.messages, self.answer], self.tools)
        answer = whole[whole.rindex(turn_start("assistant")) :].removeprefix(turn_start("assistant"))
        return (self.thought + THOUGHT if self.thought else "") + answer.removesuffix(END_OF_TURN + "\n")


KINDS = ("calculator", "weather", "no function", "read calculator", "read weather", "thinking")
RARE = ("several", "read several")
"""Kinds with half the share of others: two calls at once, and their results."""


def cases(count: int, seed: int, shipped: bool = False) -> list[Case]:
    """``count`` held-out cases, the kinds in turn; those that think are of any kind."""
    rng = Random(f"functions {seed}")
    order = [kind for rare in RARE for kind in (*KINDS, rare)]
    found: list[Case] = []
    while len(found) < count:
        wanted = order[len(found) % len(order)]
        case = None
        while case is None or case.kind != wanted:
            case = _case(conversation("test", rng, most=2, shipped=shipped), wanted == "thinking", rng)
        found.append(case)
    return found


def _case(made: Conversation, thinking: bool, rng: Random) -> Case | None:
    """One answer of a conversation that has functions."""
    place = rng.choice([place for place, step in enumerate(made.steps) if step.thought])
    if made.tools is None:
        return None
    messages = made.messages
    read = messages[place - 1]["role"] == "tool"
    kind = "thinking" if thinking else f"read {made.kinds[place]}" if read else made.kinds[place]
    return Case(kind, made.tools, messages[:place], messages[place], made.steps[place].thought if thinking else "")
