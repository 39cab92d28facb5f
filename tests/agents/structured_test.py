"""What clients ask to be bound by a schema, or to be a call, on a small real model: all that ends by itself is what they asked for,
and their own packages parse it. What a model says in it is its own affair."""
import asyncio
import datetime
import os
import sys
import unittest
from typing import Literal

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from serve_testing import Server, run_tests  # noqa: E402

MODEL = os.environ.get("NANOVLLM_SMALL_MODEL", "")
MISSING = [] if os.path.exists(MODEL) else [f"the small model {MODEL}"]
ASKS = ["Who was Ada Lovelace?", "Tell me of a baker named Bo who is 42 and likes rye and figs.", "Invent a person."]
TOKENS = 300
GREEDY = {"temperature": 0}  # anthropic has no argument for it


def make_types():
    """Models of data as programs write them. Imported late, as pydantic is only in the environments of these tests."""
    import pydantic

    class Closed(pydantic.BaseModel):
        # Else a schema lets members follow that it doesn't name, and a small model writes them without end.
        model_config = pydantic.ConfigDict(extra="forbid")

    class Address(Closed):
        street: str = pydantic.Field(max_length=20)
        number: int = pydantic.Field(ge=1, le=999)

    class Person(Closed):
        """A person."""
        name: str = pydantic.Field(max_length=20, description="the whole name")
        age: int = pydantic.Field(ge=0, le=120)
        mood: Literal["glad", "sad"]
        likes: list[Literal["rye", "figs", "tea"]] = pydantic.Field(max_length=3)
        home: Address | None

    class Meal(Closed):
        dish: Literal["rye", "figs"]

    class Plan(Closed):
        """Without bounds, which clients of Anthropic's API keep for themselves."""
        day: datetime.date
        mood: Literal["glad", "sad"]
        outside: bool
        meal: Meal | None

    return Person, Plan


@unittest.skipIf(MISSING, "no small model")
class SmallModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "small", "--kv-cache-memory", "1G", "--max-model-len", "2048", "--tool-call-parser", "hermes", model=MODEL, small=False)
        cls.addClassCleanup(cls.server.close)
        cls.root = f"http://127.0.0.1:{cls.server.port}"
        cls.url = cls.root + "/v1"
        cls.person, cls.plan = make_types()

    def tearDown(self):
        self.assertEqual(self.server.get("/health").status, 200)
        self.assertNotRegex(self.server.log(), r'SIG[A-Z]+|internal error|POST [^\n]*" 5\d\d ')

    def took(self, value, kind=None):
        """The client parsed what came."""
        self.assertIsInstance(value, kind or self.person)


