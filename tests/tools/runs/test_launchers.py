"""Command lines as recorded: each starts the script by path, carries the environment, and says how it is ended."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from tiny_runs import Ended

from bitgate.tools.config.project import Project
from bitgate.tools.runs.launchers import Launch, Launcher, Start
from bitgate.tools.runs.processes import marked_run

START = Start(
    python="/opt/engine/bin/python",
    script=Path("/p/.bitgate/runs/run_a/stage/bitgate_worker/run.py"),
    job=Path("/p/.bitgate/runs/run_a/jobs/0-rollout/job.json"),
    name="bitgate-run-a-0-rollout",
    folder=Path("/p/.bitgate/runs/run_a"),
    env={"VLLM_BATCH_INVARIANT": "1", "HF_TOKEN": "hf_secret", "ODD": "it's $HOME; rm -rf /"},
    env_file=Path("/p/.bitgate/runs/run_a/jobs/0-rollout/env.json"),
    reads=(Path("/models/qwen"),),
    user="1000:1000",
)
FOLDER = "/p/.bitgate/runs/run_a"
RUN = f"/opt/engine/bin/python {FOLDER}/stage/bitgate_worker/run.py {FOLDER}/jobs/0-rollout/job.json"
ENV_FILE = "--env-file=/p/.bitgate/runs/run_a/jobs/0-rollout/env.json"
SSH = "ssh -T -oBatchMode=yes -oServerAliveInterval=5 -oServerAliveCountMax=2"


def launch(**table: Any) -> Launch:
    return TypeAdapter[Any](Launcher).validate_python(table).launch(START)  # type: ignore[no-any-return]


def lines(made: Launch) -> list[str]:
    return [" ".join(command.argv) for command in made.commands]


def test_local_is_one_rank() -> None:
    made = launch(kind="local")
    assert lines(made) == [f"{RUN} --rank=0 --world=1"]
    assert (made.world_size, made.stop, made.commands[0].env) == (1, (), START.env)


def test_torchrun_on_this_host() -> None:
    made = launch(kind="torchrun", nproc=2)
    python, script = RUN.split(" ", 1)
    assert lines(made) == [
        f"{python} -m torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=0 {script} "
        "--rank=env:RANK --world=2"
    ]
    assert (made.world_size, made.commands[0].env) == (2, START.env)


def test_torchrun_on_two_hosts_goes_over_ssh_and_ends_with_the_pipe() -> None:
    made = launch(kind="torchrun", nproc=8, hosts=["gpu1", "me@gpu2"])
    python, script = RUN.split(" ", 1)
    rank = f"{script} --rank=env:RANK --world=16 --watch-stdin {ENV_FILE}"
    assert lines(made) == [
        f"{SSH} -- {host} exec {python} -m torch.distributed.run --nnodes=2 --node-rank={node} --master-addr=gpu1 "
        f"--master-port=29400 --nproc-per-node=8 --max-restarts=0 {rank}"
        for node, host in enumerate(("gpu1", "me@gpu2"))
    ]
    assert (made.world_size, made.env_file) == (16, True)
    assert all(command.holds_stdin for command in made.commands)


def test_srun_passes_the_environment_and_is_ended_by_name() -> None:
    made = launch(
        kind="srun", nodes=2, tasks_per_node=8, gpus_per_task=1, cpus_per_task=12, partition="hopper", account="rl",
        time_limit="01:30:00", container_image="nvcr.io/nvidia/pytorch:26.09-py3",
    )  # fmt: skip
    assert lines(made) == [
        "srun --job-name=bitgate-run-a-0-rollout --nodes=2 --ntasks=16 --ntasks-per-node=8 --export=ALL "
        "--kill-on-bad-exit=1 --unbuffered --gpus-per-task=1 --cpus-per-task=12 --partition=hopper --account=rl "
        "--time=01:30:00 --container-image=nvcr.io/nvidia/pytorch:26.09-py3 "
        "--container-mounts=/p/.bitgate/runs/run_a:/p/.bitgate/runs/run_a,/models/qwen:/models/qwen "
        f"{RUN} --rank=env:SLURM_PROCID --world=16 --master-port=29400"
    ]
    assert made.stop == (("scancel", "--name=bitgate-run-a-0-rollout"),)
    assert made.commands[0].env == START.env


def test_ssh_is_one_connection_a_rank() -> None:
    made = launch(kind="ssh", hosts=["gpu1", "gpu2"], nproc=2, options={"Port": "2222"})
    tail = f"--master-addr=gpu1 --master-port=29400 --watch-stdin {ENV_FILE}"
    assert lines(made) == [
        f"{SSH} -oPort=2222 -- {host} exec {RUN} --rank={rank} --world=4 --local-rank={local} {tail}"
        for rank, (host, local) in enumerate((host, local) for host in ("gpu1", "gpu2") for local in range(2))
    ]
    assert all(command.holds_stdin for command in made.commands)


def test_ssh_quotes_every_word_for_the_remote_shell() -> None:
    odd = Start("/opt/my engine/bin/python", Path("/p/$(id)/run.py"), Path("/p/a;b/job.json"), "n", Path("/p"))
    made = TypeAdapter[Any](Launcher).validate_python({"kind": "ssh", "hosts": ["gpu1"]}).launch(odd)
    words = shlex.split(made.commands[0].argv[-1])
    assert words[:4] == ["exec", "/opt/my engine/bin/python", "/p/$(id)/run.py", "/p/a;b/job.json"]


def test_ray_is_one_job_a_rank_and_ended_by_id() -> None:
    made = launch(
        kind="ray", address="http://head:8265", ranks=2, gpus_per_rank=1, cpus_per_rank=4, master_addr="10.0.0.1"
    )
    assert lines(made) == [
        f"ray job submit --address=http://head:8265 --submission-id=bitgate-run-a-0-rollout-{rank} "
        f"--entrypoint-num-gpus=1 --entrypoint-num-cpus=4 -- {RUN} --rank={rank} --world=2 "
        f"--master-addr=10.0.0.1 --master-port=29400 {ENV_FILE}"
        for rank in range(2)
    ]
    assert made.stop == tuple(
        ("ray", "job", "stop", "--address=http://head:8265", f"bitgate-run-a-0-rollout-{rank}") for rank in range(2)
    )


def test_docker_takes_values_from_the_clients_environment() -> None:
    made = launch(
        kind="container", image="vllm@sha256:abc", gpus="all", shm_size="16g",
        mounts=[{"source": "/data", "target": "/data"}],
    )  # fmt: skip
    assert lines(made) == [
        "docker run --rm --init --interactive --name=bitgate-run-a-0-rollout --network=none --user=1000:1000 "
        "--gpus=all --shm-size=16g --mount=type=bind,source=/p/.bitgate/runs/run_a,target=/p/.bitgate/runs/run_a "
        "--mount=type=bind,source=/models/qwen,target=/models/qwen,readonly "
        "--mount=type=bind,source=/data,target=/data,readonly "
        f"--env=HF_TOKEN --env=ODD --env=VLLM_BATCH_INVARIANT --entrypoint= "
        f"vllm@sha256:abc {RUN} --rank=0 --world=1 --watch-stdin"
    ]
    assert made.stop == (("docker", "kill", "bitgate-run-a-0-rollout"),)
    assert made.commands[0].env == START.env


def test_apptainer_takes_the_environment_by_prefix() -> None:
    made = launch(kind="container", runtime="apptainer", image="vllm.sif", gpus="all", nproc=2)
    python, script = RUN.split(" ", 1)
    assert lines(made) == [
        f"apptainer exec --pid --nv --bind={FOLDER}:{FOLDER}:rw --bind=/models/qwen:/models/qwen:ro "
        f"vllm.sif {python} -m torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=0 {script} "
        "--rank=env:RANK --world=2 --watch-stdin"
    ]
    assert made.commands[0].env == {f"APPTAINERENV_{name}": value for name, value in START.env.items()}


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "ssh", "hosts": ["gpu1"]},
        {"kind": "ray"},
        {"kind": "container", "image": "vllm"},
        {"kind": "srun"},
        {"kind": "torchrun", "hosts": ["gpu1", "gpu2"]},
    ],
)
def test_no_secret_is_on_a_command_line(table: dict[str, Any]) -> None:
    assert "hf_secret" not in " ".join(lines(launch(**table)))


@pytest.mark.parametrize(
    "table",
    [
        {"kind": "ssh", "hosts": ["-oProxyCommand=sh"]},
        {"kind": "ssh", "hosts": ["gpu1; rm -rf /"]},
        {"kind": "ssh", "hosts": []},
        {"kind": "srun", "partition": "a b"},
        {"kind": "container", "image": "--privileged"},
        {"kind": "ray", "ranks": 2},
        {"kind": "torchrun", "nproc": 0},
        {"kind": "mpirun"},
        {"kind": "local", "command": "sh"},
    ],
)
def test_what_no_launcher_may_be_given_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        launch(**table)


@pytest.mark.engine
def test_two_torchrun_ranks_reduce_over_gloo(
    project: Project, run_tiny: Callable[..., Ended], engine_python: str
) -> None:
    done = run_tiny(
        project,
        python=engine_python,
        launcher={"kind": "torchrun", "nproc": 2},
        options={"mischief": "uses_gloo"},
        wait_s=120,
    )
    assert done.evidence is not None, done.run.error
    assert done.evidence.summary == "2 ranks"
    assert done.evidence.figures["describe"]["ranks"] == 3  # type: ignore[call-overload,index]
    assert marked_run(done.run.id) == []


@pytest.mark.engine
def test_a_rank_that_leaves_no_result_makes_the_run_invalid(
    project: Project, run_tiny: Callable[..., Ended], engine_python: str
) -> None:
    done = run_tiny(
        project,
        python=engine_python,
        launcher={"kind": "torchrun", "nproc": 2},
        options={"mischief": "is_missing"},
        wait_s=120,
    )
    assert done.evidence is not None, done.run.error
    assert (done.evidence.verdict, [reason.code for reason in done.evidence.reasons]) == ("invalid", ["rank_missing"])


@pytest.mark.engine
def test_one_rank_that_hangs_times_both_out(
    project: Project, run_tiny: Callable[..., Ended], engine_python: str
) -> None:
    done = run_tiny(
        project, python=engine_python, launcher={"kind": "torchrun", "nproc": 2}, timeout_s=12, wait_s=120,
        options={"mischief": "hangs_with_the_gil", "when": "step"},
    )  # fmt: skip
    assert done.run.state == "timed_out"
    assert marked_run(done.run.id) == []
