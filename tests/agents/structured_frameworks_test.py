"""instructor and the OpenAI Agents SDK on a small real model: each of their ways to ask for a type."""
import asyncio
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import structured_test as structured  # noqa: E402
from serve_testing import run_tests  # noqa: E402

ASKS, TOKENS = structured.ASKS, structured.TOKENS


class Instructor(structured.SmallModel):
    def client(self, mode):
        import instructor
        import openai
        return instructor.from_openai(openai.OpenAI(base_url=self.url, api_key="none", max_retries=0), mode=mode)

    def test_every_mode_of_chats(self):
        from instructor import Mode
        for mode in (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA):
            for ask in ASKS:
                self.took(self.client(mode).chat.completions.create(model="small", response_model=self.person, messages=[{"role": "user", "content": ask}], max_tokens=TOKENS,
                                                                    temperature=0, max_retries=0))

    def test_responses(self):
        from instructor import Mode
        for ask in ASKS:
            self.took(self.client(Mode.RESPONSES_TOOLS).responses.create(model="small", response_model=self.person, input=ask, max_output_tokens=TOKENS, temperature=0, max_retries=0))

    def test_a_type_that_comes_piece_by_piece(self):
        from instructor import Mode
        pieces = list(self.client(Mode.TOOLS).chat.completions.create_partial(model="small", response_model=self.person, messages=[{"role": "user", "content": ASKS[0]}],
                                                                              max_tokens=TOKENS, temperature=0, max_retries=0))
        self.assertGreater(len(pieces), 5)
        self.took(self.person.model_validate(pieces[-1].model_dump()))


class Agents(structured.SmallModel):
    def test_an_output_of_a_type(self):
        import agents
        import openai
        agents.set_tracing_disabled(True)
        for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
            async def run(kind=kind):
                client = openai.AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0)
                agent = agents.Agent(name="Ada", model=kind(model="small", openai_client=client), output_type=self.person,
                                     model_settings=agents.ModelSettings(temperature=0, max_tokens=TOKENS))
                return (await agents.Runner.run(agent, ASKS[0])).final_output

            self.took(asyncio.run(run()))


if __name__ == "__main__":
    run_tests(structured.MISSING)
