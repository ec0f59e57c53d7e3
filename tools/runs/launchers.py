"""Typed launchers: how a side's ranks are started, given their environment, and ended.

A launcher is configuration (`[side.NAME] launcher`), never part of a call. Each one turns a `Start` into a `Launch`:
argument lists only, no shell; where a remote shell cannot be avoided (ssh) every word is quoted with shlex.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

# A leading "-" would be read as an option by ssh, srun or docker.
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_\[][A-Za-z0-9_.:@\[\]%/+=,-]*$", max_length=300)]
Count = Annotated[int, Field(ge=1, le=65536)]
Port = Annotated[int, Field(ge=1, le=65535)]


@dataclass(frozen=True)
class Start:
    """What is to be started, the same for every launcher."""

    python: str
    script: Path
    job: Path
    name: str
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    env_file: Path | None = None
    reads: tuple[Path, ...] = ()
    user: str | None = None


@dataclass(frozen=True)
class Command:
    """One process of this host. `holds_stdin`: its ranks end when the pipe on their standard input closes."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    holds_stdin: bool = False


@dataclass(frozen=True)
class Launch:
    """Every process to start, how many ranks will report, and what ends those that a signal does not reach."""

    commands: tuple[Command, ...]
    world_size: int
    stop: tuple[tuple[str, ...], ...] = ()
    env_file: bool = False
    local_python: bool = True


class LauncherModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LocalLauncher(LauncherModel):
    """One rank, as a child of the supervisor. Ended by signals to everything it started."""

    kind: Literal["local"] = "local"

    def launch(self, start: Start) -> Launch:
        return Launch((Command(_rank(start, "0", 1), start.env),), world_size=1)


class TorchrunLauncher(LauncherModel):
    """`nproc` ranks on each node by torch.distributed.run. Ended by signals; elsewhere by ssh's pipe and the lease."""

    kind: Literal["torchrun"] = "torchrun"
    nproc: Count = Field(default=1, description="Ranks on each node")
    hosts: tuple[Word, ...] = Field(
        default=(), description="Nodes to reach over ssh, the first is the master; empty: this host"
    )
    master_addr: Word | None = Field(default=None, description="Address of the first node as the others see it")
    master_port: Port = Field(default=29400, description="Used with `hosts`; on one node the port is chosen freely")
    ssh_options: dict[Word, Word] = Field(default={}, description="ssh -o NAME=VALUE")

    def launch(self, start: Start) -> Launch:
        if not self.hosts:
            return Launch((Command(self._torchrun(start, ("--standalone",)), start.env),), world_size=self.nproc)
        commands = [
            Command(
                _ssh(host, self.ssh_options, self._torchrun(start, self._node(number), remote=True)), holds_stdin=True
            )
            for number, host in enumerate(self.hosts)
        ]
        return Launch(tuple(commands), self.nproc * len(self.hosts), env_file=True, local_python=False)

    def _node(self, number: int) -> tuple[str, ...]:
        master = self.master_addr or self.hosts[0].rpartition("@")[2]
        return (
            f"--nnodes={len(self.hosts)}",
            f"--node-rank={number}",
            f"--master-addr={master}",
            f"--master-port={self.master_port}",
        )

    def _torchrun(self, start: Start, nodes: tuple[str, ...], *, remote: bool = False) -> tuple[str, ...]:
        return _torchrun(start, self.nproc, nodes, self.nproc * max(1, len(self.hosts)), remote=remote)


