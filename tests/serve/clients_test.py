"""Programs that people point at such servers: the openai package, lm_eval, and a fuzzer that reads the schema."""
import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from serve_testing import MODEL, ServeTest, Server, run_tests  # noqa: E402

MISSING = [name for name in ("openai", "lm_eval", "transformers", "schemathesis") if importlib.util.find_spec(name) is None]
CHAT = [{"role": "user", "content": "Tell me a story about a dog."}]


class Clients(ServeTest):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "demo", "--tool-call-parser", "hermes")
        cls.addClassCleanup(cls.server.close)
        cls.url = f"http://127.0.0.1:{cls.server.port}/v1"


@unittest.skipIf("openai" in MISSING, "no openai package")
class OpenAi(Clients):
    def client(self):
        import openai
        return openai.OpenAI(base_url=self.url, api_key="none")

    def test_completions_and_chats_whole_and_streamed(self):
        client = self.client()
        self.assertEqual([model.id for model in client.models.list()], ["demo"])
        whole = client.completions.create(model="demo", prompt="Once upon a time", max_tokens=20, temperature=0, logprobs=2, echo=True)
        self.assertTrue(whole.choices[0].text.startswith("Once upon a time"))
        self.assertEqual(len(whole.choices[0].logprobs.tokens), len(whole.choices[0].logprobs.token_logprobs))
        self.assertIsNone(whole.choices[0].logprobs.token_logprobs[0])
        chat = client.chat.completions.create(model="demo", messages=CHAT, max_tokens=20, temperature=0, logprobs=True, top_logprobs=3)
        self.assertEqual(len(chat.choices[0].logprobs.content), chat.usage.completion_tokens)
        self.assertEqual(len(chat.choices[0].logprobs.content[0].top_logprobs), 3)
        text, usage = "", None
        for chunk in client.chat.completions.create(model="demo", messages=CHAT, max_tokens=20, temperature=0, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        self.assertEqual(text, chat.choices[0].message.content)
        self.assertEqual(usage, chat.usage)

    def test_responses_whole_and_streamed(self):
        import openai
        client = self.client()
        tools = [{"type": "function", "name": "weather", "description": "of a town", "strict": False, "parameters": {"type": "object", "properties": {}}}]
        asked = {"model": "demo", "instructions": "You are a dog.", "max_output_tokens": 20, "temperature": 0, "extra_body": {"ignore_eos": True}}
        whole = client.responses.create(input=CHAT, tools=tools, **asked)
        self.assertEqual((whole.status, whole.usage.output_tokens, whole.store), ("incomplete", 20, False))
        with client.responses.stream(input=CHAT, tools=tools, **asked) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        self.assertEqual(text, whole.output_text)
        ended = {**asked, "extra_body": {"stop": [text[10:15]]}}  # the helper has a last response of what ended by itself
        with client.responses.stream(input=CHAT, **ended) as stream:
            last = stream.get_final_response()
        self.assertEqual((last.status, last.output_text), ("completed", client.responses.create(input=CHAT, **ended).output_text))
        history = [*CHAT, *last.output, {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"},
                   {"type": "function_call_output", "call_id": "1", "output": "sunny"}]
        self.assertGreater(client.responses.create(input=history, tools=tools, **asked).usage.input_tokens, whole.usage.input_tokens)
        with self.assertRaises(openai.NotFoundError) as caught:
            client.responses.create(input="x", previous_response_id=whole.id, **asked)
        self.assertEqual(caught.exception.code, "previous_response_not_found")
        with self.assertRaises(openai.NotFoundError):
            client.responses.retrieve(whole.id)

    def test_many_asynchronous_streams(self):
        import openai

        async def one(client, i):
            text = ""
            stream = await client.completions.create(model="demo", prompt=f"{i} dogs", max_tokens=16, temperature=0, stream=True, extra_body={"ignore_eos": True})
            async for chunk in stream:
                text += chunk.choices[0].text
            return text

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=self.url, api_key="none") as client:
                return await asyncio.gather(*(one(client, i) for i in range(32)))

        texts = asyncio.run(all_of_them())
        again = self.client().completions.create(model="demo", prompt=[f"{i} dogs" for i in range(32)], max_tokens=16, temperature=0, extra_body={"ignore_eos": True})
        self.assertEqual(texts, [choice.text for choice in again.choices])

    def test_errors_are_the_packages_own(self):
        import openai
        client = self.client()
        with self.assertRaises(openai.NotFoundError):
            client.completions.create(model="other", prompt="x")
        with self.assertRaises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="demo", messages=CHAT, temperature=3)
        self.assertIn("temperature", str(caught.exception))

    def test_tools_are_rendered_and_results_taken(self):
        tools = [{"type": "function", "function": {"name": "weather", "description": "of a town", "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}}}]
        history = [*CHAT, {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"town\": \"Ulm\"}"}}]},
                   {"role": "tool", "tool_call_id": "1", "content": "sunny"}]
        answer = self.client().chat.completions.create(model="demo", messages=history, tools=tools, max_tokens=8, temperature=0)
        self.assertEqual(answer.choices[0].message.role, "assistant")


