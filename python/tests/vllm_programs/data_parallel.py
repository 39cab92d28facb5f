"""The prompts shared out over processes, each with an engine of its own."""
import os
from multiprocessing import Process

from vllm import LLM, EngineArgs, SamplingParams
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.network_utils import get_open_port


def work(rank: int, size: int, port: int, args: dict) -> None:
    os.environ["VLLM_DP_RANK"], os.environ["VLLM_DP_MASTER_PORT"] = str(rank), str(port)
    prompts = ["Once upon a time", "The little dog", "A girl", "One day"][rank::size]
    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=[5, 7][rank % 2], ignore_eos=True)
    for output in LLM(**args).generate(prompts, params):
        assert len(output.outputs[0].token_ids) == [5, 7][rank % 2]
        print(f"rank {rank}: {output.prompt!r} {output.outputs[0].text!r}", flush=True)


def main() -> None:
    parser = FlexibleArgumentParser(description="data parallel")
    EngineArgs.add_cli_args(parser)
    parser.add_argument("--dp-num-nodes", type=int, default=1)
    args = vars(parser.parse_args())
    size, port = args.pop("data_parallel_size"), get_open_port()
    assert args.pop("dp_num_nodes") == 1 and not current_platform.is_rocm()
    processes = [Process(target=work, args=(rank, size, port, args)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


if __name__ == "__main__":
    main()
