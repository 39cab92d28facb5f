"""One conversation, then many at once, then with a template of one's own; and those that go first."""
from vllm import LLM, EngineArgs
from vllm.outputs import RequestOutput
from vllm.utils.argparse_utils import FlexibleArgumentParser

TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def show(outputs: list[RequestOutput], count: int) -> None:
    assert len(outputs) == count
    for output in outputs:
        assert output.outputs[0].text
        print(output.outputs[0].text.replace("\n", " "))


def main() -> None:
    parser = FlexibleArgumentParser()
    EngineArgs.add_cli_args(parser)
    parser.set_defaults(scheduling_policy="priority")
    llm = LLM(**vars(parser.parse_args()))
    params = llm.get_default_sampling_params()
    params.max_tokens = 8
    conversation = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello! Shall I tell you a story?"},
        {"role": "user", "content": "Tell me about a dog."},
    ]
    show(llm.chat(conversation, params, use_tqdm=False, lora_request=None, continue_final_message=False), 1)
    show(llm.chat([conversation] * 3, params, use_tqdm=True, priority=[2, 0, 1]), 3)
    show(llm.chat([conversation] * 2, params, use_tqdm=False, priority=1, chat_template_content_format="auto"), 2)
    (output,) = llm.chat(conversation, params, use_tqdm=False, chat_template=TEMPLATE)
    assert output.prompt is None or output.prompt.startswith("Hello\nHello! Shall")
    show([output], 1)


if __name__ == "__main__":
    main()
