// A conversation by Anthropic's Messages in Node: a streamed text, then a call of a function.
// npm install @anthropic-ai/sdk; node messages.mjs http://localhost:8000

import Anthropic from "@anthropic-ai/sdk";

const [url = "http://localhost:8000", model = "lsv-demo"] = process.argv.slice(2);
const client = new Anthropic({ baseURL: url, apiKey: "EMPTY", maxRetries: 0 });
const asked = { model, max_tokens: 200, temperature: 0 };

const stream = client.messages.stream({ ...asked, messages: [{ role: "user", content: "Who are you?" }] });
stream.on("text", (text) => process.stdout.write(text));
const said = await stream.finalMessage();
console.log(` (${said.stop_reason}, ${said.usage.output_tokens} tokens)`);

const weather = {
  name: "get_weather",
  description: "Get the weather in a city.",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const called = await client.messages
  .stream({ ...asked, tools: [weather], messages: [{ role: "user", content: "What is the weather in Bern?" }] })
  .finalMessage();
for (const block of called.content) {
  if (block.type === "tool_use") console.log(`it calls ${block.name}(${JSON.stringify(block.input)})`);
}
