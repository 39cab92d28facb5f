"""What the tests on Ray share."""
import sys


def started(start):
    """What `start` gives, which starts a node. That ends by itself where its agents, Python programs, are not there within 15 s, for
    which Ray has no setting: on busy cores it is tried again."""
    for _ in range(3):
        try:
            return start()
        except Exception as error:  # Ray has no class for it
            print(f"nanovllm: tried again: {error}", file=sys.stderr)
    return start()
