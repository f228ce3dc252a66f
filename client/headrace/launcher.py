"""Which run of the ranks this process belongs to, as its launcher knows, and when it began.

    torchrun   the first process of each start writes its time to the store that all ranks share
    Ray Train  the same, in the cluster's store, for each attempt
    Slurm      number of the job, of its restarts and of the step
    MPI        the time at which mpirun began, where all ranks are on one host

All ranks of a run have one number, which no other run has.  Without a launcher it is 0.
"""

from __future__ import annotations

import os
import sys
import time

#: Seconds in which the store of torchrun answers.
_STORE_S = 60


def launched_run() -> int:
    """Return the number of the ranks' run."""
    known = os.environ
    if "TORCHELASTIC_RUN_ID" in known:
        return _of_torchrun()
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        from .ray import run_of_attempt

        if run := run_of_attempt():
            return run
    if "SLURM_PROCID" in known and "SLURM_JOB_ID" in known:
        return _of_slurm()
    everywhere = known.get("OMPI_COMM_WORLD_SIZE") or known.get("PMI_SIZE")
    here = known.get("OMPI_COMM_WORLD_LOCAL_SIZE") or known.get("MPI_LOCALNRANKS")
    return began(os.getppid()) // 1_000_000 if everywhere and everywhere == here else 0


def _of_torchrun() -> int:
    """Return when the first rank came after this start or restart of all ranks."""
    known = os.environ
    if known.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        alone = known.get("GROUP_WORLD_SIZE") == "1"
        restarts = int(known.get("TORCHELASTIC_RESTART_COUNT", 0))
        return began(os.getppid()) // 1_000_000 + restarts if alone else 0
    from datetime import timedelta

    from torch.distributed import TCPStore

    store = TCPStore(
        known["MASTER_ADDR"],
        int(known["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=_STORE_S),
    )
    key = f"headrace/run/{known.get('TORCHELASTIC_RESTART_COUNT', 0)}"
    return int(store.compare_set(key, "", str(time.time_ns() // 1_000_000)))


def _of_slurm() -> int:
    known = os.environ
    restarts, step = int(known.get("SLURM_RESTART_COUNT", 0)), int(known.get("SLURM_STEP_ID", 0))
    # A job has 32 bits.  The numbers of special steps, as that of the batch script, have as many.
    step = step if step < 1 << 16 else 0
    return int(known["SLURM_JOB_ID"]) << 30 | restarts % (1 << 14) << 16 | step


def began(process: int | str = "self") -> int:
    """Return when a process of this host began, in nanoseconds of Unix time."""
    with open(f"/proc/{process}/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    with open("/proc/stat", "rb") as file:
        (boot,) = [int(line.split()[1]) for line in file if line.startswith(b"btime ")]
    return boot * 1_000_000_000 + ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
