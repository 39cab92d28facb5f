#!/usr/bin/env python3
"""Asks a server of models/demo what tests/data/vllm_answers.jsonl holds and writes the answers there.

Usage: record_vllm_answers.py BASE_URL OUTPUT, where vLLM 0.32 was started with
  vllm serve models/demo --served-model-name demo --max-model-len 256 --dtype float32 --enforce-eager
One line a call: method, path, body as it is sent, status, and the answer: a JSON value, or the chunks of a stream.
What differs from run to run (ids, times, fingerprints) is replaced by its type's name.
"""
import http.client
import json
import sys
import urllib.parse

VOLATILE = {"id", "created", "system_fingerprint", "root"}
CHAT = [{"role": "user", "content": "Who is the cat?"}]
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def without_volatile(value):
    if isinstance(value, dict):
        return {k: (type(v).__name__ if k in VOLATILE and v is not None else without_volatile(v))
                for k, v in value.items()}
    if isinstance(value, list):
        return [without_volatile(item) for item in value]
    return value


def completions():
    greedy = {"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0}

    def of(**fields):
        return {**greedy, **fields}

    yield of()
    yield of(model="demo")
    yield of(model=None)
    yield of(model="")
    yield of(model="other")
    yield of(model=3)
    yield of(max_tokens=None)
    yield of(max_tokens=0)
    yield of(max_tokens=-1)
    yield of(max_tokens=257)
    yield of(max_tokens=256)
    yield of(max_tokens="x")
    yield of(max_tokens=1.5)
    yield of(max_tokens=3.0)
    yield of(prompt=[1, 2, 3])
    yield of(prompt=[[1, 2], [3]])
    yield of(prompt=["The cat", "The dog"])
    yield of(prompt=["The cat", "The dog"], n=2, temperature=1, seed=1, max_tokens=2)
    yield of(prompt="")
    yield of(prompt=[])
    yield of(prompt=None)
    yield of(prompt=3)
    yield of(prompt=[99999])
    yield of(prompt=[-1])
    yield of(prompt=["a", 3])
    yield of(prompt=[""])
    yield of(prompt=[5] * 256)
    yield of(prompt=[5] * 257)
    yield of(prompt="cat " * 300)
    yield {"max_tokens": 3}
    yield of(echo=True)
    yield of(echo=True, max_tokens=0)
    yield of(echo=True, max_tokens=0, logprobs=1)
    yield of(echo=True, max_tokens=2, logprobs=2)
    yield of(echo=True, max_tokens=2, prompt=[1, 2, 3])
    yield of(echo=True, max_tokens=2, stream=True, logprobs=1)
    yield of(echo=True, max_tokens=0, stream=True)
    yield of(logprobs=0)
    yield of(logprobs=2)
    yield of(logprobs=-1)
    yield of(logprobs=-2)
    yield of(logprobs=21)
    yield of(logprobs="x")
    yield of(logprobs=1, return_tokens_as_token_ids=True)
    yield of(return_token_ids=True)
    yield of(return_token_ids=True, stream=True)
    yield of(prompt_logprobs=1, max_tokens=1)
    yield of(prompt_logprobs=1, stream=True)
    yield of(stop=" ")
    yield of(stop=["girl", "named"], max_tokens=20)
    yield of(stop=["girl", "named"], max_tokens=20, include_stop_str_in_output=True)
    yield of(stop="")
    yield of(stop=[])
    yield of(stop=3)
    yield of(stop=["a", "b", "c", "d", "e"])
    yield of(stop_token_ids=[5])
    yield of(stop_token_ids=["x"])
    yield of(temperature=-1)
    yield of(temperature="hot")
    yield of(temperature=None)
    yield of(top_p=0)
    yield of(top_p=1.5)
    yield of(top_k=-2)
    yield of(min_p=2)
    yield of(n=0)
    yield of(n=None)
    yield of(n=2)
    yield of(seed=1.5)
    yield of(seed=-1)
    yield of(presence_penalty=3)
    yield of(repetition_penalty=0)
    yield of(min_tokens=7)
    yield of(min_tokens=None)
    yield of(logit_bias={"5": 100}, max_tokens=1)
    yield of(logit_bias={"x": 1})
    yield of(logit_bias={"99999": 1})
    yield of(ignore_eos=None)
    yield of(bad_words=["girl"])
    yield of(priority=1)
    yield of(priority="x")
    yield of(user="u", unknown={"a": 1})
    yield of(suffix="x")
    yield of(best_of=2)
    yield of(use_beam_search=False)
    yield of(response_format={"type": "text"})
    yield of(response_format={"type": "nothing"})
    yield of(stream=True)
    yield of(stream="yes")
    yield of(stream=True, stream_options={"include_usage": True})
    yield of(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}, max_tokens=2)
    yield of(stream=True, stream_options={"continuous_usage_stats": True}, max_tokens=2)
    yield of(stream_options={"include_usage": True})
    yield of(stream=True, stream_options=3)
    yield of(stream=True, logprobs=1, max_tokens=3)
    yield of(stream=True, n=2, temperature=1, seed=1, max_tokens=2)
    yield of(stream=True, prompt=["The cat", "The dog"], max_tokens=2)
    yield of(stream=True, stop=["girl"], max_tokens=20)
    yield of(stream=True, model="other")
    yield of(request_id="mine")


