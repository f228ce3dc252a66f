"""The run of ranks is the same in all of them, and another one each time they start."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from headrace.launcher import began, launched_run
from headrace_proto.limits import MAX_COUNT

_NAMES = ("TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "MPI_LOCALNRANKS")


@pytest.fixture(autouse=True)
def without_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(_NAMES)]:
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "ray", raising=False)


def run_with(monkeypatch: pytest.MonkeyPatch, **known: object) -> int:
    with monkeypatch.context() as patch:
        for name, value in known.items():
            patch.setenv(name, str(value))
        return launched_run()


def test_without_a_launcher_there_is_one_run():
    assert launched_run() == 0


def test_a_process_knows_when_it_began():
    before = time.time_ns()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert abs(began(process.pid) - before) < 3e9 and began() < began(process.pid)
    finally:
        process.communicate(b"\n")


def test_a_job_of_slurm_has_another_run_after_a_restart_and_in_a_later_step(monkeypatch):
    job = {"SLURM_JOB_ID": 7, "SLURM_PROCID": 1}
    runs = [
        run_with(monkeypatch, **job, SLURM_STEP_ID=4294967291),
        run_with(monkeypatch, **job, SLURM_STEP_ID=1),
        run_with(monkeypatch, **job, SLURM_STEP_ID=2),
        run_with(monkeypatch, **job, SLURM_STEP_ID=0, SLURM_RESTART_COUNT=1),
        run_with(monkeypatch, SLURM_JOB_ID=8, SLURM_PROCID=0),
        run_with(monkeypatch, SLURM_JOB_ID=2**32 - 1, SLURM_PROCID=0, SLURM_RESTART_COUNT=99_999),
    ]
    assert runs == sorted(set(runs)) and runs[-1] <= MAX_COUNT
    assert run_with(monkeypatch, SLURM_JOB_ID=7) == 0, "a shell of the job is no rank"


@pytest.mark.parametrize("size", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_ranks_of_mpi_on_one_host_have_the_time_of_mpirun(monkeypatch, size):
    here = {"OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_SIZE": "MPI_LOCALNRANKS"}
    run = run_with(monkeypatch, **{size: 2, here[size]: 2})
    assert run == began(os.getppid()) // 1_000_000
    assert run_with(monkeypatch, **{size: 4, here[size]: 2}) == 0


def test_ranks_of_torchrun_agree_on_a_run_that_grows_with_each_restart(monkeypatch):
    distributed = pytest.importorskip("torch.distributed", reason="needs PyTorch")
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    known = {
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": store.port,
    }
    first = [run_with(monkeypatch, **known, TORCHELASTIC_RESTART_COUNT=0) for _ in range(2)]
    time.sleep(0.002)
    second = [run_with(monkeypatch, **known, TORCHELASTIC_RESTART_COUNT=1) for _ in range(2)]
    assert first[0] == first[1] < second[0] == second[1]
    known |= {"TORCHELASTIC_USE_AGENT_STORE": False, "GROUP_WORLD_SIZE": 1}
    alone = [run_with(monkeypatch, **known, TORCHELASTIC_RESTART_COUNT=n) for n in (0, 1)]
    assert alone[0] == began(os.getppid()) // 1_000_000 < alone[1]
