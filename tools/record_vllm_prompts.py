#!/usr/bin/env python3
"""Writes tests/data/vllm_prompts.json: what vLLM 0.32 makes of conversations with published chat templates.

Usage: record_vllm_prompts.py OUTPUT FOLDER..., with vLLM's Python; FOLDERs hold *.jinja. With --texts FILE the prompts
themselves are written there; OUTPUT has the FNV-1a hash (64 bits) of each, null where vLLM refuses.
So that the date is no part of it, `strftime_now(` is cut to `(` in every template: the format is shown as it is.
"""
import argparse
import asyncio
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLS = [{"type": "function", "function": {
    "name": name, "description": "Looks something up.", "parameters": {
        "type": "object", "properties": {"key": {"type": "string", "description": "What to look up"}},
        "required": ["key"]}}} for name in ("find", "list_all")]


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def call(arguments, id="chatcmpl-tool-0123456789abcdef", name="find"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def found(content, id="chatcmpl-tool-0123456789abcdef"):
    return {"role": "tool", "tool_call_id": id, "content": content}


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


def calling(*calls, content=None, **more):
    return say("assistant", content, tool_calls=list(calls), **more)


def conversations():
    """(name, body) of chat completions."""
    ask, answer, again = say("user", "What is a quokka?"), say("assistant", "A small wallaby."), say("user", "Where?")
    system = say("system", "Be brief.")

    def chat(*messages, **fields):
        return {"messages": list(messages), **fields}

    def with_tools(*messages, **fields):
        return chat(*messages, tools=TOOLS, **fields)

    yield "a question", chat(ask)
    yield "a system message", chat(system, ask)
    yield "two turns", chat(system, ask, answer, again)
    yield "a developer", chat(say("developer", "Be brief."), ask)
    yield "a system message and a developer", chat(system, say("developer", "Be kind."), ask)
    yield "a late developer", chat(system, ask, answer, say("developer", "Be kind."), again)
    yield "two system messages", chat(system, say("system", "Be kind."), ask)
    yield "a late system message", chat(system, ask, answer, say("system", "Be kind."), again)
    yield "a system message behind the user", chat(system, ask, say("system", "Be kind."))
    yield "two system messages as one", chat(say("system", "Be brief.\n\nBe kind."), ask)
    told = say("user", "What is a quokka?\n\nBe kind.")
    yield "a late system message as the user's", chat(system, ask, answer, say("user", "Be kind."), again)
    yield "a late system message in the user's", chat(system, ask, answer, say("user", "Be kind.\n\nWhere?"))
    yield "a system message as the user's", chat(system, told)
    yield "one part", chat(say("user", parts("What is a quokka?")))
    yield "parts", chat(say("user", parts("What is ", "a quokka?")))
    yield "parts of all", chat(say("system", parts("Be ", "brief.")), ask, say("assistant", parts("A small ", "wallaby.")),
                               say("user", parts("Where?")))
    yield "tools", with_tools(system, ask)
    yield "a tool loop", with_tools(ask, calling(call('{"key": "quokka"}')), found("a wallaby"))
    yield "a tool loop with short ids", with_tools(ask, calling(call('{"key": "quokka"}', "a1B2c3D4e")),
                                                   found("a wallaby", "a1B2c3D4e"))
    # What nanovllm makes of the ids for templates that want short ones.
    yield "a tool loop with mapped ids", with_tools(ask, calling(call('{"key": "quokka"}', "FmV1XqHmv")),
                                                    found("a wallaby", "FmV1XqHmv"))
    yield "a tool loop with words", with_tools(
        ask, calling(call('{"key": "quokka"}'), content="I look.", reasoning="A look-up."), found("a wallaby"))
    yield "two calls", with_tools(
        ask, calling(call('{"key": "quokka"}', "call_1"), call("{}", "call_2", "list_all")), found("a wallaby", "call_1"),
        found('["a"]', "call_2"), answer, again)
    yield "a result in parts", with_tools(ask, calling(call('{"key": "quokka"}')), found(parts("a ", "wallaby")))
    yield "arguments in a text", with_tools(ask, calling(call(json.dumps('{"key": "quokka"}'))), found("a wallaby"))
    yield "no arguments", with_tools(ask, calling(call("")), found("a wallaby"))
    yield "arguments with a line break", with_tools(ask, calling(call('{"key": "a\nb"}')), found("a wallaby"))
    yield "arguments with an escaped line break", with_tools(ask, calling(call('{"key": "a\\nb"}')), found("a wallaby"))
    yield "arguments that are none", with_tools(ask, calling(call("quokka")), found("a wallaby"))
    yield "reasoning", chat(ask, say("assistant", "A small wallaby.", reasoning="Wallabies."), again)
    yield "reasoning by its older name", chat(ask, say("assistant", "A small wallaby.", reasoning_content="Wallabies."),
                                              again)
    yield "no thinking", chat(ask, chat_template_kwargs={"enable_thinking": False})
    yield "little effort", chat(ask, reasoning_effort="low")
    yield "no prompt", chat(ask, answer, add_generation_prompt=False)
    yield "a beginning", chat(ask, say("assistant", "A small"), add_generation_prompt=False, continue_final_message=True)
    yield "a beginning in parts", chat(ask, say("assistant", parts("A", " small")), add_generation_prompt=False,
                                       continue_final_message=True)


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


class Vllm:
    def __init__(self):
        from vllm.config import ModelConfig, VllmConfig
        from vllm.renderers.registry import renderer_from_config

        model = str(ROOT / "models" / "demo")
        self.renderer = renderer_from_config(VllmConfig(model_config=ModelConfig(model=model)))

    def render(self, body, source):
        """The prompt, or None where it is refused."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.exceptions import VLLMValidationError

        try:
            request = ChatCompletionRequest(**json.loads(json.dumps(body)), chat_template=source)
            tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
            params = request.build_chat_params(None, "auto").with_defaults({"tools": tools, "tokenize": False})
            _, prompt = asyncio.run(self.renderer.render_messages_async(request.messages, params))
            return prompt["prompt"]
        except (VLLMValidationError, ValueError) as error:
            print(f"    refused: {str(error)[:100]!r}")
            return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("folders", type=pathlib.Path, nargs="+")
    parser.add_argument("--texts", type=pathlib.Path)
    options = parser.parse_args()
    vllm = Vllm()
    bodies = [{"name": name, "body": body} for name, body in conversations()]
    for one in bodies:
        one["body"].setdefault("chat_template_kwargs", {}).update(bos_token="<s>", eos_token="</s>")
    texts = {}
    for path in sorted({path.name: path for folder in options.folders for path in folder.rglob("*.jinja")}.values(),
                       key=lambda path: path.name):
        print(path.name)
        source = path.read_text(encoding="utf-8").replace("strftime_now(", "(")
        texts[path.name] = [vllm.render(one["body"], source) for one in bodies]
    hashes = {name: [text and fnv1a(text) for text in rendered] for name, rendered in texts.items()}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(rendered)}" for name, rendered in hashes.items())
    chats = ",\n".join(f"  {json.dumps(one, ensure_ascii=False)}" for one in bodies)
    options.output.write_text(f'{{"conversations": [\n{chats}\n],\n"templates": {{\n{lines}\n}}}}\n', encoding="utf-8")
    if options.texts:
        options.texts.write_text(json.dumps(texts, ensure_ascii=False, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
