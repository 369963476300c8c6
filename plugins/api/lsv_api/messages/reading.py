"""From a body of Messages to the chat request that says the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from lsv.text.answer_parser import KnowsThoughts
from lsv_api.http.context import Served
from lsv_api.http.failures import Unsupported
from lsv_api.messages.conversation import ChatMessages, simpler_messages
from lsv_api.messages.records import (
    MessagesCountRequest,
    MessagesRequest,
    MessagesThinkingConfig,
    MessagesTool,
    MessagesToolChoice,
)
from lsv_api.messages.signatures import Signer
from lsv_api.openai.asking import naming_fields, rewording
from lsv_api.openai.conversation import SWITCHES
from lsv_api.records.requests import ChatRequest, JsonSchemaFormat, ResponseFormat, SampledRequest
from lsv_base.errors import BadRequest

Result = TypeVar("Result")

_NAMES = {
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
    "response_format": "output_config.format",
    "chat_template_kwargs": "thinking",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
"""Fields of ``ChatRequest`` → Anthropic's."""

_UNAVAILABLE = ("container", "mcp_servers", "compaction", "thread")
"""Fields that need Anthropic's own machines."""


class Read:
    """A body, read: the chat request, and how errors about it name the fields of the body."""

    def __init__(self, body: MessagesCountRequest, served: Served, signer: Signer) -> None:
        _refuse_unavailable(body)
        self._conversation = ChatMessages(body, signer)
        goes_on = self._conversation.goes_on
        self.chat = ChatRequest(
            messages=self._conversation.messages,
            tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())] or None,
            stop=body.stop_sequences,
            max_tokens=body.max_tokens if isinstance(body, MessagesRequest) else None,
            add_generation_prompt=False if goes_on else None,
            continue_final_message=True if goes_on else None,
            response_format=_format(body),
            **_choice(body.tool_choice),
            **_thinking(body, served),
            **{name: getattr(body, name) for name in SampledRequest.__struct_fields__},
        )

    async def ask(self, ask: Callable[[ChatRequest], Awaitable[Result]]) -> Result:
        """Have the chat request asked; in a simpler form where the model's template refuses this one.

        Raises ``BadRequest`` with the fields of the body.
        """
        with self._naming():
            try:
                return await ask(self.chat)
            except BadRequest as error:
                simpler = simpler_messages(self.chat.messages) if _is_about_messages(error) else None
                if simpler is None:
                    raise
                refused = error
            self.chat.messages = simpler
            try:
                return await ask(self.chat)
            except BadRequest as error:
                raise (refused if _is_about_messages(error) else error) from None

    @contextmanager
    def _naming(self) -> Iterator[None]:
        with naming_fields(_NAMES), rewording(_own_name), self._conversation.naming_places():
            yield


def _is_about_messages(error: BadRequest) -> bool:
    """Whether the template, or the model's media, refused the conversation."""
    return type(error) is BadRequest and (error.param or "").startswith("messages")


def _own_name(text: str) -> str:
    """A text about a function of a chat, about the tool that it was made of."""
    return text.replace("].function.parameters", "].input_schema").replace("].function", "]")


def _refuse_unavailable(body: MessagesCountRequest) -> None:
    for name in _UNAVAILABLE:
        if getattr(body, name):
            raise Unsupported(f"{name} is not available on this server; leave it out", param=name)
    edits = body.context_management.edits if body.context_management is not None else None
    for index, edit in enumerate(edits or ()):
        where = f"context_management.edits[{index}]"
        if edit.type != "clear_thinking_20251015" or edit.keep != "all":
            raise Unsupported(
                f"{where}: this server edits no conversations; it takes clear_thinking_20251015 with keep all, which "
                "changes nothing: send the conversation as it is to be read",
                param=where,
            )


def _tool(tool: MessagesTool, where: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise Unsupported(
            f"{where}.type: {tool.type[:64]!r} is a tool of Anthropic's, which this server does not have; declare "
            "your own with a name and an input_schema, or leave it out",
            param=f"{where}.type",
        )
    if tool.input_schema is None:
        raise BadRequest(f"{where}.input_schema is required", param=f"{where}.input_schema")
    if tool.allowed_callers and "direct" not in tool.allowed_callers:
        raise Unsupported(
            f"{where}.allowed_callers: here the model calls tools by itself alone; add direct, or leave it out",
            param=f"{where}.allowed_callers",
        )
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(choice: MessagesToolChoice | None) -> dict[str, Any]:
    if choice is None:
        return {}
    found: dict[str, Any] = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    if choice.type == "tool":
        if choice.name is None:
            raise BadRequest("tool_choice.name is required with type tool", param="tool_choice.name")
        return {"tool_choice": {"type": "function", "function": {"name": choice.name}}, **found}
    return {"tool_choice": "required" if choice.type == "any" else choice.type, **found}


def _format(body: MessagesCountRequest) -> ResponseFormat | None:
    given = body.output_config.format if body.output_config is not None else None
    given = given or body.output_format
    if given is None:
        return None
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(name="answer", schema=given.schema))


def _thinking(body: MessagesCountRequest, served: Served) -> dict[str, Any]:
    """The variables of the chat template that say whether and how much to think, and the budget."""
    config, found = body.thinking, dict[str, Any]()
    variables: dict[str, Any] = {}
    thoughts: object = served.parsing.thoughts
    if body.output_config is not None and body.output_config.effort is not None:
        variables["reasoning_effort"] = body.output_config.effort
    if config is not None:
        variables |= dict.fromkeys(SWITCHES, config.type != "disabled")
        budget = _budget(config)
        if budget is not None and isinstance(thoughts, KnowsThoughts):
            found["thinking_token_budget"] = budget
    return {"chat_template_kwargs": variables or None, **found}


def _budget(config: MessagesThinkingConfig) -> int | None:
    if config.type != "enabled":
        if config.budget_tokens is not None:
            raise BadRequest("thinking.budget_tokens is for type enabled", param="thinking.budget_tokens")
        return None
    if config.budget_tokens is None or config.budget_tokens < 1:
        raise BadRequest(
            f"thinking.budget_tokens must be at least 1 with type enabled, got {config.budget_tokens}",
            param="thinking.budget_tokens",
        )
    return config.budget_tokens
