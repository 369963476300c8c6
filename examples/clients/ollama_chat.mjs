// A conversation with Ollama's own client for Node: npm install ollama, then node ollama_chat.mjs http://localhost:8000
import { Ollama } from 'ollama'

const client = new Ollama({ host: process.argv[2] ?? 'http://localhost:8000' })
const model = process.argv[3] ?? (await client.list()).models[0].name
const messages = [{ role: 'user', content: 'What is the capital of Spain?' }]
const options = { temperature: 0, num_predict: 64 }
let last
for await (const piece of await client.chat({ model, messages, options, stream: true })) {
  process.stdout.write(piece.message.content)
  last = piece
}
console.log(`\n${last.eval_count} tokens in ${(last.total_duration / 1e9).toFixed(2)} s`)
