"""Batch jobs on a Ray cluster: `nanovllm run-batch` on many machines.

    nanovllm-batch requests.jsonl answers.jsonl --model Qwen/Qwen3-0.6B --ray-address auto

Ray Data reads the input in parts, gives them to actors with an engine each, and does again what dies; this module
writes answers as parts end. Needs the extra `ray`.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nanovllm._batch_engine import Engine, EngineLost, placed
from nanovllm._batch_job import BatchError, Output, Part, Piece, Plan, UsageError, read_piece

__all__ = ["BatchError", "main", "run"]

_PARTS_AT_ONCE = 4  # in an engine, so that it goes on with the next ones while the last answers of one are drawn


class _Answers:
    """The actor: parts in, their answers out. Several threads of it call it at once."""

    def __init__(self, arguments: Sequence[str], folder: str) -> None:
        try:
            self._engine = Engine(arguments, folder)
        except EngineLost as error:
            raise self._at_node(error) from None

    @staticmethod
    def _at_node(error: EngineLost) -> BatchError:
        import ray

        node = ray.get_runtime_context().get_node_id()
        return BatchError(f"{_MARK}on node {node} ({ray.util.get_node_ip_address()}): {error}{_MARK}")

    def __call__(self, parts: Any) -> Any:
        import pyarrow

        places, answers = parts["place"].to_pylist(), []
        for place, lines in zip(places, parts["lines"].to_pylist()):
            try:
                answered = self._engine.ask(lines)
            except EngineLost as error:
                raise self._at_node(error) from None
            answers.append(b"".join(placed(answer, place + index) for index, answer in enumerate(answered)))
        return pyarrow.table({"part": parts["part"], "answers": pyarrow.array(answers, pyarrow.large_binary())})

    def __del__(self) -> None:
        if hasattr(self, "_engine"):
            self._engine.close()


_MARK = "\x02"  # around a sentence of ours in what Ray makes of it


def _table(read: tuple[Part, list[bytes]]) -> Any:
    import pyarrow

    part, lines = read
    return pyarrow.table({"part": [part.number], "place": [part.place], "lines": [lines]})


def _dataset(pieces: Sequence[Piece], body: Mapping[str, Any], num_engines: int) -> Any:
    """Of a row for each part."""
    import ray

    def read(rows: Any) -> Iterator[Any]:
        for index in rows["item"].to_pylist():
            try:
                yield from map(_table, read_piece(pieces[index], body))
            except (BatchError, OSError) as error:
                raise BatchError(f"{_MARK}{error}{_MARK}") from None

    # Engines may have all CPUs: reading asks for none, and a few tasks read far faster than engines answer, but more than
    # one, for it takes Ray half a minute to miss a node.
    return ray.data.from_items(range(len(pieces)), override_num_blocks=len(pieces)).map_batches(
        read, batch_size=None, batch_format="pyarrow", num_cpus=0,
        compute=ray.data.TaskPoolStrategy(2 + num_engines // 8))


def _room(num_cpus: float | None, num_gpus: float | None) -> tuple[float, float, int]:
    """What an engine asks for, a GPU where there are some, else the CPUs of the smallest node; and for how many there is room."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if num_gpus is None:
        num_gpus = 1 if any(node.get("GPU") for node in nodes) else 0
    if num_cpus is None:
        num_cpus = 1 if num_gpus else min((node["CPU"] for node in nodes if node.get("CPU")), default=1)
    asked = {name: amount for name, amount in (("CPU", num_cpus), ("GPU", num_gpus)) if amount}
    room = sum(int(min((node.get(name, 0) / amount for name, amount in asked.items()), default=1)) for node in nodes)
    if room == 0:
        has = "; ".join(f"{node.get('CPU', 0):g} CPU and {node.get('GPU', 0):g} GPU" for node in nodes)
        wanted = " and ".join(f"{amount:g} {name}" for name, amount in asked.items())
        raise BatchError(f"no node of the cluster has the {wanted} that an engine asks for; its nodes have {has}")
    return num_cpus, num_gpus, room


