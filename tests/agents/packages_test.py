"""The packages that programs speak to such servers with: each streams, uses tools, and counts, over both APIs."""
import asyncio
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from dictated_testing import Dictated, DictatedTest, call  # noqa: E402
from serve_testing import run_tests  # noqa: E402

THOUGHT = "<think>\nI need the weather.\n</think>\n\n"
ASK = "How is the weather in Ulm?"
CALL = {"when": ASK, "say": THOUGHT + "I look.\n" + call("weather", town="Ulm")}
ANSWER = {"when": "sunny, 21 degrees", "say": "It is sunny in Ulm."}
WEATHER = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"], "additionalProperties": False}


class Packages(DictatedTest):
    @classmethod
    def setUpClass(cls):
        cls.server = Dictated()
        cls.addClassCleanup(cls.server.close)
        cls.server.say("Good.", CALL, ANSWER)
        cls.root = f"http://127.0.0.1:{cls.server.port}"
        cls.url = cls.root + "/v1"


class OpenAi(Packages):
    TOOLS = [{"type": "function", "name": "weather", "description": "of a town", "parameters": WEATHER, "strict": True}]

    def client(self):
        import openai
        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=0)

    def test_a_loop_of_tools_whole(self):
        client = self.client()
        first = client.responses.create(model="dictated", instructions="Be kind.", input=ASK, tools=self.TOOLS)
        self.assertEqual([item.type for item in first.output], ["reasoning", "message", "function_call"])
        self.assertEqual((first.status, first.output[-1].name, first.output[-1].arguments, first.output_text.strip()), ("completed", "weather", '{"town": "Ulm"}', "I look."))
        items = [{"role": "user", "content": ASK}, *first.output, {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "sunny, 21 degrees"}]
        second = client.responses.create(model="dictated", instructions="Be kind.", input=items, tools=self.TOOLS)
        self.assertEqual(second.output_text, "It is sunny in Ulm.")
        self.assertEqual(second.usage.total_tokens, second.usage.input_tokens + second.usage.output_tokens)
        self.assertGreater(first.usage.output_tokens_details.reasoning_tokens, 0)

    def test_a_stream(self):
        with self.client().responses.stream(model="dictated", input=ASK, tools=self.TOOLS) as stream:
            events = list(stream)
            final = stream.get_final_response()
        self.assertEqual([item.type for item in final.output], ["reasoning", "message", "function_call"])
        self.assertEqual("".join(event.delta for event in events if event.type == "response.function_call_arguments.delta"), '{"town": "Ulm"}')
        self.assertEqual("".join(event.delta for event in events if event.type == "response.output_text.delta").strip(), "I look.")
        self.assertGreater(final.usage.output_tokens, 10)

    def test_what_is_refused_is_refused_by_name(self):
        import openai
        with self.assertRaises(openai.NotFoundError):
            self.client().responses.create(model="other", input=ASK)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client().responses.create(model="dictated", input=ASK, previous_response_id="resp_1")
        self.assertIn("Previous response with id 'resp_1' not found", str(caught.exception))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client().responses.create(model="dictated", input=ASK, background=True)
        self.assertIn("background", str(caught.exception))

    def test_a_prompt_that_is_too_long_is_told_by_its_code(self):
        import openai
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client().responses.create(model="dictated", input="A word. " * 20_000, stream=True)
        self.assertEqual(caught.exception.code, "context_length_exceeded")


class Anthropic(Packages):
    TOOLS = [{"name": "weather", "description": "of a town", "input_schema": WEATHER}]

    def client(self):
        import anthropic
        return anthropic.Anthropic(base_url=self.root, api_key="none", max_retries=0)

    def test_a_loop_of_tools_whole_and_counted(self):
        client = self.client()
        messages = [{"role": "user", "content": ASK}]
        first = client.messages.create(model="dictated", max_tokens=1000, messages=messages, tools=self.TOOLS)
        self.assertEqual([block.type for block in first.content], ["thinking", "text", "tool_use"])
        self.assertEqual((first.stop_reason, first.content[-1].name, first.content[-1].input), ("tool_use", "weather", {"town": "Ulm"}))
        counted = client.messages.count_tokens(model="dictated", messages=messages, tools=self.TOOLS).input_tokens
        self.assertEqual(counted, first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0))
        messages += [{"role": "assistant", "content": first.content},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "sunny, 21 degrees"}]}]
        second = client.messages.create(model="dictated", max_tokens=1000, messages=messages, tools=self.TOOLS)
        self.assertEqual((second.content[0].text, second.stop_reason), ("It is sunny in Ulm.", "end_turn"))

    def test_a_stream(self):
        with self.client().messages.stream(model="dictated", max_tokens=1000, messages=[{"role": "user", "content": ASK}], tools=self.TOOLS) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text.strip(), "I look.")
        self.assertEqual([block.type for block in final.content], ["thinking", "text", "tool_use"])
        self.assertEqual((final.content[0].thinking.strip(), final.content[-1].input), ("I need the weather.", {"town": "Ulm"}))
        self.assertGreater(final.usage.output_tokens, 10)

    def test_the_tool_runner_goes_on_without_threads(self):
        import anthropic

        @anthropic.beta_tool
        def weather(town: str) -> str:
            """Of a town."""
            return f"sunny, 21 degrees in {town}"

        runner = self.client().beta.messages.tool_runner(model="dictated", max_tokens=1000, messages=[{"role": "user", "content": ASK}], tools=[weather])
        self.assertEqual(runner.until_done().content[0].text, "It is sunny in Ulm.")
        self.assertIn(ASK, self.server.prompts("sunny, 21 degrees in Ulm")[-1]["text"])

    def test_bearer_tokens_and_errors(self):
        import anthropic
        bearer = anthropic.Anthropic(base_url=self.root, auth_token="none", max_retries=0)
        self.assertEqual(bearer.messages.create(model="dictated", max_tokens=9, messages=[{"role": "user", "content": "Hello"}]).content[0].text, "Good.")
        with self.assertRaises(anthropic.NotFoundError):
            bearer.messages.create(model="other", max_tokens=9, messages=[{"role": "user", "content": "Hello"}])
        with self.assertRaises(anthropic.BadRequestError) as caught:
            bearer.messages.create(model="dictated", max_tokens=9, messages=[{"role": "user", "content": "A word. " * 20_000}])
        self.assertRegex(str(caught.exception), r"prompt is too long: \d+ tokens > 32768 maximum")
        self.assertEqual(len(list(bearer.models.list())), 1)


