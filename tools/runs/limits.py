"""What a run may use, as values; the policy's numbers where the configuration has some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bitgate.tools.config.project import Project


@dataclass(frozen=True)
class RunLimits:
    """Bytes and seconds. `keep_free`: what must stay free on the disk that holds the run's folder."""

    run_s: float = 7200.0
    start_s: float = 600.0
    folder: int = 20 * 1024**3
    keep_free: int = 1024**3
    log: int = 64 * 1024**2
    lease_max_age_s: float = 5.0
    stop_grace_s: float = 3.0


def limits_of(project: Project) -> RunLimits:
    policy = project.config.policy
    return RunLimits(
        run_s=policy.run_timeout,
        start_s=policy.start_timeout,
        folder=policy.run_disk,
        keep_free=policy.disk_reserve,
        log=policy.log_limit,
    )