def _answer(pieces: Sequence[Piece], output: Output, body: Mapping[str, Any], arguments: Sequence[str], num_engines: int,
            resources: Mapping[str, float], progress: Any) -> None:
    from ray.data import ActorPoolStrategy, DataContext

    context = DataContext.get_current()
    before = context.target_max_block_size, context.enable_progress_bars
    context.target_max_block_size = 1  # a block for each row, which is a part
    context.enable_progress_bars = False
    try:
        pool = ActorPoolStrategy(min_size=1, max_size=num_engines, initial_size=num_engines, enable_true_multi_threading=True,
                                 max_concurrent_calls_per_actor=_PARTS_AT_ONCE, max_tasks_in_flight_per_actor=_PARTS_AT_ONCE)
        answers = _dataset(pieces, body, num_engines).map_batches(
            _Answers, batch_size=None, batch_format="pyarrow", compute=pool,
            fn_constructor_args=(list(arguments), os.getcwd()), **resources)
        for table in answers.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            for part, lines in zip(table["part"].to_pylist(), table["answers"].to_pylist()):
                output.write(part, lines)
            progress.update(output.num_answers - progress.n)
    finally:
        context.target_max_block_size, context.enable_progress_bars = before


def run(input: str, output: str, *, model: str, flags: Iterable[str] = (), ray_address: str | None = None,
        concurrency: int | None = None, num_cpus: float | None = None, num_gpus: float | None = None,
        body: Mapping[str, Any] | None = None, part_size: int = 256, quiet: bool = False) -> dict[str, int]:
    """Answers a file or folder of requests, and goes on where an earlier run of the same job ended. `flags` are those of
    `nanovllm run-batch`, `body` is what bodies of Parquet rows have in common; an actor takes `part_size` neighbouring
    requests at a time. Gives how many have answers, and how many of these are errors."""
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise BatchError(f"the package {error.name} is missing; the extra ray brings it: pip install '.[ray]' in nanovllm's folder") from None
    from tqdm import tqdm

    for name, number, least in (("part size", part_size, 1), ("concurrency", concurrency, 1), ("number of CPUs", num_cpus, 0),
                                ("number of GPUs", num_gpus, 0)):
        if number is not None and number < least:
            raise UsageError(f"the {name} must be at least {least}, got {number:g}")
    if not isinstance(body or {}, Mapping):
        raise UsageError(f"body must be a JSON object, got {json.dumps(body)}")
    if os.path.dirname(os.path.abspath(output)) == os.path.abspath(input):
        raise UsageError(f"{output} is in {input}, all of which is read; name an output elsewhere")
    body, flags = dict(body or {}), [*map(str, flags)]
    try:
        plan = Plan(os.fspath(input), part_size)
    except (OSError, ValueError) as error:  # pyarrow's are ValueErrors
        raise BatchError(f"{input} can't be read: {error}") from None
    if body and any(piece.group is None for piece in plan.pieces):
        raise UsageError(f"body is for rows of Parquet, and {input} has JSON lines; what their bodies have in common stands in each")
    if plan.ignored:
        print(f"nanovllm-batch: not read of {input}: {', '.join(sorted(plan.ignored))}; fields of a body stand in the column body",
              file=sys.stderr)
    identity = {"input": plan.digest, "model": os.fspath(model), "flags": flags, "body": body, "part size": part_size}
    written = None
    try:
        with Output(os.fspath(output), identity) as written:
            pieces = plan.without(written.finished)
            if pieces:
                _connect(ray_address)
                cpus, gpus, room = _room(num_cpus, num_gpus)
                num_engines = min(concurrency or room, room, sum(len(piece.parts) for piece in pieces))
                threads = [] if gpus else [f"--num-threads={max(1, int(cpus))}"]  # of a flag twice the last one holds
                arguments = ["--model", os.fspath(model), *threads, *flags]
                with tqdm(total=plan.num_requests, initial=written.num_answers, unit="request", disable=quiet) as progress:
                    _answer(pieces, written, body, arguments, num_engines, {"num_cpus": cpus, "num_gpus": gpus}, progress)
            elif not quiet:
                what = f"all requests of {input} are answered" if plan.num_requests else f"{input} has no requests"
                print(f"nanovllm-batch: nothing to do: {what}", file=sys.stderr)
            return {"answers": written.num_answers, "errors": written.num_errors}
    except OSError as error:
        kept = f"; {output} keeps {written.num_answers} of {plan.num_requests} answers, and the same command goes on" if written else ""
        raise BatchError(f"{error.filename or output}: {error.strerror or error}{kept}") from None
    except Exception as error:
        told = _sentence(error)
        if told is None and isinstance(error, ray.exceptions.RayError):
            told = BatchError(f"Ray ended the job: {str(error).strip().splitlines()[-1]}")
        raise told or error from None


