"""The OpenAI Agents SDK and instructor, which have an environment of their own."""
import asyncio
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from dictated_testing import Dictated, DictatedTest, call  # noqa: E402
from serve_testing import run_tests  # noqa: E402

ASK = "How is the weather in Ulm?"


class Frameworks(DictatedTest):
    @classmethod
    def setUpClass(cls):
        cls.server = Dictated()
        cls.addClassCleanup(cls.server.close)
        cls.say()
        cls.url = f"http://127.0.0.1:{cls.server.port}/v1"

    @classmethod
    def say(cls):
        cls.server.say("Good.", {"when": ASK, "say": "<think>\nI need it.\n</think>\n\n" + call("weather", town="Ulm")}, {"when": "sunny, 21 degrees", "say": "It is sunny in Ulm."},
                       {"when": "named Ada", "say": '{"name": "Ada", "age": 36}'})


class Agents(Frameworks):
    def test_an_agent_with_a_tool_whole_and_streamed(self):
        import agents
        import openai
        agents.set_tracing_disabled(True)

        @agents.function_tool
        def weather(town: str) -> str:
            """Of a town."""
            return f"sunny, 21 degrees in {town}"

        async def run():
            client = openai.AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0)
            agent = agents.Agent(name="Ada", instructions="Be kind.", tools=[weather], model=agents.OpenAIResponsesModel(model="dictated", openai_client=client))
            whole = await agents.Runner.run(agent, ASK)
            stream = agents.Runner.run_streamed(agent, ASK)
            kinds = [event.type async for event in stream.stream_events()]
            return whole, stream.final_output, kinds

        whole, streamed, kinds = asyncio.run(run())
        self.assertEqual((whole.final_output, streamed), ("It is sunny in Ulm.", "It is sunny in Ulm."))
        self.assertIn("raw_response_event", kinds)
        self.assertGreater(whole.context_wrapper.usage.output_tokens, 10)
        self.assertIn("Be kind.", self.server.prompts(ASK)[-1]["text"])


class Instructor(Frameworks):
    """Its modes: those that ask for a named tool or a format, and the one that only asks the model."""

    def test_json_of_a_chat(self):
        import instructor
        import openai
        import pydantic

        class Person(pydantic.BaseModel):
            name: str
            age: int

        client = instructor.from_openai(openai.OpenAI(base_url=self.url, api_key="none"), mode=instructor.Mode.MD_JSON)
        person = client.chat.completions.create(model="dictated", response_model=Person, messages=[{"role": "user", "content": "Who is named Ada?"}], max_tokens=100)
        self.assertEqual((person.name, person.age), ("Ada", 36))

    def test_a_type_of_each_mode_behind_a_thought(self):
        import instructor
        import openai
        import pydantic

        class Person(pydantic.BaseModel):
            who: str

        self.server.say("Good.", {"when": "named Ada", "say": '<think>\nI know her.\n</think>{"who": "Ada"}'}, {"when": "named Bo", "say": "<think>\nI know him.\n</think>\n\n" + call("Person", who="Bo")})
        self.addCleanup(self.say)
        client = lambda mode: instructor.from_openai(openai.OpenAI(base_url=self.url, api_key="none", max_retries=0), mode=mode)
        chat = lambda mode, ask: client(mode).chat.completions.create(model="dictated", response_model=Person, messages=[{"role": "user", "content": ask}], max_tokens=100, max_retries=0)
        self.assertEqual(chat(instructor.Mode.JSON_SCHEMA, "Who is named Ada?").who, "Ada")
        self.assertEqual(chat(instructor.Mode.TOOLS, "Who is named Bo?").who, "Bo")
        person = client(instructor.Mode.RESPONSES_TOOLS).responses.create(model="dictated", response_model=Person, input="Who is named Bo?", max_retries=0)
        self.assertEqual(person.who, "Bo")


if __name__ == "__main__":
    run_tests()
