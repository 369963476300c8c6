"""The page's own endpoint for ``gradio_client``; Gradio reads the annotations, so they must not be strings."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import gradio as gr

from lsv_base.errors import LsvError
from lsv_webui.api import Api
from lsv_webui.chat.conversation import Chat
from lsv_webui.chat.parts import request_messages
from lsv_webui.chat.thinking import part


def chat_endpoint(api: Api) -> Callable[..., AsyncIterator[str]]:
    """The function behind ``/chat``."""

    async def chat(
        message: str,
        files: list[gr.FileData] | None = None,
        system_prompt: str = "",
        model: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        api_key: str | None = None,
    ) -> AsyncIterator[str]:
        """Answer one message; streams the answer so far, without what the model thought before it."""
        asked = Chat()
        asked.ask(message, [dict(file)["path"] for file in files or ()])
        given = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
        content = ""
        try:
            body = {name: value for name, value in given.items() if value is not None}
            messages = await asyncio.to_thread(request_messages, asked, system_prompt)
            async with aclosing(api.chat({**body, "messages": messages}, api_key)) as events:
                async for event in events:
                    for choice in event.get("choices", ()):
                        if piece := choice["delta"].get("content"):
                            content += piece
                            yield part(content)[1]
        except LsvError as error:
            raise gr.Error(error.message, print_exception=False) from None

    return chat
