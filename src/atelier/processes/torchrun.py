"""torchrun that ends with its ranks' exit code and leaves no rank behind.

    python -m atelier.processes.torchrun --nproc-per-node 2 atelier.training --config ... --run ...
    ... --nproc-per-node 8 --nnodes 4 --node-rank 1 --master-addr HOST --master-port PORT --life ID

Plain torchrun exits 1 whatever a rank said, but Atelier's exit codes mean something (2, 3, 75),
and its ranks, each in a session of its own, survive a killed agent. Here the first rank that
failed gives the exit code, a rank killed by signal n gives 128 + n, and ranks die with the agent.

A single rank runs in this process, with the variables torchrun would set: an agent that watches
one rank would only cost the time and memory of a second torch. On several nodes there is an agent a
node, and the one of node 0 listens at HOST:PORT for the others (torchrun's static rendezvous, so
that node k has the ranks from k times those of a node on; an agent of an earlier life cannot join).
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import tempfile


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m atelier.processes.torchrun")
    parser.add_argument("--nproc-per-node", type=int, default=1)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int)
    parser.add_argument("--life", default="none", help="what agents that belong together share")
    parser.add_argument("module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    own = parser.parse_args()
    if own.nnodes > 1 and own.master_port is None:
        parser.error("--nnodes needs --master-port, where node 0 listens")
    if not 0 <= own.node_rank < own.nnodes:
        parser.error(f"--node-rank {own.node_rank}: nodes are counted from 0 to --nnodes less 1")
    if own.nproc_per_node == own.nnodes == 1:
        return _run_here(own.module, own.arguments)
    return _run_ranks(own.nproc_per_node, _meeting_place(own), own.module, own.arguments)


def _meeting_place(own: argparse.Namespace) -> list[str]:
    """Torchrun's arguments that say how its agents find each other."""
    if own.nnodes == 1:
        return ["--standalone"]
    return [
        *(f"--nnodes={own.nnodes}", f"--node-rank={own.node_rank}", f"--rdzv-id={own.life}"),
        *(f"--master-addr={own.master_addr}", f"--master-port={own.master_port}"),
    ]


def _run_here(module: str, arguments: list[str]) -> int:
    world = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    # Port 0: the only rank takes a free one, and nobody else has to find it.
    os.environ.update(world, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def _run_ranks(ranks: int, meeting_place: list[str], module: str, arguments: list[str]) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    agent = [*meeting_place, f"--nproc-per-node={ranks}", "--max-restarts=0"]
    # Without a place for its error files torchrun makes one, and leaves it.
    with tempfile.TemporaryDirectory(prefix="atelier-torchrun-") as errors:
        agent += [f"--log-dir={errors}", "-m", "atelier.processes.parent_death"]
        options = parse_args(agent)
        # Set, not parsed: torchrun's parser would take --run for an abbreviation of its own option.
        options.training_script_args = ["SIGKILL", str(os.getpid()), module, *arguments]
        try:
            run(options)
        except ChildFailedError as error:
            _, failure = error.get_first_failure()
            return int(failure.exitcode) if failure.exitcode > 0 else 128 - int(failure.exitcode)
        except SignalException as stop:
            return 128 + int(stop.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main())