def _sentence(error: BaseException | None) -> BatchError | None:
    """What an actor or a task of ours said, from within what Ray made of it."""
    while error is not None:
        told = str(error).split(_MARK)
        if len(told) > 2:
            return BatchError(told[1])
        error = error.__cause__ or error.__context__
    return None


def _connect(address: str | None) -> None:
    import ray

    if ray.is_initialized():
        return
    host, _, port = (address or "").rpartition(":")
    hint = ""
    try:
        if port.isdecimal() and "/" not in host:
            socket.create_connection((host, int(port)), timeout=10).close()  # which Ray itself tries for minutes
            if "RAY_AUTH_MODE" not in os.environ:  # then Ray shows its token to no host that was named
                hint = "; where it asks for a token, set RAY_AUTH_MODE=token"
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        with contextlib.suppress(ValueError):  # in a thread
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))  # again: Ray's C++ has put itself before it
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise BatchError(f"no Ray cluster can be joined at {address or 'this machine'}: {str(error).splitlines()[0]}{hint}") from None


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return value


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="nanovllm-batch", allow_abbrev=False, description="Answer a file of requests on a Ray cluster.",
        epilog="What else is given goes to `nanovllm run-batch` as it is: --max-model-len 4096, for example.")
    parser.add_argument("input", metavar="INPUT", help="requests: JSON lines or Parquet, a file or a folder")
    parser.add_argument("output", metavar="OUTPUT", help="NAME.jsonl, or a folder NAME.parquet; a run that was killed goes on there")
    parser.add_argument("--model", required=True, help="folder, GGUF file or name on the hub, as each node has it")
    parser.add_argument("--ray-address", help="auto or HOST:PORT; without it a Ray of this machine alone")
    parser.add_argument("--concurrency", type=int, help="engines, without it as many as the cluster has room for")
    parser.add_argument("--num-cpus", type=float, help="of an engine; without it 1 with a GPU, else those of the smallest node")
    parser.add_argument("--num-gpus", type=float, help="of an engine; without it 1 where the cluster has some")
    parser.add_argument("--body", type=_object, default={},
                        help="JSON that bodies of Parquet rows have in common: '{\"max_tokens\": 64}'")
    parser.add_argument("--part-size", type=int, default=256, help="requests that an engine takes and answers together")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress display")
    arguments, flags = parser.parse_known_args()
    # Ray Data writes of each step, and of our own errors a stack; what a user must know is said below.
    logging.disable()
    warnings.simplefilter("ignore")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until Ray has its own, which is an exit
    try:
        done = run(**vars(arguments), flags=flags)
    except BatchError as error:
        print(f"nanovllm-batch: {error}", file=sys.stderr)
        sys.exit(error.status)
    except (KeyboardInterrupt, SystemExit):
        print("nanovllm-batch: interrupted; the same command goes on", file=sys.stderr)
        sys.exit(130)
    if done["errors"]:
        print(f"nanovllm-batch: {done['errors']} of {done['answers']} answers are errors; {arguments.output} says why", file=sys.stderr)
        sys.exit(3)