class OpenAi(SmallModel):
    def client(self):
        import openai
        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=0)

    def test_parse_of_chats(self):
        for temperature in (0, 1):
            for ask in ASKS:
                answer = self.client().chat.completions.parse(model="small", messages=[{"role": "user", "content": ask}], response_format=self.person,
                                                              max_tokens=TOKENS, temperature=temperature, seed=5)
                self.assertEqual(answer.choices[0].finish_reason, "stop")
                self.took(answer.choices[0].message.parsed)

    def test_a_stream_of_a_chat_that_is_parsed(self):
        for ask in ASKS:
            with self.client().chat.completions.stream(model="small", messages=[{"role": "user", "content": ask}], response_format=self.person, max_tokens=TOKENS, temperature=0) as stream:
                pieces = [event for event in stream if event.type == "content.delta"]
                final = stream.get_final_completion()
            self.took(final.choices[0].message.parsed)
            self.assertGreater(len(pieces), 5)
            self.assertEqual("".join(piece.delta for piece in pieces), final.choices[0].message.content)

    def test_parse_of_tools(self):
        import openai
        for choice in ("required", {"type": "function", "function": {"name": "Person"}}):
            for ask in ASKS:
                answer = self.client().chat.completions.parse(model="small", messages=[{"role": "user", "content": ask}], tools=[openai.pydantic_function_tool(self.person)],
                                                              tool_choice=choice, parallel_tool_calls=False, max_tokens=TOKENS, temperature=0)
                self.assertEqual(answer.choices[0].finish_reason, "tool_calls" if choice == "required" else "stop")
                (call,) = answer.choices[0].message.tool_calls
                self.took(call.function.parsed_arguments)

    def test_parse_of_responses(self):
        for ask in ASKS:
            answer = self.client().responses.parse(model="small", input=ask, text_format=self.person, max_output_tokens=TOKENS, temperature=0)
            self.assertEqual(answer.status, "completed")
            self.took(answer.output_parsed)

    def test_a_stream_of_a_response_that_is_parsed(self):
        with self.client().responses.stream(model="small", input=ASKS[0], text_format=self.person, max_output_tokens=TOKENS, temperature=0) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            final = stream.get_final_response()
        self.assertEqual(final.output_text, text)
        self.took(final.output_parsed)

    def test_tools_of_responses(self):
        import openai
        tool = openai.pydantic_function_tool(self.person)["function"]
        for choice in ("required", {"type": "function", "name": "Person"}):
            answer = self.client().responses.parse(model="small", input=ASKS[1], tools=[{"type": "function", **tool}], tool_choice=choice, parallel_tool_calls=False,
                                                   max_output_tokens=TOKENS, temperature=0)
            (item,) = answer.output
            self.assertEqual((item.type, item.status), ("function_call", "completed"))
            self.took(item.parsed_arguments, dict | self.person)
            self.person.model_validate_json(item.arguments)

    def test_what_vllm_calls_structured_outputs(self):
        ask = lambda **value: self.client().chat.completions.create(model="small", messages=[{"role": "user", "content": ASKS[0]}], max_tokens=TOKENS, temperature=0,
                                                                    extra_body={"structured_outputs": value}).choices[0]
        self.took(self.person.model_validate_json(ask(json=self.person.model_json_schema()).message.content))
        self.assertIn(ask(choice=["a poet", "a countess"]).message.content, ("a poet", "a countess"))
        self.assertRegex(ask(regex=r"[A-Z][a-z]{1,9} was born in 18[0-9]{2}\.").message.content, r"\A[A-Z][a-z]{1,9} was born in 18[0-9]{2}\.\Z")
        self.assertRegex(ask(grammar='root ::= name " and " name\nname ::= [A-Z] [a-z]{2,8}').message.content, r"\A[A-Z][a-z]{2,8} and [A-Z][a-z]{2,8}\Z")


class Anthropic(SmallModel):
    def client(self):
        import anthropic
        return anthropic.Anthropic(base_url=self.root, api_key="none", max_retries=0)

    def test_parse(self):
        for ask in ASKS:
            answer = self.client().messages.parse(model="small", max_tokens=TOKENS, extra_body=GREEDY, messages=[{"role": "user", "content": ask}], output_format=self.plan)
            self.assertEqual(answer.stop_reason, "end_turn")
            self.took(answer.parsed_output, self.plan)

    def test_a_format_whole_and_streamed(self):
        body = {"model": "small", "max_tokens": TOKENS, "extra_body": GREEDY, "messages": [{"role": "user", "content": ASKS[0]}],
                "output_config": {"format": {"type": "json_schema", "schema": self.person.model_json_schema()}}}
        whole = self.client().messages.create(**body)
        with self.client().messages.stream(**body) as stream:
            text = "".join(stream.text_stream)
        self.assertEqual(whole.content[0].text, text)
        self.took(self.person.model_validate_json(text))

    def test_calls_that_must_come_whole_and_streamed(self):
        tools = [{"name": "person", "description": "writes a person down", "input_schema": self.person.model_json_schema()}]
        for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "person"}):
            for ask in ASKS:
                body = {"model": "small", "max_tokens": TOKENS, "extra_body": GREEDY, "messages": [{"role": "user", "content": ask}], "tools": tools, "tool_choice": choice}
                whole = self.client().messages.create(**body)
                with self.client().messages.stream(**body) as stream:
                    final = stream.get_final_message()
                for answer in (whole, final):
                    self.assertEqual((answer.stop_reason, [block.type for block in answer.content]), ("tool_use", ["tool_use"]))
                    self.took(self.person.model_validate(answer.content[0].input))
                self.assertEqual(whole.content[0].input, final.content[0].input)