class SrunLauncher(LauncherModel):
    """One rank a Slurm task. srun hands signals on to the tasks; scancel ends what is left."""

    kind: Literal["srun"] = "srun"
    nodes: Count = 1
    tasks_per_node: Count = 1
    gpus_per_task: Annotated[int, Field(ge=0, le=64)] = 0
    cpus_per_task: Count | None = None
    partition: Word | None = None
    account: Word | None = None
    time_limit: Word | None = Field(default=None, description="As Slurm writes it, such as 01:30:00")
    container_image: Word | None = Field(default=None, description="Image of the pyxis plugin")
    master_port: Port = 29400

    def launch(self, start: Start) -> Launch:
        world = self.nodes * self.tasks_per_node
        argv = (
            "srun",
            f"--job-name={start.name}",
            f"--nodes={self.nodes}",
            f"--ntasks={world}",
            f"--ntasks-per-node={self.tasks_per_node}",
            "--export=ALL",
            "--kill-on-bad-exit=1",
            "--unbuffered",
            *self._options(start),
            *_rank(start, "env:SLURM_PROCID", world, f"--master-port={self.master_port}"),
        )
        return Launch(
            (Command(argv, start.env),), world, stop=(("scancel", f"--name={start.name}"),), local_python=False
        )

    def _options(self, start: Start) -> list[str]:
        given = {
            "gpus-per-task": self.gpus_per_task or None,
            "cpus-per-task": self.cpus_per_task,
            "partition": self.partition,
            "account": self.account,
            "time": self.time_limit,
            "container-image": self.container_image,
        }
        options = [f"--{name}={value}" for name, value in given.items() if value is not None]
        if self.container_image is not None:
            options.append("--container-mounts=" + ",".join(f"{path}:{path}" for path in (start.folder, *start.reads)))
        return options


class SshLauncher(LauncherModel):
    """`nproc` ranks on each host, one ssh each. Ended by closing the pipe on their standard input, and by the lease.

    The run's folder must be at the same path on every host. The environment travels in a file of mode 0600 there.
    """

    kind: Literal["ssh"] = "ssh"
    hosts: Annotated[tuple[Word, ...], Field(min_length=1)]
    nproc: Count = 1
    master_addr: Word | None = None
    master_port: Port = 29400
    options: dict[Word, Word] = Field(default={}, description="ssh -o NAME=VALUE")

    def launch(self, start: Start) -> Launch:
        world = self.nproc * len(self.hosts)
        master = self.master_addr or self.hosts[0].rpartition("@")[2]
        commands = [
            Command(
                _ssh(
                    host,
                    self.options,
                    _rank(
                        start, str(node * self.nproc + local), world,
                        f"--local-rank={local}", f"--master-addr={master}", f"--master-port={self.master_port}",
                        *_remote(start),
                    ),
                ),
                holds_stdin=True,
            )
            for node, host in enumerate(self.hosts)
            for local in range(self.nproc)
        ]  # fmt: skip
        return Launch(tuple(commands), world, env_file=True, local_python=False)


class RayLauncher(LauncherModel):
    """One Ray job a rank. Ended with `ray job stop`, and by the lease."""

    kind: Literal["ray"] = "ray"
    address: Word = Field(default="auto", description="Ray dashboard or cluster address")
    ranks: Count = 1
    gpus_per_rank: Annotated[float, Field(ge=0, le=64)] = 0
    cpus_per_rank: Annotated[float, Field(gt=0, le=1024)] = 1
    master_addr: Word | None = Field(default=None, description="Needed with more than one rank: where rank 0 will run")
    master_port: Port = 29400

    @model_validator(mode="after")
    def _master(self) -> RayLauncher:
        if self.ranks > 1 and self.master_addr is None:
            raise ValueError(
                "launcher ray: `master_addr` is needed with more than one rank; Ray does not tell where rank 0 runs"
            )
        return self

    def launch(self, start: Start) -> Launch:
        ids = [f"{start.name}-{rank}" for rank in range(self.ranks)]
        commands = [Command(self._submit(start, rank, name)) for rank, name in enumerate(ids)]
        stop = tuple(("ray", "job", "stop", f"--address={self.address}", name) for name in ids)
        return Launch(tuple(commands), self.ranks, stop=stop, env_file=True, local_python=False)

    def _submit(self, start: Start, rank: int, name: str) -> tuple[str, ...]:
        master = (f"--master-addr={self.master_addr}", f"--master-port={self.master_port}") if self.master_addr else ()
        env_file = (f"--env-file={start.env_file}",) if start.env_file else ()
        return (
            "ray", "job", "submit",
            f"--address={self.address}",
            f"--submission-id={name}",
            f"--entrypoint-num-gpus={self.gpus_per_rank:g}",
            f"--entrypoint-num-cpus={self.cpus_per_rank:g}",
            "--",
            *_rank(start, str(rank), self.ranks, *master, *env_file),
        )  # fmt: skip


class Mount(LauncherModel):
    source: str
    target: str
    read_only: bool = True