@unittest.skipIf({"lm_eval", "transformers"} & set(MISSING), "no lm_eval with transformers")
class LmEval(Clients):
    def test_a_task_of_a_local_file(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "items.jsonl"), "w", encoding="utf-8") as file:
                for subject in ("dog", "cat", "girl", "boy"):
                    file.write(json.dumps({"question": f"Once upon a time there was a little {subject}. The {subject} was very",
                                           "choices": [" happy", " the"], "answer": 0}) + "\n")
            with open(os.path.join(folder, "stories.yaml"), "w", encoding="utf-8") as file:
                file.write(f"task: stories\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {folder}/items.jsonl\n"
                           "test_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{question}}'\ndoc_to_choice: '{{choices}}'\ndoc_to_target: '{{answer}}'\n"
                           "metric_list:\n  - metric: acc\n    aggregation: mean\n    higher_is_better: true\n")
            arguments = f"model=demo,base_url={self.url}/completions,num_concurrent=4,tokenizer_backend=huggingface,tokenizer={MODEL},tokenized_requests=True,max_length=512"
            result = subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments, "--tasks", "stories",
                                     "--include_path", folder, "--output_path", folder + "/out"],
                                    capture_output=True, text=True, timeout=600, env={**os.environ, "HF_HOME": folder, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"})
            self.assertEqual(result.returncode, 0, result.stderr[-4000:])
            found = [os.path.join(place, name) for place, _, names in os.walk(folder + "/out") for name in names if name.startswith("results")]
            with open(found[0], encoding="utf-8") as file:
                accuracy = json.load(file)["results"]["stories"]["acc,none"]
            self.assertGreaterEqual(accuracy, 0.75)  # the demo model knows how stories go on


# Another model than the one that is served is refused before the rest of a body is read.
HOOKS = """
import schemathesis


@schemathesis.hook
def map_body(context, body):
    return {**body, "model": "demo"} if isinstance(body, dict) and isinstance(body.get("model"), str) else body
"""


@unittest.skipIf("schemathesis" in MISSING, "no schemathesis package")
class Schema(ServeTest):
    def test_what_the_schema_allows_never_breaks_the_server(self):
        # A short context: some requests ask for thousands of completions as long as it.
        self.server = self.serve("--served-model-name", "demo", "--tool-call-parser", "hermes", "--max-model-len", "128", small=False)
        folder = self.enterContext(tempfile.TemporaryDirectory())
        with open(os.path.join(folder, "hooks.py"), "w", encoding="utf-8") as file:
            file.write(HOOKS)
        tool = shutil.which("schemathesis") or os.path.join(os.path.dirname(sys.executable), "schemathesis")
        result = subprocess.run([tool, "run", f"http://127.0.0.1:{self.server.port}/openapi.json", "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
                                 "--max-examples", "60", "--phases", "examples,fuzzing", "--request-timeout", "600", "--seed", "1", "--no-color"],
                                capture_output=True, text=True, timeout=1200, cwd=folder, env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": folder})
        self.assertEqual(result.returncode, 0, result.stdout[-6000:] + result.stderr[-2000:])
        self.assertEqual(self.server.get("/health").status, 200)
        self.assertEqual(self.server.metric("vllm:num_requests_running"), 0)
        for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"):
            self.assertRegex(self.server.log(), rf'POST {path} [^\n]*" (200|400) ', "bodies were not read")


if __name__ == "__main__":
    run_tests(MISSING)