class LangChain(SmallModel):
    def test_with_structured_output_by_every_method(self):
        from langchain_openai import ChatOpenAI
        for responses in (False, True):
            model = ChatOpenAI(model="small", base_url=self.url, api_key="none", max_retries=0, temperature=0, max_tokens=TOKENS, use_responses_api=responses)
            for method in ("json_schema", "function_calling"):
                for strict in (None, True):
                    bound = model.with_structured_output(self.person, method=method, strict=strict, include_raw=True)
                    for ask in ASKS:
                        answer = bound.invoke(ask)
                        self.assertIsNone(answer["parsing_error"], (method, strict, answer))
                        self.took(answer["parsed"])
            # Any object is what was asked for.
            answer = model.with_structured_output(None, method="json_mode", include_raw=True).invoke("Say hello as JSON.")
            if answer["raw"].response_metadata.get("finish_reason", answer["raw"].response_metadata.get("status")) in ("stop", "completed"):
                self.took(answer["parsed"], dict)

    def test_anthropic_models(self):
        from langchain_anthropic import ChatAnthropic
        model = ChatAnthropic(model="small", base_url=self.root, api_key="none", max_retries=0, temperature=0, max_tokens=TOKENS)
        for ask in ASKS:
            self.took(model.with_structured_output(self.person, method="function_calling").invoke(ask))
            self.took(model.with_structured_output(self.plan, method="json_schema").invoke(ask), self.plan)

    def test_tools_that_must_be_called(self):
        from langchain_anthropic import ChatAnthropic
        from langchain_core.tools import tool
        from langchain_openai import ChatOpenAI

        @tool
        def add(one: int, other: int) -> int:
            """Adds two numbers."""
            return one + other

        settings = {"model": "small", "api_key": "none", "max_retries": 0, "temperature": 0, "max_tokens": TOKENS}
        for model in (ChatOpenAI(base_url=self.url, use_responses_api=False, **settings), ChatOpenAI(base_url=self.url, use_responses_api=True, **settings),
                      ChatAnthropic(base_url=self.root, **settings)):
            for choice in ("any", "add"):
                bound = model.bind_tools([add], tool_choice=choice, parallel_tool_calls=False)
                streamed = None
                for piece in bound.stream("Add 3 and 4."):
                    streamed = piece if streamed is None else streamed + piece
                for answer in (bound.invoke("Add 3 and 4."), streamed):
                    self.assertFalse(answer.invalid_tool_calls, answer)
                    (call,) = answer.tool_calls
                    self.assertEqual(call["name"], "add")
                    self.took(add.invoke(call["args"]), int)


class PydanticAi(SmallModel):
    def models(self):
        """Each with what its schemas keep the bounds of."""
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.anthropic import AnthropicProvider
        from pydantic_ai.providers.openai import OpenAIProvider
        import anthropic
        yield OpenAIChatModel("small", provider=OpenAIProvider(base_url=self.url, api_key="none")), self.person
        yield OpenAIResponsesModel("small", provider=OpenAIProvider(base_url=self.url, api_key="none")), self.person
        provider = AnthropicProvider(anthropic_client=anthropic.AsyncAnthropic(base_url=self.root, api_key="none"))
        # It takes a model whose name it doesn't know for one without formats.
        yield AnthropicModel("small", provider=provider, profile={"supports_json_schema_output": True}), self.plan

    def test_outputs_of_a_type(self):
        from pydantic_ai import Agent, NativeOutput, ToolOutput
        settings = {"temperature": 0, "max_tokens": TOKENS, "parallel_tool_calls": False}
        for model, kind in self.models():
            for output in (kind, ToolOutput(kind), NativeOutput(kind)):
                agent = Agent(model, output_type=output, model_settings=settings, retries=0)
                for ask in ASKS:
                    self.took(asyncio.run(agent.run(ask)).output, kind)

    def test_an_output_that_is_streamed(self):
        from pydantic_ai import Agent, NativeOutput
        for model, kind in self.models():
            agent = Agent(model, output_type=NativeOutput(kind), model_settings={"temperature": 0, "max_tokens": TOKENS}, retries=0)

            async def run(agent=agent):
                async with agent.run_stream(ASKS[0]) as stream:
                    return await stream.get_output()

            self.took(asyncio.run(run()), kind)


class LiteLlm(SmallModel):
    def test_a_type_as_the_format(self):
        import litellm
        for name, base in (("hosted_vllm/small", self.url), ("openai/responses/small", self.url), ("anthropic/small", self.root)):
            answer = litellm.completion(model=name, api_base=base, api_key="none", messages=[{"role": "user", "content": ASKS[0]}], response_format=self.plan,
                                        max_tokens=TOKENS, temperature=0)
            self.took(self.plan.model_validate_json(answer.choices[0].message.content), self.plan)


if __name__ == "__main__":
    run_tests(MISSING)