class ContainerLauncher(LauncherModel):
    """`nproc` ranks in one container. Ended with the runtime's kill, the pipe on standard input, and the lease."""

    kind: Literal["container"] = "container"
    image: Word = Field(description="Pin it by digest: name@sha256:…")
    runtime: Literal["docker", "podman", "apptainer"] = "docker"
    nproc: Count = 1
    gpus: Word | None = Field(default=None, description="As the runtime writes it, such as all")
    shm_size: Word | None = Field(default=None, description="Such as 16g; NCCL needs more than the runtime's default")
    mounts: tuple[Mount, ...] = ()
    network: Word = "none"

    def launch(self, start: Start) -> Launch:
        if self.nproc == 1:
            inside = _rank(start, "0", 1, "--watch-stdin")
        else:
            inside = _torchrun(start, self.nproc, ("--standalone",), self.nproc, extra=("--watch-stdin",))
        if self.runtime == "apptainer":
            env = {f"APPTAINERENV_{name}": value for name, value in start.env.items()}
            return Launch((Command((*self._apptainer(start), *inside), env, True),), self.nproc, local_python=False)
        command = Command((*self._docker(start), *inside), start.env, holds_stdin=True)
        return Launch((command,), self.nproc, stop=((self.runtime, "kill", start.name),), local_python=False)

    def _volumes(self, start: Start) -> list[Mount]:
        own = [Mount(source=str(start.folder), target=str(start.folder), read_only=False)]
        return own + [Mount(source=str(path), target=str(path)) for path in start.reads] + list(self.mounts)

    def _docker(self, start: Start) -> list[str]:
        argv = [
            self.runtime,
            "run",
            "--rm",
            "--init",
            "--interactive",
            f"--name={start.name}",
            f"--network={self.network}",
        ]
        argv += [f"--user={start.user}"] if start.user else []
        argv += [f"--gpus={self.gpus}"] if self.gpus else []
        argv += [f"--shm-size={self.shm_size}"] if self.shm_size else []
        for mount in self._volumes(start):
            argv.append(
                f"--mount=type=bind,source={mount.source},target={mount.target}"
                + (",readonly" if mount.read_only else "")
            )
        # A name without a value takes it from the client's environment: nothing secret is on a command line.
        argv += [f"--env={name}" for name in sorted(start.env)]
        return [*argv, "--entrypoint=", self.image]

    def _apptainer(self, start: Start) -> list[str]:
        argv = ["apptainer", "exec", "--pid"] + (["--nv"] if self.gpus else [])
        argv += [f"--bind={m.source}:{m.target}:{'ro' if m.read_only else 'rw'}" for m in self._volumes(start)]
        return [*argv, self.image]


Launcher = Annotated[
    LocalLauncher | TorchrunLauncher | SrunLauncher | SshLauncher | RayLauncher | ContainerLauncher,
    Field(discriminator="kind"),
]


class Launches(Protocol):
    def launch(self, start: Start) -> Launch: ...


def _rank(start: Start, rank: str, world: int, *extra: str) -> tuple[str, ...]:
    return (start.python, str(start.script), str(start.job), f"--rank={rank}", f"--world={world}", *extra)


def _remote(start: Start) -> tuple[str, ...]:
    return ("--watch-stdin", *((f"--env-file={start.env_file}",) if start.env_file else ()))


def _torchrun(
    start: Start, nproc: int, nodes: tuple[str, ...], world: int, *, remote: bool = False, extra: tuple[str, ...] = ()
) -> tuple[str, ...]:
    python, *script = _rank(start, "env:RANK", world, *(_remote(start) if remote else extra))
    # One failure ends the job: a restarted rank would score with another process's state.
    return (python, "-m", "torch.distributed.run", *nodes, f"--nproc-per-node={nproc}", "--max-restarts=0", *script)


def _ssh(host: str, options: Mapping[str, str], command: tuple[str, ...]) -> tuple[str, ...]:
    settings = {"BatchMode": "yes", "ServerAliveInterval": "5", "ServerAliveCountMax": "2", **options}
    return (
        "ssh",
        "-T",
        *(f"-o{name}={value}" for name, value in settings.items()),
        "--",
        host,
        "exec " + shlex.join(command),
    )
