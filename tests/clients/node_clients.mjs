// The official Node clients of OpenAI and Anthropic and the AI SDK, unchanged: `node node_clients.mjs BASE_URL`.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAI } from "@ai-sdk/openai";
import { streamText } from "ai";
import OpenAI from "openai";

const baseURL = process.argv[2];
// At temperature 0, and so long an answer that every reply is cut: none may end by a chance of sampling.
const story = "Write a long story about a river, a mill and a dog.";
const messages = [{ role: "user", content: story }];
const sampling = { temperature: 0 };

const openai = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const model = (await openai.models.list()).data[0].id;
assert.equal((await openai.models.retrieve(model)).id, model);
let text = "";
for await (const chunk of await openai.chat.completions.create({ model, messages, max_tokens: 4, stream: true, ...sampling })) {
  text += chunk.choices[0].delta.content ?? "";
}
assert.ok(text);
const stream = openai.responses.stream({ model, input: story, max_output_tokens: 4, ...sampling });
text = "";
for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
const response = await stream.finalResponse();
assert.deepEqual([response.output_text, response.status], [text, "incomplete"]);

const anthropic = new Anthropic({ baseURL: baseURL.replace(/\/v1$/, ""), apiKey: "none", maxRetries: 0 });
text = "";
const said = anthropic.messages.stream({ model, max_tokens: 4, messages, ...sampling }).on("text", (piece) => (text += piece));
const message = await said.finalMessage();
assert.deepEqual([message.content[0].text, message.stop_reason], [text, "max_tokens"]);

const provider = createOpenAI({ baseURL, apiKey: "none" });
for (const shape of [provider(model), provider.chat(model)]) {
  const result = streamText({ model: shape, prompt: story, maxOutputTokens: 4, maxRetries: 0, onError: () => {}, ...sampling });
  const parts = [];
  for await (const part of result.fullStream) {
    assert.notEqual(part.type, "error", JSON.stringify(part.error));
    parts.push(part.type);
  }
  assert.ok(parts.includes("text-delta"));
  assert.equal(await result.finishReason, "length");
}
console.log("ok");
