// Reads one JSON object a line from stdin, makes that call with the stock SDK, one after another in this one process, and
// prints one JSON line for each: {text} or {error, status, message}. Run by tests/harness/node.py.
//
// {sdk, base_url, api_key, model, prompt, stream, timeout_s, max_retries}: null leaves the SDK's default.

import { createInterface } from "node:readline";

import Anthropic from "@anthropic-ai/sdk";
import { GoogleGenAI } from "@google/genai";
import OpenAI from "openai";

const MAX_TOKENS = 64;

const stainless = (asked) => ({
  baseURL: asked.base_url,
  apiKey: asked.api_key,
  timeout: asked.timeout_s === null ? undefined : asked.timeout_s * 1000,
  maxRetries: asked.max_retries ?? undefined,
});

const messages = (asked) => [{ role: "user", content: asked.prompt }];

async function joined(stream, textOf) {
  let text = "";
  for await (const event of stream) text += textOf(event) ?? "";
  return text;
}

const SDKS = {
  async openai_chat(asked) {
    const { model, stream } = asked;
    const answer = await new OpenAI(stainless(asked)).chat.completions.create({ model, stream, messages: messages(asked) });
    return stream ? joined(answer, (chunk) => chunk.choices[0]?.delta.content) : answer.choices[0].message.content;
  },

  async openai_responses(asked) {
    const { model, stream, prompt: input } = asked;
    const answer = await new OpenAI(stainless(asked)).responses.create({ model, stream, input });
    const deltaOf = (event) => (event.type === "response.output_text.delta" ? event.delta : "");
    return stream ? joined(answer, deltaOf) : answer.output_text;
  },

  async anthropic(asked) {
    const body = { model: asked.model, stream: asked.stream, max_tokens: MAX_TOKENS, messages: messages(asked) };
    const answer = await new Anthropic(stainless(asked)).messages.create(body);
    return asked.stream ? joined(answer, (event) => event.delta?.text) : answer.content[0].text;
  },

  async gemini(asked) {
    const httpOptions = { baseUrl: asked.base_url };
    if (asked.timeout_s !== null) httpOptions.timeout = asked.timeout_s * 1000;
    if (asked.max_retries !== null) httpOptions.retryOptions = { attempts: asked.max_retries + 1, initialDelay: 0.5 };
    const { models } = new GoogleGenAI({ apiKey: asked.api_key, httpOptions });
    const body = { model: asked.model, contents: asked.prompt };
    return asked.stream
      ? joined(await models.generateContentStream(body), (chunk) => chunk.text)
      : (await models.generateContent(body)).text;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  const said = await SDKS[asked.sdk](asked).then(
    (text) => ({ text }),
    (error) => ({ error: error.constructor.name, status: error.status ?? null, message: error.message }),
  );
  console.log(JSON.stringify(said));
}
