"""A page that continues a text while it is typed out: ``python page.py --url http://localhost:8000/v1 --port 8001``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

import gradio as gr
from openai import OpenAI

Complete = Callable[[str], Iterator[str]]


def completing(url: str, api_key: str = "EMPTY") -> Complete:
    """From a text to what it is with its continuation so far."""
    client = OpenAI(base_url=url, api_key=api_key)
    model = client.models.list().data[0].id

    def complete(prompt: str) -> Iterator[str]:
        text = prompt
        for event in client.completions.create(model=model, prompt=prompt, max_tokens=128, stream=True):
            text += event.choices[0].text
            yield text

    return complete


def build(complete: Complete) -> gr.Blocks:
    with gr.Blocks(title="Completion") as page:
        prompt = gr.Textbox(label="Text", placeholder="The capital of France is")
        found = gr.Textbox(label="With its continuation", lines=8)
        prompt.submit(complete, prompt, found)
    return page


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://localhost:8000/v1", help="of the server, ending in /v1")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001)
    given = parser.parse_args(arguments)
    build(completing(given.url)).queue().launch(server_name=given.host, server_port=given.port)


if __name__ == "__main__":
    main()