def chats():
    greedy = {"messages": CHAT, "max_tokens": 6, "temperature": 0}

    def of(**fields):
        return {**greedy, **fields}

    def said(content):
        return of(messages=[{"role": "user", "content": content}], max_tokens=1, return_token_ids=True)

    yield of()
    yield of(model="other")
    yield of(messages=[])
    yield of(messages=None)
    yield of(messages="hello")
    yield of(messages=[{"content": "x"}])
    yield of(messages=[{"role": "user"}], max_tokens=1)
    yield of(messages=["x"])
    yield {"max_tokens": 1}
    yield said([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    yield said(None)
    yield said([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}])
    yield said([{"type": "nothing"}])
    yield said(3)
    yield of(max_tokens=None, max_completion_tokens=3)
    yield of(max_tokens=0)
    yield of(max_tokens=257)
    yield of(max_completion_tokens=257)
    yield of(logprobs=True, max_tokens=2)
    yield of(logprobs=True, top_logprobs=2, max_tokens=2)
    yield of(logprobs=True, top_logprobs=21)
    yield of(logprobs=True, top_logprobs=None, max_tokens=1)
    yield of(top_logprobs=2)
    yield of(logprobs=2)
    yield of(prompt_logprobs=0, max_tokens=1)
    yield of(n=2, temperature=1, seed=3, max_tokens=2)
    yield of(stop=["a"], max_tokens=20)
    yield of(echo=True, max_tokens=1)
    yield of(return_token_ids=True, max_tokens=2)
    yield of(return_prompt_text=True, max_tokens=1)
    yield of(add_generation_prompt=False, max_tokens=1, return_prompt_text=True)
    continued = CHAT + [{"role": "assistant", "content": "The cat is"}]
    yield of(messages=continued, continue_final_message=True, max_tokens=1)
    yield of(messages=continued, continue_final_message=True, add_generation_prompt=True, max_tokens=1)
    yield of(messages=continued, continue_final_message=True, add_generation_prompt=False, max_tokens=1,
             return_token_ids=True)
    yield of(messages=continued, continue_final_message=True, add_generation_prompt=False, max_tokens=2, stream=True)
    yield of(add_special_tokens=True, max_tokens=1)
    yield of(chat_template="x")
    yield of(chat_template_kwargs={"enable_thinking": False}, max_tokens=1)
    yield of(chat_template_kwargs={"chat_template": "x"})
    yield of(chat_template_kwargs=3)
    yield of(documents=[{"a": "b"}], max_tokens=1)
    yield of(reasoning_effort="low", max_tokens=1)
    yield of(reasoning_effort="much")
    yield of(tools=[TOOL])
    yield of(tools=[TOOL], tool_choice="none", max_tokens=1)
    yield of(tools=[TOOL], tool_choice="auto")
    yield of(tools=[TOOL], tool_choice="maybe")
    yield of(tools=[])
    yield of(tools=[{"type": "function"}])
    yield of(tool_choice="auto")
    yield of(tool_choice="none", max_tokens=1)
    yield of(messages=CHAT + [{"role": "assistant", "content": None, "tool_calls": [
        {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
        {"role": "tool", "tool_call_id": "x", "content": "r"}], max_tokens=1, return_token_ids=True)
    yield of(messages=CHAT + [{"role": "assistant", "content": "y", "reasoning_content": "z"}], max_tokens=1,
             return_token_ids=True)
    yield of(stream=True)
    yield of(stream=True, stream_options={"include_usage": True}, max_tokens=2)
    yield of(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}, max_tokens=2)
    yield of(stream=True, logprobs=True, top_logprobs=1, max_tokens=2)
    yield of(stream=True, n=2, temperature=1, seed=3, max_tokens=2)
    yield of(stream=True, return_token_ids=True, max_tokens=2)
    yield of(stream=True, echo=True, add_generation_prompt=False, max_tokens=1)
    yield of(temperature=3, max_tokens=1)
    yield of(user="u", metadata={"a": "b"}, store=False, service_tier="auto", max_tokens=1)


def calls():
    yield from (("POST", "/v1/completions", json.dumps(body)) for body in completions())
    yield from (("POST", "/v1/chat/completions", json.dumps(body)) for body in chats())
    for body in ({"prompt": "The cat"}, {"prompt": "The cat", "return_token_strs": True},
                 {"prompt": "The cat", "add_special_tokens": False}, {"messages": CHAT},
                 {"messages": CHAT, "add_generation_prompt": False}, {"prompt": ""}, {"prompt": 3}, {},
                 {"prompt": "a", "model": "other"}):
        yield "POST", "/tokenize", json.dumps(body)
    for body in ({"tokens": [5, 6, 7]}, {"tokens": []}, {"tokens": "x"}, {"tokens": [-1]}, {"tokens": [4096]}, {}):
        yield "POST", "/detokenize", json.dumps(body)
    for body in ("", "{", "[]", "3", '{"prompt": "a", "temperature": NaN}'):
        yield "POST", "/v1/completions", body
    yield "GET", "/v1/models", ""
    yield "GET", "/v1/completions", ""
    yield "GET", "/health", ""
    yield "GET", "/nothing", ""


def ask(host, port, method, path, body):
    connection = http.client.HTTPConnection(host, port, timeout=120)
    connection.request(method, path, body.encode() if body else None, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    record = {"method": method, "path": path, "body": body, "status": response.status}
    if "event-stream" in response.getheader("Content-Type", ""):
        data = [line[6:] for line in text.split("\n\n") if line.startswith("data: ")]
        record["chunks"] = [part if part == "[DONE]" else without_volatile(json.loads(part)) for part in data]
    else:
        try:
            record["answer"] = without_volatile(json.loads(text))
        except ValueError:
            record["answer"] = text
    return record


def main():
    url = urllib.parse.urlparse(sys.argv[1])
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        for method, path, body in calls():
            record = ask(url.hostname, url.port, method, path, body)
            out.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
