// OpenAI's client for Node: a streamed answer, then a call of a function by chat completions and by the Responses API.
// npm install openai; node openai_chat.mjs http://localhost:8000

import OpenAI from "openai";

const [url = "http://localhost:8000", model = "lsv-demo"] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "EMPTY", maxRetries: 0 });
const asked = { model, temperature: 0 };

const messages = [{ role: "user", content: "What is the capital of Spain?" }];
const stream = await client.chat.completions.create({ ...asked, messages, stream: true });
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta.content ?? "");
console.log();

const weather = {
  name: "get_weather",
  description: "Get the weather in a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const question = { role: "user", content: "What is the weather in Bern?" };
const tools = [{ type: "function", function: weather }];
const chat = await client.chat.completions.create({ ...asked, messages: [question], tools });
for (const call of chat.choices[0].message.tool_calls) {
  console.log(`it calls ${call.function.name}(${call.function.arguments})`);
}

const response = await client.responses.create({ ...asked, input: [question], tools: [{ type: "function", ...weather }] });
for (const item of response.output) {
  if (item.type === "function_call") console.log(`it calls ${item.name}(${item.arguments})`);
}