class LiteLlm(Packages):
    TOOLS = [{"type": "function", "function": {"name": "weather", "description": "of a town", "parameters": WEATHER}}]

    def test_completions_through_each_api(self):
        import litellm
        for name, base in (("hosted_vllm/dictated", self.url), ("openai/responses/dictated", self.url), ("anthropic/dictated", self.root)):
            answer = litellm.completion(model=name, api_base=base, api_key="none", messages=[{"role": "user", "content": ASK}], tools=self.TOOLS, max_tokens=500)
            self.assertEqual(answer.choices[0].message.tool_calls[0].function.name, "weather", name)
            self.assertGreater(answer.usage.completion_tokens, 0, name)
            pieces = list(litellm.completion(model=name, api_base=base, api_key="none", messages=[{"role": "user", "content": "Hello"}], stream=True, max_tokens=500))
            self.assertEqual("".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices), "Good.", name)

    def test_messages_that_become_responses(self):
        import litellm
        answer = asyncio.run(litellm.anthropic.messages.acreate(model="openai/dictated", api_base=self.url, api_key="none", max_tokens=500, messages=[{"role": "user", "content": "Hello"}]))
        self.assertEqual(answer["content"][-1]["text"], "Good.")
        self.assertRegex(self.server.log(), r"POST /v1/responses")


class LangChain(Packages):
    def models(self):
        from langchain_anthropic import ChatAnthropic
        from langchain_openai import ChatOpenAI
        yield ChatOpenAI(model="dictated", base_url=self.url, api_key="none", use_responses_api=True, max_retries=0)
        yield ChatOpenAI(model="dictated", base_url=self.url, api_key="none", stream_usage=True, max_retries=0)
        yield ChatAnthropic(model="dictated", base_url=self.root, api_key="none", max_retries=0)

    def test_tools_and_streams(self):
        from langchain_core.messages import HumanMessage, ToolMessage
        from langchain_core.tools import tool

        @tool
        def weather(town: str) -> str:
            """Of a town."""
            return f"sunny, 21 degrees in {town}"

        for model in self.models():
            bound = model.bind_tools([weather])
            messages = [HumanMessage(ASK)]
            messages.append(bound.invoke(messages))
            self.assertEqual([(one["name"], one["args"]) for one in messages[-1].tool_calls], [("weather", {"town": "Ulm"})], model)
            messages.append(ToolMessage(weather.invoke(messages[-1].tool_calls[0]["args"]), tool_call_id=messages[-1].tool_calls[0]["id"]))
            streamed = None
            for piece in bound.stream(messages):
                streamed = piece if streamed is None else streamed + piece
            self.assertEqual(streamed.text, "It is sunny in Ulm.", model)
            self.assertGreater(streamed.usage_metadata["input_tokens"], 20, model)

    def test_messages_are_counted(self):
        from langchain_core.messages import HumanMessage
        *_, anthropic = self.models()
        self.assertEqual(anthropic.get_num_tokens_from_messages([HumanMessage(ASK)]), anthropic.invoke([HumanMessage(ASK)]).usage_metadata["input_tokens"])


class PydanticAi(Packages):
    def models(self):
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.models.openai import OpenAIResponsesModel
        from pydantic_ai.providers.anthropic import AnthropicProvider
        from pydantic_ai.providers.openai import OpenAIProvider
        import anthropic
        yield OpenAIResponsesModel("dictated", provider=OpenAIProvider(base_url=self.url, api_key="none"))
        yield AnthropicModel("dictated", provider=AnthropicProvider(anthropic_client=anthropic.AsyncAnthropic(base_url=self.root, api_key="none")))

    def test_an_agent_with_a_tool_whole_and_streamed(self):
        from pydantic_ai import Agent

        for model in self.models():
            agent = Agent(model, instructions="Be kind.")

            @agent.tool_plain
            def weather(town: str) -> str:
                """Of a town."""
                return f"sunny, 21 degrees in {town}"

            async def run(agent=agent):
                whole = await agent.run(ASK)
                async with agent.run_stream("Hello") as stream:
                    text = "".join([piece async for piece in stream.stream_text(delta=True)])
                return whole, text

            whole, text = asyncio.run(run())
            self.assertEqual((whole.output, text), ("It is sunny in Ulm.", "Good."), model)
            self.assertGreater(whole.usage.output_tokens, 10)


if __name__ == "__main__":
    run_tests()
