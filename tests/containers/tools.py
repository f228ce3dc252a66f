"""The programs that the checks need: found, or installed from the machine's own package sources.

Docker's compose plugin is taken out of its Debian package into the scratch directory instead of
being installed: this release of Debian has only the old program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .outcome import Skip

__all__ = ["APT", "call", "compose_plugin", "need", "sources"]

#: Packages that run containers, for ``apt-get install``.
APT = (
    *("buildah", "podman", "mmdebstrap", "runc", "catatonit", "containernetworking-plugins"),
    *("netavark", "aardvark-dns", "nftables", "iptables"),
)
_COMPOSE = Path("usr/libexec/docker/cli-plugins/docker-compose")


def call(
    *command: str | Path,
    timeout_s: float = 60,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    code: int | None = 0,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; AssertionError with its last lines where its code is another."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=cwd,
        env=None if env is None else {**os.environ, **env},
    )
    if code is not None and done.returncode != code:
        words = (done.stderr + done.stdout).strip()[-1500:]
        raise AssertionError(f"{' '.join(map(str, command[:3]))} gave {done.returncode}: {words}")
    return done


def need(program: str, remedy: str = "") -> str:
    """The path of a program; Skip where there is none."""
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if found is None:
        raise Skip(f"there is no {program} here" + (f" ({remedy})" if remedy else ""))
    return found


def sources(release: str) -> str:
    """Where this machine's packages of a release come from; Skip where that is not Debian."""
    targets = call(
        need("apt-get"),
        "indextargets",
        "--format",
        "$(CODENAME) $(REPO_URI)",
        "Created-By: Packages",
    )
    found = [line.split(" ", 1) for line in targets.stdout.splitlines()]
    for codename, address in found:
        if codename == release:
            return address
    raise Skip(f"the package sources of this machine are not those of Debian's {release}")


def install() -> str:
    """Install the programs that run containers."""
    if os.geteuid() != 0:
        raise Skip("only root may install packages")
    apt = need("apt-get")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    call(apt, "update", timeout_s=300)
    call(apt, "install", "-y", "--no-install-recommends", *APT, timeout_s=600, env=quiet)
    return f"{len(APT)} packages"


def compose_plugin(scratch: Path) -> dict[str, str]:
    """An environment in which there is ``docker compose``; one that is installed comes first."""
    docker = need("docker")
    if call(docker, "compose", "version", code=None).returncode == 0:
        return {}
    home = scratch / "docker"
    plugin = home / "cli-plugins" / "docker-compose"
    if not plugin.exists():
        plugin.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_unpacked(scratch, "docker-compose", "trixie") / _COMPOSE, plugin)
    return {"DOCKER_CONFIG": str(home)}


def _unpacked(scratch: Path, package: str, release: str) -> Path:
    """A package of a release of Debian, unpacked and not installed."""
    target = scratch / f"package-{package}"
    if target.exists():
        return target
    apt, dpkg = need("apt-get"), need("dpkg")
    home = scratch / f"apt-{release}"
    for folder in ("lists/partial", "cache/archives/partial"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    own = home / "sources.list"
    own.write_text(f"deb [signed-by={keyring}] {sources('bookworm')} {release} main\n")
    options = [
        f"-o=Dir::Etc::SourceList={own}",
        "-o=Dir::Etc::SourceParts=/dev/null",
        f"-o=Dir::State::Lists={home / 'lists'}",
        f"-o=Dir::Cache={home / 'cache'}",
    ]
    call(apt, *options, "update", timeout_s=200)
    call(apt, *options, "download", package, timeout_s=200, cwd=home)
    [archive] = home.glob(f"{package}_*.deb")
    call(dpkg, "-x", archive, target)
    return target
